"""Groups of a session in one process: each behaves as if alone, until the process ends."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

import httpx
import pytest
from remote_envs import CountingEnv, MischievousEnv
from serving import SETTINGS, Asking, ServerMaker, assert_nothing_is_left

from xuance_envs.errors import EnvError, WorkerDiedError
from xuance_envs.remote.server import Server
from xuance_envs.remote.server.hosting.hosted_vec_env import HostedVecEnv
from xuance_envs.remote.server.limits import PROCESSES_PER_WORKER
from xuance_envs.remote.settings import Permissions

RAISES, EXITS, HANGS, SAYS = 1, 2, 4, 6

MAY_ASK = Permissions(gets=frozenset({"pid"}))


class UnmakeableEnv(CountingEnv):
    """Environment that cannot be created."""

    def __init__(self, env_seed: int = 0) -> None:
        raise ValueError("not this one")


class ExitingEnv(CountingEnv):
    """Environment whose creation ends its process."""

    def __init__(self, env_seed: int = 0) -> None:
        os._exit(3)


def sharing(server: Server, creations: int = 2, **create: Any) -> tuple[Asking, list[list[str]]]:
    """Return a session whose groups share one process, and the episodes of each group."""
    ask = Asking(server)
    made = [
        ask.ask("create", env_id="Mischievous", num_envs=2, **create).json()["episode_ids"]
        for _ in range(creations)
    ]
    for episodes in made:
        assert ask.ask("vectorized_reset", episode_ids=episodes, seed=1).status_code == 200
    return ask, made


def pids_of(ask: Asking, episodes: list[str]) -> list[int]:
    message = {"operation": "get_attr", "name": "pid", "episode_ids": episodes}
    return ask.ask("call", **message).json()["results"]


def step(ask: Asking, episodes: list[str], *actions: int) -> httpx.Response:
    return ask.ask("vectorized_step", episode_ids=episodes, actions=list(actions))


@pytest.mark.parametrize("auto_reset", [False, True], ids=["repeating", "resetting itself"])
def test_further_creations_share_processes_and_are_what_they_were(
    serve: ServerMaker, auto_reset: bool
) -> None:
    server = serve(processes_per_session=2 * PROCESSES_PER_WORKER, allow=MAY_ASK)
    ask, made = sharing(server, 5, auto_reset=auto_reset)
    alone, (own,) = sharing(server, 1, auto_reset=auto_reset)
    pids = [pids_of(ask, episodes) for episodes in made]
    assert len({pid for some in pids for pid in some}) == 2
    assert {len(set(some)) for some in pids} == {1}
    for actions in ((0, 0), (6, 0), (0, 6)):
        expected = step(alone, own, *actions).json()
        for episodes in made[::-1]:  # each request steps a different group
            assert step(ask, episodes, *actions).json() == expected
    times = [ask.ask("statistics", episode_ids=each).json()["times"] for each in made]
    if auto_reset:  # otherwise the group receives calls, not steps
        assert [each["steps"] for each in times] == [3] * 5
    server.close()
    for some in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(some[0], 0)


def test_states_are_those_of_their_own_creation(serve: ServerMaker) -> None:
    ask, made = sharing(serve(processes_per_session=PROCESSES_PER_WORKER), auto_reset=True)
    for actions, episodes in zip(((0, 6), (6, 6)), made, strict=True):
        step(ask, episodes, *actions)
    saved = [ask.ask("states", operation="save", episode_ids=each).json() for each in made]
    expected = [step(ask, episodes, 6, 0).json() for episodes in made]
    for episodes, kept, answer in zip(made, saved, expected, strict=True):
        message = {"operation": "load", "states": kept["states"], "episode_ids": episodes}
        assert ask.ask("states", **message).status_code == 200
        assert step(ask, episodes, 6, 0).json() == answer


@pytest.mark.parametrize(
    ("harm", "code", "told"),
    [(EXITS, "worker_died", "exited with code 7"), (HANGS, "worker_timeout", "within 2 s")],
    ids=["exits", "hangs"],
)
def test_a_process_that_ends_ends_the_episodes_in_it_and_says_so(
    serve: ServerMaker, harm: int, code: str, told: str
) -> None:
    server = serve(processes_per_session=PROCESSES_PER_WORKER, request=2.0)
    ask, (first, second, third) = sharing(server, 3, auto_reset=True)
    other, (apart,) = sharing(server, 1, auto_reset=True)
    failed = step(ask, second, 0, harm)
    assert (failed.status_code, failed.json()["error"]["code"]) == (409, code)
    for episodes in (first, third):
        answer = step(ask, episodes, 0, 0)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (409, "closed")
        assert "their worker process, which they shared" in error["message"]
        assert told in error["message"]
    assert step(other, apart, 0, 0).status_code == 200
    again = ask.ask("create", env_id="Mischievous").json()["episode_ids"]
    assert ask.ask("vectorized_reset", episode_ids=again).status_code == 200, "it has a new process"


def test_an_exception_ends_the_episodes_it_is_of_and_leaves_the_process_to_others(
    serve: ServerMaker,
) -> None:
    ask, (first, second) = sharing(
        serve(processes_per_session=PROCESSES_PER_WORKER, allow=MAY_ASK), auto_reset=True
    )
    (pid, _) = pids_of(ask, second)
    assert step(ask, first, RAISES, 0).json()["error"]["code"] == "env_failed"
    assert step(ask, first, 0, 0).json()["error"]["code"] == "closed"
    assert step(ask, second, 0, 0).status_code == 200
    third = ask.ask("create", env_id="Mischievous").json()["episode_ids"]
    assert pids_of(ask, third) == [pid], "the first creation is gone, its process is not"


def test_the_memory_of_those_that_have_left_is_used_again() -> None:
    first = hosted()
    first.reset()
    memory = first.backend.settings.memory
    sizes = []
    for _ in range(3):
        second = hosted(first, 40)
        observations, _ = second.reset(seed=7)
        assert observations[:, 1].tolist() == [0] * 40
        assert second.times.steps == 0
        second.step([0] * 40)
        sizes.append(os.fstat(memory.fd).st_size)
        ended(second)
    assert len(set(sizes)) == 1
    ended(first)
    assert_nothing_is_left()


def test_what_cannot_be_made_leaves_the_process_to_others(serve: ServerMaker) -> None:
    served = {"Mischievous": MischievousEnv, "Unmakeable": UnmakeableEnv}
    ask, (first,) = sharing(
        serve(served, processes_per_session=PROCESSES_PER_WORKER), 1, auto_reset=True
    )
    for _ in range(2):
        answer = ask.ask("create", env_id="Unmakeable")
        assert answer.json()["error"]["code"] == "env_failed"
        assert step(ask, first, 0, 0).status_code == 200


def test_a_process_that_a_creation_ends_no_longer_counts(serve: ServerMaker) -> None:
    served = {"Counting": CountingEnv, "Exiting": ExitingEnv}
    server = serve(served, tokens=("a",), processes_per_token=PROCESSES_PER_WORKER)
    ask, other = Asking(server, "a"), Asking(server, "a")
    assert ask.ask("create", env_id="Counting").status_code == 200
    assert other.ask("create", env_id="Counting").status_code == 429
    assert ask.ask("create", env_id="Exiting").status_code == 409
    assert other.ask("create", env_id="Counting").status_code == 200


def test_a_session_that_ends_amid_a_command_ends_all_that_share_the_process(
    background: Any, serve: ServerMaker, impatient: None
) -> None:
    ask, (_, second) = sharing(serve(processes_per_session=PROCESSES_PER_WORKER), auto_reset=True)
    hanging = background(step, ask, second, HANGS, 0)
    time.sleep(0.3)
    assert ask.close().status_code == 200
    assert hanging.result().status_code == 404
    assert multiprocessing.active_children() == []


def test_a_token_without_processes_left_shares_those_of_the_session(serve: ServerMaker) -> None:
    server = serve(tokens=("a",), processes_per_token=2 * PROCESSES_PER_WORKER)
    asking = [Asking(server, "a") for _ in range(3)]
    answers = [ask.ask("create", env_id="Counting") for ask in asking]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert asking[0].ask("create", env_id="Counting").status_code == 200
    assert len(multiprocessing.active_children()) == 2
    asking[0].close()
    assert asking[2].ask("create", env_id="Counting").status_code == 200


def test_the_kernel_puts_a_shared_process_behind_others_once(serve: ServerMaker) -> None:
    ask, (first,) = sharing(serve(processes_per_session=PROCESSES_PER_WORKER, allow=MAY_ASK), 1)
    (pid, _) = pids_of(ask, first)
    before = os.getpriority(os.PRIO_PROCESS, pid)
    ask.ask("create", env_id="Mischievous")
    assert os.getpriority(os.PRIO_PROCESS, pid) == before


# --- the vector environments --------------------------------------------------------------------


def hosted(beside: HostedVecEnv | None = None, num_envs: int = 2) -> HostedVecEnv:
    backend = None if beside is None else beside.backend
    return HostedVecEnv([MischievousEnv] * num_envs, 0, SETTINGS, shared_backend=backend)


def worker_of(envs: HostedVecEnv) -> int:
    (driver,) = envs.backend.workers
    return driver.worker.pid


def ended(envs: HostedVecEnv) -> None:
    envs.close()
    envs.end_workers()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_the_process_ends_with_the_last_that_lives_in_it(order: tuple[int, ...]) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    first = hosted()
    all_of_them = [first, hosted(first), hosted(first, 3)]
    for envs in all_of_them:
        envs.reset(seed=5)
    worker = worker_of(first)
    for left in order:
        alive = [envs for envs in all_of_them if not envs.closed]
        assert {worker_of(envs) for envs in alive} == {worker}
        for envs in alive:
            envs.step([0] * envs.num_envs)
        ended(all_of_them[left])
    assert_nothing_is_left()
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 3, "forkserver's own are kept"


def test_an_error_names_the_environment_of_its_own_group() -> None:
    first = hosted()
    second = hosted(first, 3)
    for envs in (first, second):
        envs.reset()
    with pytest.raises(EnvError) as failed:
        second.step([0, 0, RAISES])
    assert failed.value.env_index == 2
    second.end_workers()
    first.step([0, 0])
    third = hosted(first, 3)
    third.reset()
    with pytest.raises(WorkerDiedError) as died:
        third.step([0, EXITS, 0])
    assert (died.value.env_indices, died.value.env_index) == ((0, 1, 2), 1)
    with pytest.raises(WorkerDiedError):
        first.step([0, 0])
    with pytest.raises(WorkerDiedError):
        hosted(first)
    ended(third)
    ended(first)
    assert_nothing_is_left()
