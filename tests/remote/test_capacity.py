"""Limits in force, which depend on the number of names and on file descriptors."""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from serving import API_PREFIX, Asking, ServerMaker, wait_until

from xuance_envs.engine.system.current import system
from xuance_envs.remote.cli.serve import add_serve_arguments, make_server
from xuance_envs.remote.server.hosting import sessions
from xuance_envs.remote.server.limits import PROCESSES_PER_WORKER

ROOT = Path(__file__).resolve().parents[2]


def token_file(folder: Path, lines: list[str]) -> Path:
    file = folder / "tokens"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    file.chmod(0o600)
    return file


def options_of(*args: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_serve_arguments(parser)
    return parser.parse_args(["--env", "CartPole-v1", "--port", "0", *args])


def code_of(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


# -- tokens -------------------------------------------------------------------------


def test_each_of_a_hundred_tokens_has_a_session(tmp_path: Path) -> None:
    file = token_file(tmp_path, [f"student{n} token{n}" for n in range(100)])
    with make_server(options_of("--tokens", str(file))) as server:
        asking = [Asking(server, f"token{n}") for n in range(100)]
        assert len({ask.id for ask in asking}) == 100
        assert asking[0].post("session/create").status_code == 429


def test_no_token_can_take_the_share_of_another(tmp_path: Path) -> None:
    file = token_file(tmp_path, ["a one", "b two", "b three"])
    totals = ("--max-sessions", "4", "--max-envs", "5", "--max-processes", "8")
    with make_server(options_of("--tokens", str(file), *totals)) as server:
        first, second = Asking(server, "one"), Asking(server, "two")
        assert first.ask("create", num_envs=3).status_code == 429
        for ask in (first, second):
            assert ask.ask("create", num_envs=2).status_code == 200
            refused = ask.ask("create", num_envs=1)
            assert (refused.status_code, code_of(refused)) == (429, "environments")
            assert ask.post("session/create").status_code == 200
            assert code_of(ask.post("session/create")) == "sessions"


def test_limits_that_are_given_stay(tmp_path: Path) -> None:
    file = token_file(tmp_path, [f"s{n} t{n}" for n in range(3)])
    given = ("--max-sessions", "2", "--max-sessions-per-token", "2", "--max-envs-per-token", "0")
    with make_server(options_of("--tokens", str(file), *given)) as server:
        asking = [Asking(server, "t0"), Asking(server, "t0")]
        assert code_of(asking[0].post("session/create")) == "sessions"
        assert asking[0].ask("create", num_envs=200).status_code == 200
        assert asking[1].ask("create", num_envs=200).status_code == 200


def test_without_tokens_limits_are_as_listed() -> None:
    with make_server(options_of()) as server:
        asking = [Asking(server) for _ in range(8)]
        assert "8 sessions per token" in asking[0].post("session/create").text


def test_limits_follow_the_tokens_when_they_are_reloaded(
    serve: ServerMaker, tmp_path: Path
) -> None:
    by_tokens = frozenset({"sessions", "sessions_per_token"})
    file = token_file(tmp_path, ["a one"])
    server = serve(token_file=file, sessions=2, limits_by_tokens=by_tokens)
    first = [Asking(server, "one"), Asking(server, "one")]
    assert first[0].post("session/create").status_code == 429
    token_file(tmp_path, ["a one", "b two", "c three"])

    def status() -> int:
        headers = {"Authorization": "Bearer three"}
        url = f"{server.url}{API_PREFIX}/session/create"
        return httpx.post(url, json={"nonce": "x" * 24}, headers=headers).status_code

    wait_until(lambda: status() == 200)
    for ask in first:  # while these are open, the limit of two stays
        ask.close()
    assert Asking(server, "two").close().status_code == 200
    assert first[0].post("session/create").status_code == 200
    assert "1 session per token" in first[0].post("session/create").text


@pytest.mark.slow("uses up seconds of CPU time")
@pytest.mark.skipif(not system.HAS_GUARDIANS, reason="not on this system")
def test_a_reload_forgets_no_used_cpu_time(
    serve: ServerMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "USAGE_INTERVAL", 0.2)
    line = "alice one max-cpu-per-token=1"
    server = serve(token_file=token_file(tmp_path, [line]))
    alice = Asking(server, "one").begin("Busy")
    alice.ask("vectorized_step", actions=[1])
    wait_until(lambda: alice.ask("vectorized_reset").status_code == 429, seconds=100)
    alice.close()

    def create() -> httpx.Response:
        ask = Asking(server, "one")
        answer = ask.ask("create", env_id="Busy")
        ask.close()
        return answer

    assert code_of(create()) == "cpu"
    token_file(tmp_path, [line, "bob two"])
    wait_until(
        lambda: (
            httpx.post(
                f"{server.url}{API_PREFIX}/session/create",
                json={"nonce": "x" * 24},
                headers={"Authorization": "Bearer two"},
            ).status_code
            == 200
        )
    )
    assert code_of(create()) == "cpu"
    token_file(tmp_path, ["alice one max-cpu-per-token=1000", "bob two"])
    wait_until(lambda: create().status_code == 200)


# -- file descriptors ---------------------------------------------------------------


@pytest.mark.parametrize(
    "files", [128, *(pytest.param(files, marks=pytest.mark.long) for files in (160, 400))]
)
def test_all_connections_are_served_when_all_processes_run(files: int) -> None:
    serve = f"{sys.executable} -m xuance_envs serve --env CartPole-v1 --port 0"
    serve += " --max-processes-per-session 99 --max-processes-per-token 0 2>&1"
    with (
        subprocess.Popen(
            ["sh", "-c", f"ulimit -n {files}; exec {serve}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.terminate)
        assert process.stdout is not None
        said = process.stdout.readline()
        while "serving CartPole-v1 at" not in said:
            said += process.stdout.readline()
        in_force = re.search(rf"(\d+) processes .*, (\d+) connections, {files} open", said)
        assert in_force is not None, said
        processes, connections = map(int, in_force.groups())
        assert f"allows only {processes} of 256 processes and {connections} of 1024" in said
        workers = processes // PROCESSES_PER_WORKER
        assert workers >= files / 32
        assert connections >= files / 8
        url = said[said.rindex("http://") :].split()[0]
        address = urlsplit(url).hostname, urlsplit(url).port
        with httpx.Client(base_url=url + API_PREFIX, timeout=60) as client:
            message = {"session_id": client.post("session/create", json={}).json()["session_id"]}
            for _ in range(workers):
                assert client.post("episode/create", json=message).status_code == 200
            refused = client.post("episode/create", json=message)
            while refused.status_code == 200:  # environments share the running processes
                refused = client.post("episode/create", json=message)
            assert refused.status_code == 429, refused.text
        opened = [socket.create_connection(address, timeout=20) for _ in range(connections)]
        for connection in opened:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for connection in opened:
            with closing(connection):
                assert b"200 OK" in connection.recv(1000)


def test_too_few_descriptors_are_an_error() -> None:
    serve = f"ulimit -n 80; exec {sys.executable} -m xuance_envs serve --env CartPole-v1 --port 0"
    ended = subprocess.run(
        ["sh", "-c", serve], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert "needs a limit of at least 96 open files, got 80: raise it" in ended.stderr
    assert "Traceback" not in ended.stderr
