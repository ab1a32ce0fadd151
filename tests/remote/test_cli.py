"""Tests of the command ``python -m xuance_envs serve``."""

from __future__ import annotations

import argparse
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripts import run_script
from serving import ServedProcess, wait_until

from xuance_envs.errors import RemoteLimitError
from xuance_envs.remote.cli import CommandError
from xuance_envs.remote.cli.serve import add_serve_arguments, make_server
from xuance_envs.remote.remote_vec_env import RemoteVecEnv
from xuance_envs.remote.server.limits import PROCESSES_PER_WORKER

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow("starts a server from the command line")
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_it_says_what_it_serves_where_and_for_whom_and_ends_when_told_to(
    tmp_path: Path, sign: int
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("one\ntwo\n", encoding="utf-8")
    served = ServedProcess("--env", "CartPole-v1", "--env", "Acrobot-v1", "--tokens", str(tokens))
    assert served.said.startswith("serving CartPole-v1, Acrobot-v1 at http://127.0.0.1:")
    assert served.said.endswith("(2 tokens)\n")
    with RemoteVecEnv(served.url, "Acrobot-v1", 2, user_token="two") as envs:
        envs.reset()
        children = workers_of(served.pid)
        assert children
    envs = RemoteVecEnv(served.url, "CartPole-v1", 2, user_token="one")
    envs.reset()
    children = workers_of(served.pid)
    status = served.close(sign)
    assert status in (0, 130, -sign)
    wait_until(lambda: not [pid for pid in children if Path(f"/proc/{pid}").exists()])
    envs.close()


def workers_of(pid: int) -> list[int]:
    """Return the descendants of a process."""
    found, below = [], [pid]
    while below:
        tasks = Path(f"/proc/{below.pop()}/task").glob("*/children")
        mine = [int(child) for task in tasks for child in task.read_text().split()]
        found += mine
        below += mine
    return found


def test_a_busy_event_loop_delays_steps_in_threads_little(tmp_path: Path) -> None:
    """At Python's 5 ms, a step took half a second beside 1,200 connections that read nothing."""
    script = """
        import sys
        from xuance_envs.__main__ import main
        from xuance_envs.remote.server import Server

        Server.run = lambda self: print(sys.getswitchinterval())
        main(["serve", "--env", "CartPole-v1", "--port", "0"])
    """
    output = run_script(tmp_path, script, stderr=subprocess.DEVNULL)
    assert float(output.split()[-1]) <= 1e-3


def test_what_the_user_got_wrong_is_said_in_a_line() -> None:
    command = [sys.executable, "-m", "xuance_envs", "serve", "--env", "NoSuchEnv-v0", "--port", "0"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 2
    assert "cannot serve 'NoSuchEnv-v0': NameNotFound" in answer.stderr
    assert "Traceback" not in answer.stderr


def options_of(*args: str) -> argparse.Namespace:
    """Parse command-line arguments in this process."""
    parser = argparse.ArgumentParser()
    add_serve_arguments(parser)
    return parser.parse_args(args)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--host", "0.0.0.0"], "host: expected a loopback address"),
        (["--tokens", "/no/such/file"], "/no/such/file"),
        (["--max-envs", "0"], "at least 1"),
        (["--max-processes", str(PROCESSES_PER_WORKER - 1)], "at least"),
        (["--idle-timeout", "inf"], "at least 1"),
        (["--port", "99999"], "expected a port from 0 to 65535"),
        (["--port", "http"], "expected a port from 0 to 65535, got http"),
        (["--root-path", "envs"], "argument --root-path: expected a path such as /envs"),
        (["--trusted-proxy", "x"], "does not appear to be an IP"),
        (["--allow-kwarg", "=1"], "NAME or NAME=VALUE"),
        (["--certfile", "/no/such/file"], "No such file or directory: '/no/such/file'"),
        (["--unix", "/no/such/folder/x"], "/no/such/folder/x"),
    ],
)
def test_so_is_an_option_that_cannot_be(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        options = options_of("--env", "CartPole-v1", *args)
    except SystemExit:
        assert said in capsys.readouterr().err
        return
    with pytest.raises(CommandError, match=said):
        make_server(options)


def test_something_to_serve_has_to_be_said() -> None:
    with pytest.raises(CommandError, match="--env"):
        make_server(options_of())


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(CommandError, match="in use"):
            make_server(options_of("--env", "CartPole-v1", "--port", port))


def test_tokens_from_the_variable_allow_other_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XUANCE_ENVS_TOKENS", "a,b")
    options = options_of("--env", "CartPole-v1", "--host", "0.0.0.0", "--port", "0")
    with make_server(options) as server:
        port = server.url.rpartition(":")[2]
        answer = httpx.post(f"http://127.0.0.1:{port}/api/v1/session/create", json={})
        assert answer.status_code == 401


def test_every_option_is_found_in_the_documentation() -> None:
    page = (ROOT / "docs" / "remote.md").read_text(encoding="utf-8")
    parser = argparse.ArgumentParser()
    add_serve_arguments(parser)
    text = parser.format_help()
    assert "XUANCE_ENVS_TOKENS" in text
    options = set(re.findall(r"--[a-z][a-z-]+", text)) - {"--help"}
    assert len(options) > 40
    assert [each for each in sorted(options) if not re.search(rf"`{each}[` ]", page)] == []


def test_limits_and_names_reach_the_server() -> None:
    pytest.importorskip("pygame")
    options = options_of(
        *("--env", "CartPole-v1", "--allow-kwarg", "render_mode", "--allow-get", "gravity"),
        *("--max-envs-per-session", "3", "--max-repeats", "7", "--worker-memory", "0"),
        *("--port", "0"),
    )
    settings: dict[str, Any] = {"env_kwargs": {"render_mode": "rgb_array"}}
    with make_server(options) as server:
        with RemoteVecEnv(server.url, "CartPole-v1", 3, **settings) as envs:
            envs.reset()
            assert envs.render_mode == "rgb_array"
            assert envs.get_attr("gravity") == (9.8,) * 3
            assert envs.render()[0].shape == (400, 600, 3)
        with pytest.raises(RemoteLimitError, match="limits environments per session to 3"):
            RemoteVecEnv(server.url, "CartPole-v1", 4)
