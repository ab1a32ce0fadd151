"""Servers on free loopback ports, and sessions controlled by JSON requests."""

from __future__ import annotations

import dataclasses
import fcntl
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import httpx
import leftovers
from remote_envs import SERVED

from xuance_envs.remote.cli.serve import TOKEN_LIMITS
from xuance_envs.remote.server import Server
from xuance_envs.remote.server.access import Permissions
from xuance_envs.remote.settings import Catalogue, Limits, Settings, Tokens

API_PREFIX = "/api/v1"
ServerMaker = Callable[..., Server]

ALLOWED = Permissions(
    calls=frozenset({"describe"}),
    gets=frozenset({"length"}),
    sets=frozenset({"length"}),
    options=frozenset({"a"}),
)
"""Default permissions for the environments of these tests."""

SETTINGS = Settings(Catalogue(SERVED), permissions=Permissions(any_action=True))
"""Settings of vec envs that a test creates without a server."""


def make_server(
    served: dict[str, Any] | None = None,
    *,
    tokens: tuple[str, ...] = (),
    token_file: Path | None = None,
    kwargs: Any = (),
    allow: Permissions | None = None,
    pages_need_token: bool = False,
    address: dict[str, Any] | None = None,
    limits_by_tokens: frozenset[str] = frozenset(),
    **limits: Any,
) -> Server:
    """Start a server in a thread of this process."""
    catalogue = Catalogue(SERVED if served is None else served, kwargs)
    settings = Settings(
        catalogue,
        Tokens(tokens, token_file, TOKEN_LIMITS),
        Limits(**limits),
        allow or Permissions(),
        pages_need_token=pages_need_token,
        watch_tokens=token_file is not None,
        limits_by_tokens=limits_by_tokens,
    )
    server = Server(settings, port=0, **(address or {}))
    server.start()
    return server


def assert_nothing_is_left() -> None:
    """Close the clients; raise if an environment's process is still running."""
    while Asking.open:
        Asking.open.pop().close()
    assert multiprocessing.active_children() == [], "processes were left behind"


def wait_until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until a condition is true; raise at the deadline."""
    assert leftovers.wait_until(true, seconds), "the condition is still false"


class Asking:
    """A session controlled by JSON requests."""

    open: ClassVar[list[httpx.Client]] = []

    def __init__(
        self, server: Server | ServedProcess, token: str | None = None, **create: Any
    ) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.client = httpx.Client(base_url=server.url + API_PREFIX, headers=headers, timeout=60)
        self.open.append(self.client)
        self.id = self.post("session/create", **create).json()["session_id"]
        self.episodes: list[str] = []

    def post(self, path: str, **message: Any) -> httpx.Response:
        return self.client.post(path, json=message)

    def ask(self, path: str, **message: Any) -> httpx.Response:
        answer = self.post(f"episode/{path}", session_id=self.id, **message)
        is_json = answer.headers["content-type"] == "application/json"
        if path == "create" and answer.status_code == 200 and is_json:
            self.episodes += answer.json()["episode_ids"]
        return answer

    def begin(self, env_id: str | None = None, **create: Any) -> Asking:
        """Create environments and reset them."""
        self.ask("create", env_id=env_id, **create)
        self.ask("vectorized_reset")
        return self

    def close(self) -> httpx.Response:
        return self.client.delete(f"session/{self.id}")


def take_terminal() -> None:
    """Make standard input the controlling terminal of this process's session."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def serve_tests() -> None:
    """Serve the tests' environments until a signal arrives."""
    allowed = dataclasses.replace(ALLOWED, gets=frozenset({"mark", "pid"}))
    server = Server(
        Settings(Catalogue(SERVED), limits=Limits(workers=2), permissions=allowed), port=0
    )
    print(f"serving at {server.url}", flush=True)
    server.run()


COMMAND = ("-m", "xuance_envs", "serve", "--port")
PATHS = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
TESTS = ("-c", f"import sys; sys.path[:0] = {PATHS!r}; import serving; serving.serve_tests()")
"""Arguments with which :class:`ServedProcess` serves the tests' environments."""


class ServedProcess:
    """``python -m xuance_envs serve`` in its own process."""

    def __init__(
        self, *args: str, port: int = 0, terminal: int | None = None, **variables: str
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *(args if args == TESTS else (*COMMAND, str(port), *args))],
            cwd=Path(__file__).resolve().parents[2],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=args == TESTS,  # their signals must not reach pytest
            preexec_fn=None if terminal is None else take_terminal,
        )
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline()
        match = re.search(r"at (http://127\.0\.0\.1:(\d+))", self.said)
        assert match is not None, self.said
        self.url, self.port = match[1], int(match[2])
        self.pid = self._process.pid
        wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def status_for(self, token: str) -> int:
        """Return the server's HTTP status for a token."""
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.delete(f"{self.url}{API_PREFIX}/session/none", headers=headers)
        return 200 if answer.status_code == 404 else answer.status_code

    def close(self, sign: int = signal.SIGTERM) -> int:
        """Send a signal to the server and wait; return its exit status."""
        self._process.send_signal(sign)
        return self.wait()

    def wait(self) -> int:
        """Waits for its end; its exit status."""
        status = self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status
