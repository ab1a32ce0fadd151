"""Environments of one request in several workers: they are what they are in one."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest
from comparing import assert_same
from leftovers import is_running
from remote_envs import CountingEnv, cart_pole
from serving import TESTS, Asking, ServedProcess, ServerMaker, wait_until

from xuance_envs import errors
from xuance_envs.engine.group.group_states import GroupStates
from xuance_envs.engine.system.current import system
from xuance_envs.remote.client import remote_driver
from xuance_envs.remote.remote_vec_env import RemoteVecEnv
from xuance_envs.remote.server import Server
from xuance_envs.remote.server.hosting import sessions
from xuance_envs.remote.server.limits import PROCESSES_PER_WORKER
from xuance_envs.remote.settings import Permissions
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv

RAISES, EXITS, IS_KILLED, HANGS, HOARDS = 1, 2, 3, 4, 5

MAY_ASK = Permissions(gets=frozenset({"pid", "mark"}))
needs_guardians = pytest.mark.skipif(not system.HAS_GUARDIANS, reason="not on this system")


class VariousEnv(CountingEnv):
    """Environment whose infos have keys in an order of its own, and texts at times."""

    def step(self, action):
        *result, _ = super().step(action)
        info = {"a": 1, "b": np.float32(2)} if self.number % 2 else {"b": 3, "a": np.ones(2)}
        return *result, {**info, **({"text": "x"} if self.steps == 2 and self.number > 4 else {})}


class SlowerEnv(CountingEnv):
    """Environment that is slow if its seed is 2."""

    def step(self, action):
        time.sleep(action / 10 if self.number == 2 else 0)
        return super().step(action)


class UnsavableEnv(CountingEnv):
    """Environment of which one, of several, has a state that cannot be saved."""

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        self.open_file = open(os.devnull) if self.number == 3 else None  # noqa: SIM115
        return result


class ReportingEnv(CountingEnv):
    """Environment that reports how many states its process keeps."""

    @property
    def stored(self):
        return len(GroupStates._stored)


def make(
    server: Server | ServedProcess, env_id: str, num_envs: int, workers: int, **how: Any
) -> Asking:
    """Return a session with reset environments in workers."""
    ask = Asking(server, how.pop("token", None))
    how = {"auto_reset": True, **how}
    made = ask.ask("create", env_id=env_id, num_envs=num_envs, num_workers=workers, seed=0, **how)
    assert made.status_code == 200, made.text
    assert ask.ask("vectorized_reset").status_code == 200
    return ask


def attribute(ask: Asking, name: str = "pid", episodes: list[str] | None = None) -> list[Any]:
    episodes = ask.episodes if episodes is None else episodes
    answer = ask.ask("call", operation="get_attr", name=name, episode_ids=episodes)
    return list(answer.json()["results"])


def step_in_msgpack(ask: Asking, episodes: list[str]) -> httpx.Response:
    message = {"session_id": ask.id, "actions": [0] * len(episodes), "episode_ids": episodes}
    kind = "application/msgpack"
    headers, content = {"Content-Type": kind, "Accept": kind}, msgpack.packb(message)
    return ask.client.post("episode/vectorized_step", content=content, headers=headers)


def error_of(answer: Any) -> tuple[str, str]:
    error = answer.json()["error"]
    return error["code"], error["message"]


# --- results ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.long), 3, 7])
def test_steps_are_those_of_the_environments_here(serve: ServerMaker, workers: int) -> None:
    served = {"CartPole": cart_pole, "Various": VariousEnv}
    server = serve(served, workers=workers)
    for env_id, function in served.items():
        here = DummyVecEnv([function] * 7, env_seed=1)
        rng = np.random.default_rng(0)
        with here, RemoteVecEnv(server.url, env_id, 7, seed=1, num_workers=workers) as envs:
            for vec_env in (envs, here):
                vec_env.reset()
            for at in range(60):
                actions = rng.integers(2, size=7)
                got, expected = envs.step(actions), here.step(actions)
                assert_same(got[:4], expected[:4])
                assert_same(list(got[4]), list(expected[4]))
                if at % 20 == 7:
                    got, expected = (each.reset(env_ids=[6, 1]) for each in (envs, here))
                    assert_same(got[0], expected[0])
                    assert_same(list(got[1]), list(expected[1]))


def test_steps_are_frames_where_the_workers_have_the_same_columns(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[bool] = []
    parse = remote_driver.RemoteDriver._parse_step

    def counted(self: Any, answer: Any) -> Any:
        frames.append("frame" in answer)
        return parse(self, answer)

    monkeypatch.setattr(remote_driver.RemoteDriver, "_parse_step", counted)
    server = serve({"CartPole": cart_pole}, workers=2)
    with RemoteVecEnv(server.url, "CartPole", 4, num_workers=2) as envs:
        envs.reset(seed=0)
        for _ in range(60):
            envs.step([1, 1, 1, 1])
    assert frames[-1]
    assert sum(frames) > 40


def test_other_clients_do_not_wait_for_the_slowest_worker(serve: ServerMaker) -> None:
    server = serve({"Slower": SlowerEnv}, workers=3)
    other = make(server, "Slower", 1, 1)
    with RemoteVecEnv(server.url, "Slower", 3, seed=0, num_workers=3) as envs:
        envs.reset()
        for _ in range(3):
            envs.step([1, 1, 1])  # from now on, replies need no objects
        envs.step_async([9, 9, 9])
        time.sleep(0.2)
        assert other.ask("vectorized_step", actions=[0]).status_code == 200
        assert not envs._ledger.ready_by(0.0)
        envs.step_wait()
        (found,) = envs.statistics()
        assert (found.steps, found.slowest_env) == (4, 2)


def test_a_repeated_action_reaches_the_environments_of_all_workers(serve: ServerMaker) -> None:
    ask = make(serve(workers=3), "Counting", 4, 3, auto_reset=False)
    alone = make(serve(), "Counting", 4, 1, auto_reset=False)
    for steps in (2, 5, 1):
        for each in (ask, alone):
            each.answer = each.ask("vectorized_step", actions=[1, 2, 3, 4], steps=steps).json()
        assert ask.answer == alone.answer
    some = [ask.episodes[3], ask.episodes[0]]
    answer = ask.ask("vectorized_reset", episode_ids=some, seed=[8, 9]).json()
    assert answer["observations"] == [[8, 1, 0], [9, 1, 0]]


# --- processes ----------------------------------------------------------------------------------


def test_each_worker_is_a_process_and_has_the_limits_of_one(serve: ServerMaker) -> None:
    server = serve(allow=MAY_ASK, workers=3, memory=1000 * 2**20)
    ask, single = make(server, "Mischievous", 5, 3), make(server, "Mischievous", 1, 1)
    pids = attribute(ask)
    assert [pids.index(pid) for pid in pids] == [0, 1, 1, 3, 3]
    priorities = {os.getpriority(os.PRIO_PROCESS, pid) for pid in (*pids, *attribute(single))}
    assert len(priorities) == 1
    code, message = error_of(ask.ask("vectorized_step", actions=[0, 0, 0, 0, HOARDS]))
    assert code == "env_failed"
    assert "environment 4" in message
    assert "MemoryError" in message


def test_more_workers_than_the_operator_or_the_environments_allow_are_refused(
    serve: ServerMaker, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    file.write_text("alice one max-workers=3\nbob two\n", encoding="utf-8")
    file.chmod(0o600)
    server = serve(token_file=file, workers=2)
    alice, bob = Asking(server, "one"), Asking(server, "two")
    three = {"env_id": "Counting", "num_envs": 4, "num_workers": 3}
    refused = bob.ask("create", **three)
    assert (refused.status_code, error_of(refused)) == (
        429,
        ("workers", "num_workers: this server allows at most 2 per request, got 3"),
    )
    assert alice.ask("create", **three).status_code == 200
    refused = alice.ask("create", env_id="Counting", num_envs=2, num_workers=3)
    assert (refused.status_code, error_of(refused)[0]) == (422, "num_workers")
    for number in (0, "2", True):
        assert alice.ask("create", **{**three, "num_workers": number}).status_code == 422


def test_a_client_has_one_worker_unless_the_operator_allows_more(server: Server) -> None:
    with pytest.raises(errors.RemoteLimitError, match="num_workers: this server allows at most 1"):
        RemoteVecEnv(server.url, "Counting", 4, num_workers=2)
    for number in (0, 1.5, True):
        with pytest.raises(ValueError, match="num_workers: expected an int of at least 1"):
            RemoteVecEnv(server.url, "Counting", 4, num_workers=number)


def test_every_worker_counts_towards_the_limits_on_processes(serve: ServerMaker) -> None:
    server = serve(workers=3, processes_per_session=4 * PROCESSES_PER_WORKER, allow=MAY_ASK)
    ask = make(server, "Counting", 3, 3)
    first = attribute(ask)
    for workers, shared in ((2, True), (1, False)):
        made = ask.ask("create", env_id="Counting", num_envs=2, num_workers=workers).json()
        message = {"operation": "get_attr", "name": "pid", "episode_ids": made["episode_ids"]}
        pids = ask.ask("call", **message).json()["results"]
        assert len(set(pids)) == 1
        assert (pids[0] in first) is shared
    too_many = Asking(serve(workers=3, processes_per_session=2 * PROCESSES_PER_WORKER))
    answer = too_many.ask("create", env_id="Counting", num_envs=3, num_workers=3)
    assert (answer.status_code, error_of(answer)[0]) == (429, "processes")
    assert too_many.ask("create", env_id="Counting", num_workers=1).status_code == 200


@pytest.mark.parametrize(
    ("harm", "code", "told"),
    [
        (RAISES, "env_failed", "environment 3"),
        (EXITS, "worker_died", "exited with code 7"),
        (IS_KILLED, "worker_died", "SIGKILL"),
        (HANGS, "worker_timeout", "within 2 s"),
    ],
    ids=["raises", "exits", "is killed", "hangs"],
)
@pytest.mark.parametrize("auto_reset", [False, True], ids=["repeating", "resetting itself"])
def test_a_failure_names_its_environment_and_ends_all_workers(
    serve: ServerMaker, harm: int, code: str, told: str, auto_reset: bool
) -> None:
    quota = 2 * PROCESSES_PER_WORKER
    server = serve(workers=2, request=2.0, allow=MAY_ASK, processes_per_session=quota)
    ask = make(server, "Mischievous", 4, 2, auto_reset=auto_reset)
    other = make(server, "Mischievous", 1, 1)
    pids = attribute(ask)
    answer = ask.ask("vectorized_step", actions=[0, 0, 0, harm])
    found, message = error_of(answer)
    assert (answer.status_code, found) == (409, code)
    assert told in message
    assert "environment 3" in message
    assert other.ask("vectorized_step", actions=[0]).status_code == 200
    if auto_reset or harm != RAISES:
        wait_until(lambda: not any(map(is_running, pids)))
        assert error_of(ask.ask("vectorized_step", actions=[0] * 4))[0] == "closed"
        again = ask.ask("create", env_id="Counting", num_envs=2, num_workers=2)
        assert again.status_code == 200, "the ended workers do not count"


def test_environments_that_share_a_worker_end_with_the_others(serve: ServerMaker) -> None:
    quota = 2 * PROCESSES_PER_WORKER
    server = serve(workers=2, processes_per_session=quota, allow=MAY_ASK)
    ask = make(server, "Mischievous", 4, 2)
    first = list(ask.episodes)
    pids = attribute(ask)
    sharing = ask.ask("create", env_id="Mischievous", auto_reset=True).json()["episode_ids"]
    ask.ask("vectorized_reset", episode_ids=sharing)
    assert attribute(ask, "pid", sharing) == pids[:1]
    died = ask.ask("vectorized_step", actions=[0, 0, 0, EXITS], episode_ids=first)
    assert error_of(died)[0] == "worker_died"
    code, message = error_of(ask.ask("vectorized_step", actions=[0], episode_ids=sharing))
    assert code == "closed"
    assert "exited with code 7" in message
    again = ask.ask("create", env_id="Counting", num_envs=2, num_workers=2)
    assert again.status_code == 200, "the ended workers do not count"
    wait_until(lambda: not any(map(is_running, pids)))


@needs_guardians
@pytest.mark.parametrize("end", ["closed", "expires", "a worker is killed", "the server is killed"])
def test_what_environments_start_ends_with_any_of_the_workers(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    killed = end == "the server is killed"
    options = {"workers": 2, "idle": 1.0 if end == "expires" else 60.0}
    server = ServedProcess(*TESTS) if killed else serve(allow=MAY_ASK, **options)
    ask = make(server, "Breeding", 2, 2)
    pids, marks = attribute(ask), attribute(ask, "mark")
    assert len({*pids}) == len({*marks}) == 2

    def started() -> list[int]:
        commands = [f"sleep\0{mark}\0".encode() for mark in marks]
        return [pid for pid in running() if command_of(pid) in commands]

    wait_until(lambda: len(started()) == 4)
    if end == "closed":
        ask.close()
    elif end == "a worker is killed":
        os.kill(pids[1], signal.SIGKILL)
        wait_until(lambda: len(started()) == 2)
        assert error_of(ask.ask("vectorized_step", actions=[0, 0]))[0] == "worker_died"
    elif killed:
        assert isinstance(server, ServedProcess)
        server.close(signal.SIGKILL)
    wait_until(lambda: started() == [])
    wait_until(lambda: not any(map(is_running, pids)))


def running() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@needs_guardians
@pytest.mark.parametrize(
    ("limits", "action"),
    [({"cpu_per_session": 1.0}, 1), ({"memory_per_session": 2**28}, 2)],
    ids=["cpu", "memory"],
)
def test_the_use_of_all_workers_counts(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any], action: int
) -> None:
    monkeypatch.setattr(sessions, "USAGE_INTERVAL", 0.2)
    ask = make(serve(workers=2, **limits), "Busy", 2, 2)
    ask.ask("vectorized_step", actions=[0, action])
    wait_until(lambda: ask.ask("vectorized_reset").status_code == 429, seconds=100)
    assert "this server limits" in ask.ask("vectorized_reset").text


def test_a_session_that_ends_amid_a_step_ends_all_workers(
    background: Any, serve: ServerMaker, impatient: None
) -> None:
    ask = make(serve(workers=2, allow=MAY_ASK), "Mischievous", 2, 2)
    pids = attribute(ask)
    hanging = background(ask.ask, "vectorized_step", actions=[0, HANGS])
    time.sleep(0.3)
    assert ask.close().status_code == 200
    assert hanging.result().status_code == 404
    wait_until(lambda: not any(map(is_running, pids)))


# --- states -------------------------------------------------------------------------------------


def test_states_move_between_workers(serve: ServerMaker) -> None:
    server = serve(workers=3)
    with RemoteVecEnv(server.url, "CartPole", 5, seed=1, num_workers=3) as envs:
        envs.reset()
        rng = np.random.default_rng(1)
        plays = rng.integers(2, size=(3, 6, 5))
        for actions in plays[0]:
            envs.step(actions)
        state = envs.save_state([4, 0, 2])
        ahead = [envs.step(actions) for actions in plays[1]]
        obs, _ = envs.load_state(state, env_ids=[0, 2, 4])
        assert_same(obs, envs.buf_obs[[0, 2, 4]])
        got = [envs.step(actions[[4, 1, 0, 3, 2]]) for actions in plays[1]]
        for found, expected in zip(got, ahead, strict=True):
            assert_same(found[0][[0, 2, 4]], expected[0][[4, 0, 2]])
        envs.clone_state(4, [0, 1, 2, 3])
        for actions in plays[2]:
            obs, *_ = envs.step([actions[0]] * 5)
            assert_same(obs, np.repeat(obs[4:], 5, 0))
        one = state[1]
        envs.load_state(one, env_ids=[4])
        assert_same(envs.buf_obs[4], envs.load_state(one, env_ids=[0])[0][0])


def saved(ask: Asking, *episodes: str) -> Any:
    answer = ask.ask("states", operation="save", episode_ids=episodes or None)
    return answer.status_code, answer.json()


def load(ask: Asking, states: list[int], episodes: list[str]) -> Any:
    return ask.ask("states", operation="load", states=states, episode_ids=episodes)


def test_large_states_move_between_workers_and_their_limit_holds(serve: ServerMaker) -> None:
    ask = make(serve(workers=2, states=3), "Heavy", 6, 2)
    first = list(ask.episodes)
    for _ in range(2):
        assert error_of(make_refused(ask, first[:4]))[0] == "states"
        status, kept = saved(ask, first[5], first[0], first[3])
        assert status == 200, "states that were refused take no room"
        assert min(kept["bytes"]) > 2**24
        back = load(ask, kept["states"], [first[1], first[4], first[2]]).json()
        assert [each[0] for each in back["observations"]] == [5, 0, 3]
        other = ask.ask("create", env_id="Heavy", num_envs=2, num_workers=2, auto_reset=True)
        others = other.json()["episode_ids"]
        ask.ask("vectorized_reset", episode_ids=others)
        back = load(ask, kept["states"][:2], others[::-1]).json()
        assert [each[0] for each in back["observations"]] == [5, 0]
        number = kept["states"][0]
        ask.ask("states", operation="drop", states=kept["states"])
        assert load(ask, [number], others[:1]).status_code == 404


def make_refused(ask: Asking, episodes: list[str]) -> Any:
    answer = ask.ask("states", operation="save", episode_ids=episodes)
    assert answer.status_code == 429
    return answer


def test_workers_keep_no_states_but_those_that_the_server_counts(serve: ServerMaker) -> None:
    ask = make(serve(workers=2, state_bytes=40 * 2**20, allow=MAY_ASK), "Heavy", 4, 2)
    first, *_, last = attribute(ask)
    assert saved(ask, ask.episodes[0])[0] == 200
    before = 0, 0
    for round_ in range(8):
        if round_ == 3:
            before = memory_of(first), memory_of(last)
        status, refused = saved(ask, ask.episodes[1], ask.episodes[3])
        assert (status, refused["error"]["code"]) == (429, "states")
        for loads in (False, True):
            status, kept = saved(ask, ask.episodes[3])
            assert status == 200
            if loads:
                assert load(ask, kept["states"], ask.episodes[2:3]).status_code == 200
            ask.ask("states", operation="drop", states=kept["states"])
    after = memory_of(first), memory_of(last)
    assert all(end - start < 2**26 for start, end in zip(before, after, strict=True))


def memory_of(pid: int) -> int:
    """Return the bytes of memory of a process, without shared memory."""
    resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def test_a_state_that_cannot_be_saved_or_loaded_leaves_nothing_behind(serve: ServerMaker) -> None:
    server = serve({"Unsavable": UnsavableEnv, "CartPole": cart_pole}, workers=2, states=4)
    ask = make(server, "Unsavable", 4, 2)
    for _ in range(3):
        status, refused = saved(ask)
        assert (status, refused["error"]["code"]) == (409, "state")
        assert "environment 3" in refused["error"]["message"]
    assert saved(ask, *ask.episodes[:2])[0] == 200
    kept = saved(ask, ask.episodes[2])[1]["states"]
    cart_poles = ask.ask("create", env_id="CartPole", num_envs=2, num_workers=2, auto_reset=True)
    episodes = cart_poles.json()["episode_ids"]
    ask.ask("vectorized_reset", episode_ids=episodes)
    for episode in episodes:
        assert error_of(load(ask, kept, [episode]))[0] == "state_mismatch"
    assert load(ask, kept, ask.episodes[:1]).status_code == 200
    step = partial(ask.ask, "vectorized_step", episode_ids=episodes)
    assert step(actions=[0, 0]).status_code == 200


@pytest.mark.slow("waits until a stopped worker times out")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_states_that_ended_with_a_worker_leave_the_others_as_they_were(
    background: Any, serve: ServerMaker, impatient: None, end: signal.Signals
) -> None:
    allowed = Permissions(gets=frozenset({"pid", "stored"}))
    server = serve({"Reporting": ReportingEnv}, workers=2, request=3.0, allow=allowed)
    loads = []
    for workers in (1, 2):
        ask = make(server, "Reporting", 2, 1)
        sources = [list(ask.episodes)]
        how = {"env_id": "Reporting", "num_envs": 2, "auto_reset": True}
        for number in (workers, 2):
            made = ask.ask("create", **how, num_workers=number).json()["episode_ids"]
            ask.ask("vectorized_reset", episode_ids=made)
            sources.append(made)
        *sources, more = sources
        states = [number for each in sources for number in saved(ask, *each[:1])[1]["states"]]
        os.kill(attribute(ask, "pid", sources[1])[0], end)
        loads.append((ask, more, background(load, ask, states, more)))
    for ask, more, loading in loads:
        refused = loading.result()
        assert (refused.status_code, error_of(refused)[0]) == (404, "states")
        assert "the worker process that kept it may have ended" in refused.text
        assert attribute(ask, "stored", more) == [0, 0]
        step = ask.ask("vectorized_step", episode_ids=more, actions=[0, 0])
        assert step.status_code == 200


@pytest.mark.slow("waits until stopped workers time out")
def test_a_worker_that_stops_during_a_transfer_times_out(
    background: Any, serve: ServerMaker, impatient: None
) -> None:
    server = serve(workers=2, request=2.0, allow=MAY_ASK)
    transfers = []
    for stopped, operation in ((0, "save"), (1, "load")):
        ask = make(server, "Counting", 2, 2)
        states = saved(ask)[1]["states"]
        os.kill(attribute(ask)[stopped], signal.SIGSTOP)
        message = {} if operation == "save" else {"states": states}
        message |= {"operation": operation, "episode_ids": ask.episodes}
        transfers.append(background(ask.ask, "states", **message))
    for transfer in transfers:
        assert error_of(transfer.result())[0] == "worker_timeout"


def test_a_process_with_a_worker_that_died_is_not_shared(serve: ServerMaker) -> None:
    server = serve(workers=2, processes_per_session=2 * PROCESSES_PER_WORKER, allow=MAY_ASK)
    sessions = [make(server, "Counting", 2, 2) for _ in range(2)]
    pids = list(map(attribute, sessions))
    for killed in (0, 1):
        os.kill(pids[killed][killed], signal.SIGKILL)
    wait_until(lambda: not any(is_running(pids[killed][killed]) for killed in (0, 1)))
    time.sleep(1)  # until the server's process has noticed
    for ask, ended in zip(sessions, pids, strict=True):
        made = ask.ask("create", env_id="Counting", num_envs=2, num_workers=2).json()
        assert not {*attribute(ask, "pid", made["episode_ids"])} & {*ended}
    wait_until(lambda: not any(is_running(pid) for ended in pids for pid in ended))


def test_groups_that_share_a_worker_step_in_turn_without_waiting(serve: ServerMaker) -> None:
    quota = 2 * PROCESSES_PER_WORKER
    ask = make(serve(workers=2, processes_per_session=quota, request=60.0), "Counting", 2, 2)
    first = list(ask.episodes)
    sharing = ask.ask("create", env_id="Counting", auto_reset=True).json()["episode_ids"]
    ask.ask("vectorized_reset", episode_ids=sharing)
    began = time.monotonic()
    for episodes in (sharing, first, sharing, first, first):
        assert step_in_msgpack(ask, episodes).status_code == 200
    assert time.monotonic() - began < 30
