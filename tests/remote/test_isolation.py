"""Failing environments of one session do not affect other sessions."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from leftovers import is_running
from serving import TESTS, Asking, ServedProcess, ServerMaker, wait_until

from xuance_envs.remote.settings import Permissions

RAISES, EXITS, IS_KILLED, HANGS, HOARDS, ENDS_GROUP, KILLS_GROUP = 1, 2, 3, 4, 5, 7, 8

HARMS = [
    pytest.param(EXITS, "worker_died", "exited with code 7", id="exits"),
    pytest.param(IS_KILLED, "worker_died", "SIGKILL", id="is killed"),
    pytest.param(HANGS, "worker_timeout", "within 2 s", id="hangs"),
    pytest.param(HOARDS, "env_failed", "MemoryError", id="hoards"),
]


@pytest.mark.parametrize("auto_reset", [False, True], ids=["repeating", "resetting itself"])
@pytest.mark.parametrize(("harm", "code", "told"), HARMS)
def test_an_environment_that_does_harm_does_it_to_its_own_session_only(
    serve: ServerMaker, harm: int, code: str, told: str, auto_reset: bool
) -> None:
    server = serve(request=2.0, memory=1000 * 2**20)
    victim = Asking(server).begin("Mischievous", num_envs=2, auto_reset=auto_reset)
    others = [
        Asking(server).begin("Mischievous", num_envs=2, auto_reset=auto_reset) for _ in range(2)
    ]
    answer = victim.ask("vectorized_step", actions=[0, harm])
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert error["code"] == code
    assert told in error["message"]
    for other in others:
        step = other.ask("vectorized_step", actions=[0, 0])
        assert step.status_code == 200
    # A new group of environments in the same session works, too.
    episodes = victim.ask("create", env_id="Mischievous").json()["episode_ids"]
    assert victim.ask("vectorized_reset", episode_ids=episodes).status_code == 200
    assert victim.close().status_code == 200


@pytest.fixture
def served() -> Iterator[ServedProcess]:
    """Start a server in its own process group, which its environments may signal."""
    server = ServedProcess(*TESTS)
    yield server
    server.close()


@pytest.mark.parametrize(
    ("harm", "number"), [(ENDS_GROUP, signal.SIGTERM), (KILLS_GROUP, signal.SIGKILL)]
)
def test_a_signal_to_its_process_group_ends_one_process_of_one_session(
    served: ServedProcess, harm: int, number: signal.Signals
) -> None:
    victim, other = (Asking(served).begin("Mischievous", num_envs=2) for _ in range(2))
    (second,) = victim.ask("create", env_id="Mischievous").json()["episode_ids"]
    victim.ask("vectorized_reset", episode_ids=[second])
    first = {"episode_ids": victim.episodes[:2]}
    answer = victim.ask("vectorized_step", actions=[0, harm], **first)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "worker_died")
    assert number.name in answer.json()["error"]["message"]
    step = victim.ask("vectorized_step", actions=[0], episode_ids=[second])
    assert step.status_code == 200
    assert other.ask("vectorized_step", actions=[0, 0]).status_code == 200


def test_ctrl_c_at_the_servers_terminal_closes_the_environments(tmp_path: Path) -> None:
    terminal, end = os.openpty()
    closed = tmp_path / "closed"
    server = ServedProcess(*TESTS, terminal=end, CLOSED=str(closed))
    ask = Asking(server).begin("Closing")
    pid = ask.ask("call", operation="get_attr", name="pid").json()["results"][0]
    assert os.tcgetpgrp(terminal) == server.pid
    os.write(terminal, b"\x03")
    assert server.wait() in (0, 130, -signal.SIGINT)
    assert closed.exists()
    wait_until(lambda: not is_running(pid))
    os.close(terminal)
    os.close(end)


def test_an_exception_is_told_and_the_session_goes_on(serve: ServerMaker) -> None:
    ask = Asking(serve(allow=Permissions(tracebacks=True))).begin("Mischievous", num_envs=2)
    answer = ask.ask("vectorized_step", actions=[RAISES, 0])
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (409, "env_failed")
    assert error["details"]["env_index"] == 0
    assert error["details"]["reason"] == "ValueError: as told"
    assert "remote_envs.py" in error["details"]["env_traceback"]
    assert ask.ask("vectorized_step", actions=[0, 0]).status_code == 409, "to be reset first"
    assert ask.ask("vectorized_reset").status_code == 200
    assert ask.ask("vectorized_step", actions=[0, 0]).status_code == 200


def test_what_is_left_of_a_dead_group_says_so(serve: ServerMaker) -> None:
    ask = Asking(serve()).begin("Mischievous", num_envs=2, auto_reset=True)
    ask.ask("vectorized_step", actions=[EXITS, 0])
    for path, message in (("vectorized_reset", {}), ("vectorized_step", {"actions": [0, 0]})):
        answer = ask.ask(path, **message)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "closed")


def test_a_worker_killed_between_requests_is_noticed(serve: ServerMaker) -> None:
    server = serve(allow=Permissions(gets=frozenset({"pid"})))
    ask = Asking(server).begin("Mischievous")
    pid = ask.ask("call", operation="get_attr", name="pid").json()["results"][0]
    os.kill(pid, signal.SIGKILL)
    answer = ask.ask("vectorized_reset")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "worker_died")
