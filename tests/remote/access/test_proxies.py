"""A server behind a proxy, on a Unix socket, and with its own certificate."""

from __future__ import annotations

import logging
import socket
import time
from ipaddress import ip_network
from pathlib import Path

import httpx
import pytest
from serving import API_PREFIX, ServerMaker

from xuance_envs import errors
from xuance_envs.remote.remote_vec_env import RemoteVecEnv
from xuance_envs.remote.server.access import Proxies, root_path_of, unix_socket

PROXY = ip_network("10.0.0.0/8")


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.1.2.3", "1.2.3.4", "1.2.3.4"),
        ("10.1.2.3", "6.6.6.6, 1.2.3.4", "1.2.3.4"),
        ("10.1.2.3", "6.6.6.6, 1.2.3.4, 10.9.9.9", "1.2.3.4"),
        ("10.1.2.3", "10.4.4.4", "10.4.4.4"),
        ("10.1.2.3", "6.6.6.6, nonsense", "10.1.2.3"),
        ("10.1.2.3", "", "10.1.2.3"),
        ("9.9.9.9", "1.2.3.4", "9.9.9.9"),
        (None, "6.6.6.6, 1.2.3.4", "1.2.3.4"),
        (None, "", None),
    ],
)
def test_a_client_is_whom_the_last_trusted_proxy_was_asked_by(
    peer: str | None, forwarded: str, client: str | None
) -> None:
    found = Proxies("", [PROXY]).client(
        None if peer is None else (peer, 5), [(b"x-forwarded-for", forwarded.encode())]
    )
    assert (found and found[0]) == client


def test_nobody_is_believed_unless_it_is_said() -> None:
    headers = [(b"x-forwarded-for", b"1.2.3.4")]
    assert Proxies().client(("127.0.0.1", 5), headers) == ("127.0.0.1", 5)


@pytest.mark.parametrize(("text", "path"), [("", ""), ("/", ""), ("/a/b/", "/a/b")])
def test_root_paths(text: str, path: str) -> None:
    assert root_path_of(text) == path


@pytest.mark.parametrize("text", ["envs", "/a b", "/a?b", "/é", "/%41"])
def test_what_is_no_root_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a path such as /envs"):
        root_path_of(text)


def test_below_a_root_path_whether_the_proxy_takes_it_off_or_not(
    serve: ServerMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "xuance_envs.access")
    proxies = Proxies("/envs", [ip_network("127.0.0.1")])
    server = serve(address={"proxies": proxies})
    for url in (server.url, f"{server.url}/envs"):
        with RemoteVecEnv(url, "Counting", 2) as envs:
            envs.reset()
            envs.step([0, 0])
        forwarded = {"X-Forwarded-For": "1.2.3.4", "X-Forwarded-Proto": "https"}
        assert httpx.get(f"{url}/healthz", headers=forwarded).json() == {"status": "ok"}
        assert httpx.post(
            f"{url}{API_PREFIX}/session/create", json={}, headers=forwarded
        ).is_success
        assert httpx.get(f"{url}/status.json").json()["sessions"] >= 1
        servers = httpx.get(f"{url}/openapi.json").json()["servers"]
        assert servers == [{"url": "/envs"}]
    server.close()
    said = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("1.2.3.4 - GET /envs/healthz 200") for line in said)
    assert any(line.startswith("1.2.3.4 anybody POST ") for line in said)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no unix sockets here")
def test_on_a_unix_socket(serve: ServerMaker, tmp_path: Path) -> None:
    path = tmp_path / "envs.sock"
    left_over = unix_socket(path)
    left_over.close()  # by a server that was killed
    server = serve(address={"unix": path})
    assert server.url == f"unix:{path}"
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x") as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        session = client.post(f"{API_PREFIX}/session/create", json={}).json()["session_id"]
        assert client.delete(f"{API_PREFIX}/session/{session}").status_code == 200
    with pytest.raises(OSError, match="cannot listen on"):
        unix_socket(path)
    server.close()
    assert not path.exists()


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no unix sockets here")
def test_a_client_that_connects_meanwhile_does_not_delay_closing(
    serve: ServerMaker, tmp_path: Path
) -> None:
    for number in range(40):
        path = tmp_path / f"{number}.sock"
        server = serve(address={"unix": path})
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        start = time.monotonic()
        server.close()
        assert time.monotonic() - start < 20  # instead of the limit of 60 s


def test_with_a_certificate_of_its_own(
    serve: ServerMaker, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    certfile, keyfile = certificate
    server = serve(tokens=("one",), address={"certfile": certfile, "keyfile": keyfile})
    assert server.url.startswith("https://127.0.0.1:")
    for verify in (certfile, str(certfile), False):
        with RemoteVecEnv(server.url, "Counting", 2, user_token="one", verify=verify) as envs:
            envs.reset()
            assert envs.step([1, 2])[1].tolist() == [1, 2]
    plain = server.url.replace("https", "http")
    with pytest.raises(errors.RemoteUnreachableError, match="its address begins with https://"):
        RemoteVecEnv(plain, "Counting", 2, user_token="one")
    with pytest.raises(errors.RemoteUnreachableError, match="give verify='FILE'"):
        RemoteVecEnv(server.url, "Counting", 2, user_token="one")


def test_a_certificate_that_cannot_be_read_is_said_at_once(
    serve: ServerMaker, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate", encoding="ascii")
    with pytest.raises(OSError):  # noqa: PT011  # OpenSSL's own words
        serve(address={"certfile": wrong, "keyfile": certificate[1]})
