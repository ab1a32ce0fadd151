"""What goes through a machine's actor beside numbers: masks, arrays in infos, and states."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from fake_cluster import pretended_machines
from masked_envs import MaskedEnv
from stateful_envs import Heavy

from xuance_envs import DummyVecEnv, EnvStates, RayVecEnv_Gym
from xuance_envs.engine.ray.exchange import POLL_INTERVAL


@pytest.fixture(autouse=True, params=[None, "as told"], ids=["connected", "by Ray's calls"])
def machines(request: pytest.FixtureRequest) -> Iterator[None]:
    """Two machines with room for two workers each."""
    with pretended_machines(request.param, here=2, there=2):
        yield


def both(kind: Any, **options: Any) -> tuple[Any, Any]:
    """Seven environments on machines, and seven here."""
    functions = [partial(kind, number) for number in range(7)]
    envs = RayVecEnv_Gym(functions, 2, actors="machine", **options)
    assert len(envs._groups.backend.actors) == 2
    return envs, DummyVecEnv(functions)


class ActingState(MaskedEnv):
    """Has arrays in its infos, of one shape in even environments and of two in odd ones."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        info["place"] = np.full((3, 2), 10 * self.number + reward)
        if self.number % 2:
            info["names"] = np.arange(self.number, dtype=np.int16)
        return observation, reward, terminated, truncated, info


def steps(envs: Any, count: int) -> Iterator[Any]:
    for t in range(count):
        *results, infos = envs.step([t % 2] * envs.num_envs)
        yield *results, list(infos)


def test_arrays_in_infos_are_those_of_one_process_and_are_not_pickled() -> None:
    envs, here = both(ActingState)
    with envs, here:
        assert_same(envs.reset(seed=3)[0], here.reset(seed=3)[0])
        for found, expected in zip(steps(envs, 9), steps(here, 9), strict=True):
            assert_same(found, expected)
        infos = envs.step([0] * 7)[-1]
        assert infos.column("place")[0].shape == (7, 3, 2)  # an array of numbers, not of objects


def test_an_info_that_finds_no_room_is_the_same_all_the_same() -> None:
    envs, here = both(ActingState, info_bytes=0)
    with envs, here:
        envs.reset(seed=3), here.reset(seed=3)
        for found, expected in zip(steps(envs, 4), steps(here, 4), strict=True):
            assert_same(found, expected)


@pytest.mark.parametrize("where", ["method", "action_mask"])
def test_masks_are_those_of_one_process(where: str) -> None:
    envs, here = both(partial(MaskedEnv, where=(where,)))
    with envs, here:
        envs.reset(), here.reset()
        for found, expected in zip(steps(envs, 5), steps(here, 5), strict=True):
            assert_same(found, expected)
            assert_same(envs.action_masks(), here.action_masks())


class Failing(MaskedEnv):
    """Fails at an action, and thereby loses its worker, or the whole actor."""

    def step(self, action: Any) -> Any:
        if action == 5:
            raise SystemExit("as told")
        return super().step(action)


@pytest.mark.parametrize("whole", [False, True], ids=["a worker", "an actor"])
def test_masks_after_a_restart_are_those_of_the_new_environments(whole: bool) -> None:
    envs, _ = both(
        partial(Failing, where=("method",)),
        on_worker_failure="restart",
        restart_on_exception=True,
    )
    with envs:
        envs.reset()
        envs.action_masks()
        actions = [0] * 7
        if whole:
            lost = envs._groups.backend.actors[0]
            lost.mark_lost("as told")
        else:
            actions[2] = 5
        infos = envs.step(actions)[-1]
        again = [bool(info.get("worker_restarted")) for info in infos]
        assert again == ([True] * 4 + [False] * 3 if whole else [i in (2, 3) for i in range(7)])
        for _ in range(3):
            assert_same(envs.action_masks(), np.stack(envs.call("mask", 2)))
            envs.step([0] * 7)


def test_states_go_back_and_between_kinds_of_vector_environments() -> None:
    envs, here = both(ActingState)
    with envs, here:
        envs.reset(seed=3), here.reset(seed=9)
        list(steps(envs, 2))
        state = EnvStates.from_bytes(envs.save_state().to_bytes(), trusted=True)
        expected = list(steps(envs, 5))
        envs.load_state(state)
        assert_same(list(steps(envs, 5)), expected)
        here.load_state(state)
        assert_same(list(steps(here, 5)), expected)
        envs.load_state(here.save_state([0, 5]), [0, 5])
        assert_same(list(steps(envs, 5)), list(steps(here, 5)))


@pytest.mark.parametrize("kind", [MaskedEnv, Heavy])
def test_an_environment_becomes_like_one_on_another_machine(kind: Any) -> None:
    envs, here = both(kind)
    with envs, here:
        for each in (envs, here):
            each.reset(seed=1)
            list(steps(each, 2))
            each.clone_state([0, 6], [6, 1])
        assert_same(list(steps(envs, 5)), list(steps(here, 5)))


class Slow(Heavy):
    """Takes as long as it is told to."""

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


def test_too_little_memory_on_one_machine_is_said_and_is_no_matter_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    envs, _ = both(Slow)
    with envs:
        envs.reset(seed=1)
        state = envs.save_state()
        process = "xuance_envs.engine.process"
        monkeypatch.setattr(f"{process}.shared_memory.system.available_memory", lambda: 1000)
        monkeypatch.setattr(f"{process}.process_backend.UNCHECKED_BYTES", 100_000)
        with pytest.raises(MemoryError, match=r"states .* shared memory, but only 1,000 are"):
            envs.clone_state(0, 6)
        monkeypatch.undo()
        envs.call("wait", 1.5 * POLL_INTERVAL, env_ids=[0])  # so long that the others are looked at
        assert envs.save_state() == state
