"""Fixtures: servers on free loopback ports, and their clients."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from backends import need_remote

if TYPE_CHECKING:
    from serving import ServerMaker

    from xuance_envs.remote.server import Server


def pytest_pycollect_makemodule() -> None:
    """Skip all modules; a skip during this file's import would end pytest itself."""
    need_remote()


@pytest.fixture(scope="session", autouse=True)
def no_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let no client read CA certificates, because this takes longer than a request."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SSL_CERT_FILE", raising=False)  # it would take precedence
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("authorities")))
        yield


@pytest.fixture(scope="session", autouse=True)
def prompt_ends() -> Iterator[None]:
    """Let servers check every 5 ms instead of every 100 ms whether to end."""
    fast = SimpleNamespace(**vars(asyncio))
    fast.sleep = lambda seconds: asyncio.sleep(seconds / 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvicorn.server.asyncio", fast)
        yield


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Create the files of a certificate for loopback and of its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    folder = tmp_path_factory.mktemp("tls")
    certfile, keyfile = folder / "cert.pem", folder / "key.pem"
    command = (
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
        *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", str(keyfile), "-out", str(certfile)),
    )
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return certfile, keyfile


@pytest.fixture
def serve() -> Iterator[ServerMaker]:
    """Create servers, and close them after the test."""
    from serving import assert_nothing_is_left, make_server

    made: list[Server] = []

    def serve(*args: Any, **options: Any) -> Server:
        made.append(make_server(*args, **options))
        return made[-1]

    yield serve
    for server in made:
        server.close()
    assert_nothing_is_left()


@pytest.fixture
def background() -> Iterator[Callable[..., Future[Any]]]:
    """Call functions in threads. Name it before ``serve``, which ends requests that hang."""
    with ThreadPoolExecutor() as threads:
        yield threads.submit


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the times for commands and requests to finish when a server or session closes."""
    from xuance_envs.remote.server.hosting import env_host
    from xuance_envs.remote.settings import Settings

    monkeypatch.setattr(env_host, "CLOSE_TIMEOUT", 0.2)
    monkeypatch.setattr(Settings, "seconds_to_finish", 1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Share one server among the tests of a module; they must not change it."""
    from serving import ALLOWED, assert_nothing_is_left, make_server

    server = make_server(kwargs=("length",), allow=ALLOWED)
    yield server
    server.close()
    assert_nothing_is_left()
