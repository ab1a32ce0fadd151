"""Collectors that are stopped, and go on as if they never had been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import assert_same

torch = pytest.importorskip("torch")

from checkpoints import through_torch
from gymnasium.wrappers import NormalizeReward

from xuance_envs import (
    DummyVecEnv,
    Gym_Env,
    RolloutCollector,
    StateError,
    StateMismatchError,
    SubprocVecEnv,
    SyncVecEnv,
)
from xuance_envs.rollout.loop_state import generators, set_generators
from xuance_envs.rollout.recorder import GifRecorder


class Drawing:
    """Draws its actions from torch's generator."""

    def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
        if actions is None:
            actions = torch.randint(2, (len(states),))
        return actions, actions * 0.5, torch.rand(len(states)), actions * 0.1


def make() -> Any:
    return NormalizeReward(Gym_Env("CartPole-v1"))


RESULTS = ("states", "actions", "rewards", "values", "done_flags", "trunc_flags", "end_states")


def rollouts(collector: RolloutCollector, count: int) -> list[Any]:
    found = []
    for _ in range(count):
        collector.rollout()
        found += [getattr(collector, name).detach().clone().numpy() for name in RESULTS]
        found += [collector.global_steps, collector.finished_ep_returns, collector.mean_ep_return]
    return found


@pytest.mark.parametrize("backend", [DummyVecEnv, SubprocVecEnv])
def test_it_goes_on_as_if_it_had_never_stopped(backend: Any) -> None:
    with RolloutCollector(
        DummyVecEnv([make] * 4, copy=False), Drawing(), 37, device="cpu", seed=1
    ) as collector:
        rollouts(collector, 2)
        state = through_torch(collector.state_dict())
        expected = rollouts(collector, 3)
    torch.manual_seed(99)
    with RolloutCollector(backend([make] * 4), Drawing(), 37, device="cpu", seed=5) as other:
        rollouts(other, 1)
        other.load_state_dict(state)
        assert_same(rollouts(other, 3), expected)
        other.load_state_dict(state)
        assert_same(rollouts(other, 3), expected)


def test_single_steps_and_ends_are_part_of_it() -> None:
    with RolloutCollector(DummyVecEnv([make] * 3), Drawing(), 9, device="cpu", seed=1) as collector:
        while not collector._just_reset.any():
            collector.vec_step(torch.ones(3))
        state = collector.state_dict()
        ended = int(np.flatnonzero(collector._just_reset)[0])
        first = collector.env_reset(ended).clone()
        after = collector.vec_step(torch.ones(3))[0].clone()
        collector.vec_step(torch.ones(3))
        collector.load_state_dict(state)
        assert torch.equal(collector.env_reset(ended), first)  # not reset again
        assert torch.equal(collector.vec_step(torch.ones(3))[0], after)


def test_a_recording_goes_on(tmp_path: Path) -> None:
    def env() -> Any:
        return Gym_Env("CartPole-v1", render_mode="rgb_array")

    pytest.importorskip("pygame")
    recorder = GifRecorder(1, folder=tmp_path / "one")
    with RolloutCollector(
        DummyVecEnv([env]), Drawing(), 5, device="cpu", seed=1, recorder=recorder
    ) as collector:
        collector.rollout()
        state = through_torch(collector.state_dict())
        while not recorder.count:
            collector.rollout()
    other_recorder = GifRecorder(1, folder=tmp_path / "two")
    with RolloutCollector(
        DummyVecEnv([env]), Drawing(), 5, device="cpu", seed=9, recorder=other_recorder
    ) as other:
        other.load_state_dict(state)
        while not other_recorder.count:
            other.rollout()
    one, two = (tmp_path / name / "render_0.gif" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_a_state_does_not_contain_the_last_rollout() -> None:
    with RolloutCollector(DummyVecEnv([make]), Drawing(), 5000, device="cpu") as collector:
        collector.rollout()
        assert len(collector.state_dict()["loop"]) < collector.states.nbytes / 4


def test_collectors_that_make_their_environments_have_it_too() -> None:
    with SyncVecEnv(make, 2, 20, agent=Drawing(), device="cpu", seed=1) as envs:
        state = envs.state_dict()
        expected = rollouts(envs, 2)
        envs.load_state_dict(state)
        assert_same(rollouts(envs, 2), expected)


def test_what_does_not_fit_is_an_error_and_changes_nothing() -> None:
    with RolloutCollector(DummyVecEnv([make] * 2), Drawing(), 9, device="cpu", seed=1) as collector:
        state = collector.state_dict()
        with pytest.raises(ValueError, match="expected the result of state_dict, got a dict"):
            collector.load_state_dict({})
        with pytest.raises(ValueError, match="expected version 1, got 7"):
            collector.load_state_dict({**state, "version": 7})
        with pytest.raises(ValueError, match="expected a state of 2 environments, got 3"):
            collector.load_state_dict({**state, "num_envs": 3})
        with pytest.raises(StateError, match="cannot read the collector's state"):
            collector.load_state_dict({**state, "loop": b"cos\nsystem\n(S'true'\ntR."})
        with pytest.raises(StateError, match="truncated"):
            collector.load_state_dict({**state, "envs": state["envs"][:-1]})
        with RolloutCollector(
            DummyVecEnv([lambda: Gym_Env("CartPole-v1")] * 2), Drawing(), 9, device="cpu"
        ) as other:
            with pytest.raises(StateMismatchError, match="differs in its wrappers"):
                other.load_state_dict(state)
            other.rollout()
        collector.load_state_dict(state)
        expected = rollouts(collector, 1)
        collector.load_state_dict(state)
        assert_same(rollouts(collector, 1), expected)


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_generators_of_other_devices_than_cuda_are_saved(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = [torch.tensor([1, 2], dtype=torch.uint8)]
    library = getattr(torch, kind)
    monkeypatch.setattr(library, "get_rng_state", lambda *_: states[-1])
    monkeypatch.setattr(library, "set_rng_state", lambda state, *_: states.append(state))
    device = torch.device(kind)
    saved = generators(device)
    set_generators(saved, device)
    assert saved[f"{kind}_generator"] == b"\1\2"
    assert states[1].tolist() == [1, 2]
