"""Limits per session and token: environments, processes, memory and time."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from leftovers import is_running
from leftovers import wait_until as comes_true
from remote_envs import ForgingEnv, SlowStartEnv
from serving import API_PREFIX, TESTS, Asking, ServedProcess, ServerMaker, wait_until

from xuance_envs.engine.system.current import system
from xuance_envs.remote.server.access import Permissions
from xuance_envs.remote.server.hosting import sessions
from xuance_envs.remote.server.limits import PROCESSES_PER_WORKER, ByteBudget
from xuance_envs.remote.server.monitoring import BackgroundHandler
from xuance_envs.remote.wire.failures import RefusedError

LINE_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
ROOT = Path(__file__).resolve().parents[2]


def code_of(answer: httpx.Response) -> Any:
    return answer.json()["error"]["code"]


# --- counts -------------------------------------------------------------------------------------


def test_the_environments_of_a_token_are_limited(serve: ServerMaker) -> None:
    server = serve(tokens=("a", "b"), environments_per_token=5)
    asking = [Asking(server, token) for token in ("a", "a", "b")]
    counts = (4, 2, 5)
    answers = [
        ask.ask("create", env_id="Counting", num_envs=count)
        for ask, count in zip(asking, counts, strict=True)
    ]
    assert [answer.status_code for answer in answers] == [200, 429, 200]
    assert "environments per token to 5" in answers[1].text
    asking[0].close()
    assert asking[1].ask("create", env_id="Counting", num_envs=5).status_code == 200


def test_the_processes_of_a_token_and_of_all_are_limited(serve: ServerMaker) -> None:
    two, three = 2 * PROCESSES_PER_WORKER, 3 * PROCESSES_PER_WORKER
    server = serve(tokens=("a", "b"), processes_per_token=two, processes=three)
    asking = [Asking(server, token) for token in ("a", "a", "a", "b", "b")]
    answers = [ask.ask("create", env_id="Counting") for ask in asking]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 200, 429]
    assert f"processes per token to {two}" in answers[2].text
    assert f"processes at the same time to {three}" in answers[4].text
    asking[0].close()
    assert asking[4].ask("create", env_id="Counting").status_code == 200


@pytest.mark.skipif(not system.HAS_GUARDIANS, reason="not on this system")
def test_the_limit_counts_the_processes_of_the_system(serve: ServerMaker) -> None:
    ask = Asking(serve(processes_per_session=7, allow=Permissions(gets=frozenset({"pid"}))))
    pids = set()
    for _ in range(5):
        episodes = ask.ask("create", env_id="Counting").json()["episode_ids"]
        asked = {"operation": "get_attr", "name": "pid", "episode_ids": episodes}
        pids.update(ask.ask("call", **asked).json()["results"])
    parent_of = system.parents()
    guardians = {parent_of[pid] for pid in pids}
    below = [pid for each in guardians for pid in (each, *system.descendants(each, parent_of))]
    assert (len(pids), len(below)) == (3, 6)


def test_a_process_that_died_does_not_count(serve: ServerMaker) -> None:
    ask = Asking(serve(processes=PROCESSES_PER_WORKER))
    for _ in range(2):
        ids = ask.ask("create", env_id="Mischievous", auto_reset=True).json()["episode_ids"]
        ask.ask("vectorized_reset", episode_ids=ids)
        died = ask.ask("vectorized_step", episode_ids=ids, actions=[2])
        assert code_of(died) == "worker_died"


def test_environments_count_while_they_are_made_and_end_with_their_session(
    background: Any, serve: ServerMaker
) -> None:
    server = serve({"Slow": SlowStartEnv}, environments=3)
    making, other = Asking(server), Asking(server)
    made = background(making.ask, "create", num_envs=3)
    wait_until(lambda: bool(multiprocessing.active_children()))
    assert code_of(other.ask("create")) == "environments"
    start = time.monotonic()
    assert making.close().status_code == 200
    assert multiprocessing.active_children() == []
    assert made.result().status_code == 404
    assert time.monotonic() - start < 20, "it takes 60 s to give such environments up"


@pytest.mark.slow("two requests hang until their limit, while others must come on a slow machine")
def test_the_requests_of_a_token_at_once_are_limited(background: Any, serve: ServerMaker) -> None:
    server = serve(requests_per_session=1, sessions_per_token=2, request=5.0)
    asking = [Asking(server) for _ in range(2)]
    for ask in asking:
        ask.begin("Mischievous", auto_reset=True)
    steps = [background(ask.ask, "vectorized_step", actions=[4]) for ask in asking]
    refused: list[httpx.Response] = []

    def is_refused() -> bool:
        for k, step in enumerate(steps):
            if step.done():  # it was refused: the request below came first
                steps[k] = background(asking[k].ask, "vectorized_step", actions=[4])
        refused.append(httpx.post(f"{server.url}{API_PREFIX}/session/create", json={}))
        return code_of(refused[-1]) == "requests"

    wait_until(is_refused)
    assert refused[-1].status_code == 429


def test_room_is_waited_for_and_not_for_ever() -> None:
    async def share() -> None:
        room = ByteBudget(100, "of these")
        async with room.reserve(60, 1.0):
            assert room.has_room(40)
            with pytest.raises(RefusedError, match="too many of these"):
                async with room.reserve(60, 0.01):
                    raise AssertionError("there was no room")
            waiting = asyncio.create_task(_held(room, 60))
            await asyncio.sleep(0.01)
            assert not waiting.done()
        assert await waiting
        async with room.reserve(1000, 0.01):  # a single reservation may exceed the budget
            assert not room.has_room(1)

    async def _held(room: ByteBudget, size: int) -> bool:
        async with room.reserve(size, 20.0):
            return True

    asyncio.run(share())


# --- rates --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"requests_rate_per_session": 20.0}, {"steps": 1}),
        ({"requests_rate_per_token": 20.0}, {"steps": 1}),
        ({"steps_rate_per_session": 200.0}, {"steps": 10}),
        ({"steps_rate_per_token": 200.0}, {"steps": 10}),
    ],
    ids=lambda value: next(iter(value)),
)
def test_who_is_too_fast_is_slowed(
    serve: ServerMaker, limits: dict[str, float], message: dict[str, int]
) -> None:
    ask = Asking(serve(**limits))
    ask.ask("create", env_id="CartPole")
    start, count = time.monotonic(), 0
    while time.monotonic() - start < 1.0:
        assert ask.ask("vectorized_reset").status_code == 200
        assert ask.ask("vectorized_step", actions=[count % 2], **message).status_code == 200
        count += 1
    assert count <= 100, "the rate allows for 40, and without one there were 600"


def test_who_would_have_to_wait_too_long_is_refused(serve: ServerMaker) -> None:
    ask = Asking(serve(steps_rate_per_session=1.0)).begin("CartPole", num_envs=16)
    assert ask.ask("vectorized_step", actions=[0] * 16, steps=2).status_code == 200
    refused = ask.ask("vectorized_step", actions=[0] * 16, steps=2)
    assert (refused.status_code, code_of(refused)) == (429, "rate")
    assert refused.headers["retry-after"]


# --- what processes take ------------------------------------------------------------------------


@pytest.mark.skipif(not system.HAS_GUARDIANS, reason="not on this system")
@pytest.mark.parametrize(
    ("limits", "action"),
    [
        ({"cpu_per_session": 1.0}, 1),
        ({"memory_per_session": 2**27}, 2),
        ({"memory_per_token": 2**27}, 2),
    ],
    ids=["cpu", "memory", "memory of a token"],
)
def test_a_session_that_takes_too_much_is_ended_and_told_why(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any], action: int
) -> None:
    monkeypatch.setattr(sessions, "USAGE_INTERVAL", 0.2)
    server = serve(tokens=("a", "b"), **limits)
    greedy, other = Asking(server, "a"), Asking(server, "b")
    for ask in (greedy, other):
        ask.ask("create", env_id="Busy")
        assert ask.ask("vectorized_reset").status_code == 200
    greedy.ask("vectorized_step", actions=[action])
    # A second of CPU time takes many on a busy machine.
    wait_until(lambda: greedy.ask("vectorized_reset").status_code == 429, seconds=100)
    assert "this server limits" in greedy.ask("vectorized_reset").text
    assert other.ask("vectorized_reset").status_code == 200


@pytest.mark.skipif(not system.HAS_GUARDIANS, reason="not on this system")
def test_the_processor_time_of_ended_workers_counts(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "USAGE_INTERVAL", 0.1)
    server = serve(tokens=("a",), cpu_per_token=0.2)
    ask = Asking(server, "a").begin("Busy")
    ask.ask("vectorized_step", actions=[1])
    wait_until(lambda: ask.ask("vectorized_reset").status_code == 429, seconds=100)
    ask.close()
    refused = Asking(server, "a").ask("create", env_id="Busy")
    assert refused.status_code == 429
    assert "CPU seconds per token to 0.2, and they are used up" in refused.text


# --- what environments start --------------------------------------------------------------------


def sleepers(mark: str) -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if command == f"sleep\0{mark}\0".encode():
            found.append(int(pid))
    return found


ENDS = ["closed", "exits", "is killed", "hangs", "the server ends"]


@pytest.mark.skipif(not system.HAS_GUARDIANS, reason="not on this system")
@pytest.mark.parametrize("end", ENDS)
def test_what_environments_start_ends_with_them(serve: ServerMaker, end: str) -> None:
    server = serve(allow=Permissions(gets=frozenset({"mark"})), request=2.0)
    ask = Asking(server)
    ask.ask("create", env_id="Breeding", auto_reset=True)
    assert ask.ask("vectorized_reset").status_code == 200
    mark = ask.ask("call", operation="get_attr", name="mark").json()["results"][0]
    wait_until(lambda: len(sleepers(mark)) == 2)
    if end == "closed":
        ask.close()
    elif end == "the server ends":
        server.close()
    else:
        ask.ask("vectorized_step", actions=[ENDS.index(end) + 1])
    wait_until(lambda: sleepers(mark) == [])


@pytest.mark.skipif(not system.HAS_GUARDIANS, reason="not on this system")
def test_what_environments_start_ends_with_a_server_that_is_killed() -> None:
    server = ServedProcess(*TESTS)
    ask = Asking(server).begin("Breeding")
    mark = ask.ask("call", operation="get_attr", name="mark").json()["results"][0]
    wait_until(lambda: len(sleepers(mark)) == 2)
    server.close(signal.SIGKILL)
    wait_until(lambda: sleepers(mark) == [])


@pytest.mark.skipif(not system.HAS_GUARDIANS, reason="not on this system")
@pytest.mark.parametrize("stopped", ["the worker", "its guardian", "both"])
def test_a_killed_server_leaves_no_stopped_process(stopped: str) -> None:
    server = ServedProcess(*TESTS)
    ask = Asking(server)
    ask.ask("create", env_id="Counting")
    pid = ask.ask("call", operation="get_attr", name="pid").json()["results"][0]
    family = {
        "the worker": [pid],
        "its guardian": [system.parents()[pid]],
        "both": [system.parents()[pid], pid],
    }
    processes = [server.pid, *system.descendants(server.pid, system.parents())]
    assert len(processes) >= 5  # including the fork server and the resource tracker
    for each in family[stopped]:
        os.kill(each, signal.SIGSTOP)
    server.close(signal.SIGKILL)
    try:
        wait_until(lambda: not any(map(is_running, processes)), seconds=10.0)
    finally:
        for each in filter(is_running, processes):
            os.kill(each, signal.SIGKILL)


# --- the log ------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="not on this system")
def test_a_log_that_nobody_reads_stops_nobody() -> None:
    command = [sys.executable, "-m", "xuance_envs", "serve", "--env", "CartPole-v1", "--port", "0"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)  # about 60 lines fill it
        url = process.stdout.readline().split()[3]
        with httpx.Client(base_url=url, timeout=20) as client:
            for _ in range(300):
                assert client.get("/healthz").status_code == 200
            assert "log_lines_dropped_total 0" in client.get("/metrics").text, "they wait"
        process.send_signal(signal.SIGTERM)
        assert comes_true(lambda: process.poll() is not None, 30.0)


def test_a_record_is_a_line_whatever_it_contains() -> None:
    reading, writing = os.pipe()
    logger = logging.Logger("of this test")
    handler = BackgroundHandler(writing)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    forged = "".join(f"{each}INFO forged" for each in LINE_BREAKS)
    logger.warning("session 1: %s", f"said{forged}\t\x00\x1b[2J\x7f\x9b\u202e é 漢")
    try:
        raise ValueError(f"said{forged}")
    except ValueError:
        logger.exception("failed")
    logger.warning("%d", forged)  # cannot be formatted
    handler.close()
    os.close(writing)
    with open(reading, encoding="utf-8", newline="") as log:
        text = log.read()
    assert len(text.split("\n")) == 4
    assert len(text.splitlines()) == 3
    assert all(line.isprintable() for line in text.splitlines())
    said, failed, _ = text.splitlines()
    assert said.startswith(r"WARNING session 1: said\nINFO forged\rINFO forged")
    assert said.endswith(r"\t\x00\x1b[2J\x7f\x9b\u202e é 漢")
    assert r"ERROR failed\nTraceback (most recent call last):\n" in failed


def test_an_environment_cannot_forge_a_line(serve: ServerMaker) -> None:
    reading, writing = os.pipe()
    handler, logger = BackgroundHandler(writing), logging.getLogger("xuance_envs")
    logger.addHandler(handler)
    try:
        ask = Asking(serve({"Forging": ForgingEnv})).begin()
        assert code_of(ask.ask("vectorized_step", actions=[0])) == "env_failed"
    finally:
        logger.removeHandler(handler)
        handler.close()
        os.close(writing)
    with open(reading, encoding="utf-8", newline="") as log:
        lines = log.read().splitlines()
    assert [line for line in lines if line.startswith("FORGED")] == []
    assert any("failed in 'step'" in line and r"\nFORGED" in line for line in lines)


def test_what_the_log_had_no_room_for_is_counted_and_told() -> None:
    reading, writing = os.pipe()
    logger = logging.Logger("of this test")
    handler = BackgroundHandler(writing)
    logger.addHandler(handler)
    line = "x" * 1000
    while not handler.dropped:
        logger.warning("%s", line)
    received = b""
    while b"earlier lines were dropped" not in received:
        received += os.read(reading, 2**16)
        logger.warning("more")
    assert received.startswith(line.encode() + b"\n" + line.encode())
    handler.close()
    os.close(reading)
    os.close(writing)
