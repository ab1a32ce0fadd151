"""``python -m xuance_envs serve``, as a user runs it."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import ServedProcess, wait_until

from xuance_envs.remote.cli import ServeError, add_serve_arguments, server_of
from xuance_envs.remote.remote_vec_env import RemoteVecEnv

ROOT = Path(__file__).resolve().parents[2]


def run(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "xuance_envs", "serve", *args],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


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
    """The processes below a process."""
    found, below = [], [pid]
    while below:
        tasks = Path(f"/proc/{below.pop()}/task").glob("*/children")
        mine = [int(child) for task in tasks for child in task.read_text().split()]
        found += mine
        below += mine
    return found


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--env", "NoSuchEnv-v0", "--port", "0"], "NoSuchEnv"),
        (["--env", "CartPole-v1", "--host", "0.0.0.0"], "without tokens anybody could use"),
        (["--env", "CartPole-v1", "--tokens", "/no/such/file"], "/no/such/file"),
        (["--env", "CartPole-v1", "--max-envs", "0"], "at least 1"),
        (["--env", "CartPole-v1", "--idle-timeout", "inf"], "at least 1"),
        ([], "--env"),
    ],
)
def test_what_the_user_got_wrong_is_said_in_a_line(args: list[str], said: str) -> None:
    answer = run(*args)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--port", "99999"], "expected a port from 0 to 65535"),
        (["--root-path", "envs"], "expected a path such as /envs"),
        (["--trusted-proxy", "x"], "does not appear to be an IP"),
        (["--allow-kwarg", "=1"], "NAME or NAME=VALUE"),
        (["--certfile", "/no/such/file"], "No such file"),
        (["--unix", "/no/such/folder/x"], "/no/such/folder/x"),
    ],
)
def test_so_is_an_option_that_cannot_be(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_serve_arguments(parser)
    try:
        options = parser.parse_args(["--env", "CartPole-v1", *args])
    except SystemExit:
        assert said in capsys.readouterr().err
        return
    with pytest.raises(ServeError, match=said):
        server_of(options)


def test_a_port_that_is_taken_is_said() -> None:
    served = ServedProcess("--env", "CartPole-v1")
    answer = run("--env", "CartPole-v1", "--port", str(served.port))
    assert answer.returncode == 2
    assert "in use" in answer.stderr
    served.close()


def test_tokens_from_the_variable_allow_other_addresses() -> None:
    served = ServedProcess("--env", "CartPole-v1", XUANCE_ENVS_TOKENS="a,b")
    assert httpx.post(f"{served.url}/api/v1/session/create", json={}).status_code == 401
    served.close()


def test_help_explains_every_option() -> None:
    text = run("--help").stdout
    for option in (
        *(
            "--env",
            "--multi-agent",
            "--host",
            "--port",
            "--tokens",
            "--allow-kwarg",
            "--allow-call",
            "--allow-get",
        ),
        *("--allow-set", "--allow-option", "--info", "--tracebacks", "--any-action", "--reload"),
        *("--certfile", "--keyfile", "--unix", "--root-path", "--trusted-proxy", "--log-level"),
    ):
        assert option in text
    assert "XUANCE_ENVS_TOKENS" in text


def test_every_option_is_found_in_the_documentation() -> None:
    page = (ROOT / "docs" / "remote.md").read_text(encoding="utf-8")
    options = set(re.findall(r"--[a-z][a-z-]+", run("--help").stdout)) - {"--help"}
    assert len(options) > 40
    assert [each for each in sorted(options) if not re.search(rf"`{each}[` ]", page)] == []


def test_limits_and_names_reach_the_server() -> None:
    served = ServedProcess(
        *("--env", "CartPole-v1", "--allow-kwarg", "render_mode", "--allow-get", "gravity"),
        *("--max-envs-per-session", "3", "--max-repeats", "7", "--worker-memory", "0"),
    )
    settings: dict[str, Any] = {"env_kwargs": {"render_mode": "rgb_array"}}
    with RemoteVecEnv(served.url, "CartPole-v1", 3, **settings) as envs:
        envs.reset()
        assert envs.render_mode == "rgb_array"
        assert envs.get_attr("gravity") == (9.8,) * 3
        assert envs.render()[0].shape == (400, 600, 3)
    served.close()
