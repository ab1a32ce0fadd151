"""What every collector does, done with many agents: steps, states, halves, recordings, devices."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from agents_envs import FOREVER, MIXED, Herd, Uneven
from checkpoints import through_torch
from rollout_reference import StagedTransfer

import xuance_envs.rollout.results as results_module
from xuance_envs import MultiAgentVecEnv, RolloutCollector, SyncVecEnv
from xuance_envs.rollout.recorder import GifRecorder

GAMMA, LAMBDA = 0.9, 0.8
RESULTS = (
    *("obs", "states", "actions", "rewards", "values", "log_probs", "done_flags", "trunc_flags"),
    *("acted", "end_obs", "end_states", "ep_counts", "action_masks"),
)
STATISTICS = ("rolling_ep_returns", "rolling_ep_lengths", "finished_ep_returns", "global_steps")


def worth_of(obs: Any, states: torch.Tensor) -> torch.Tensor:
    seen = obs["observation"] if isinstance(obs, dict) else obs
    return seen.flatten(2).sum(-1) + states.sum(-1, keepdim=True)


class Drawing:
    """Draws allowed actions from torch's generator."""

    device = "cpu"

    def get_actions_and_values(self, obs: Any, states: Any, masks: Any, actions: Any = None) -> Any:
        values = worth_of(obs, states)
        chances = torch.ones(*values.shape, 3) if masks is None else masks.float()
        actions = torch.multinomial(chances.flatten(0, 1), 1).reshape(values.shape)
        return actions, values / 2, values, values


class Thinking(Drawing):
    """Does what it sees."""

    def get_actions_and_values(self, obs: Any, states: Any, masks: Any, actions: Any = None) -> Any:
        values = worth_of(obs, states)
        return (values.abs() * 1e3).long() % 3, values / 2, values, values


def herds(count: int = 3, backend: str = "dummy", kind: Any = Herd, **given: Any) -> Any:
    kwargs = {name: given.pop(name) for name in ("in_series", "copy") if name in given}
    options = {"plays": MIXED, "length": 7, **given}
    return MultiAgentVecEnv([partial(kind, **options)] * count, backend=backend, **kwargs)


def rollouts(collector: RolloutCollector, count: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(count):
        collector.rollout()
        for name in RESULTS:
            parts = getattr(collector, name)
            for part in parts.values() if isinstance(parts, dict) else [parts]:
                found.append(None if part is None else part.numpy().tobytes())
        found += [getattr(collector, name) for name in STATISTICS]
        found.append(collector.advantages(GAMMA, LAMBDA).numpy().tobytes())
    return found


# -- states --------------------------------------------------------------------------------------


@pytest.mark.parametrize("masks", [None, "info", "observation"])
@pytest.mark.parametrize("backend", ["dummy", "subproc"])
def test_it_goes_on_as_if_it_had_never_stopped(backend: str, masks: str | None) -> None:
    with RolloutCollector(herds(masks=masks), Drawing(), 5, seed=1) as collector:
        rollouts(collector, 2)
        state = through_torch(collector.state_dict())
        expected = rollouts(collector, 4)
    torch.manual_seed(99)
    with RolloutCollector(herds(backend=backend, masks=masks), Drawing(), 5, seed=5) as other:
        rollouts(other, 1)
        for _ in range(2):
            other.load_state_dict(state)
            assert rollouts(other, 4) == expected


def test_what_does_not_fit_is_an_error_and_changes_nothing() -> None:
    with (
        RolloutCollector(herds(), Thinking(), 5, seed=1) as collector,
        RolloutCollector(herds(2), Thinking(), 5) as fewer,
        RolloutCollector(herds(plays={"one": (1, FOREVER)}), Thinking(), 5) as others,
    ):
        state = collector.state_dict()
        with pytest.raises(ValueError, match="expected a state of 2 environments, got 3"):
            fewer.load_state_dict(state)
        with pytest.raises(Exception, match="expected states of shapes"):
            others.load_state_dict(state)
        others.rollout()
        expected = rollouts(collector, 1)
        collector.load_state_dict(state)
        assert rollouts(collector, 1) == expected


# -- single steps --------------------------------------------------------------------------------


def test_single_steps_are_those_of_the_environments() -> None:
    with (
        RolloutCollector(herds(masks="info"), Thinking(), 5, seed=3) as collector,
        herds(masks="info") as plain,
    ):
        step = plain.reset(seed=3)
        actions = np.ones((3, 4), int)
        for _ in range(9):
            start = step.next()
            np.testing.assert_array_equal(collector.t_states["obs"], start.obs)
            np.testing.assert_allclose(collector.t_states["state"], start.state, rtol=1e-6)
            np.testing.assert_array_equal(collector.t_alive, start.alive)
            step = plain.step(actions)
            states, rewards, done, truncated = collector.vec_step(torch.ones(3, 4, 1))
            np.testing.assert_array_equal(states["obs"], step.obs)
            np.testing.assert_array_equal(rewards, step.rewards)
            np.testing.assert_array_equal(done, step.terminated)
            np.testing.assert_array_equal(truncated, step.truncated)
        with pytest.raises(ValueError, match=r"actions: expected shape \(3, 4\), got \(3, 3\)"):
            collector.vec_step(torch.ones(3, 3))
        one = collector.env_reset(1)
        again = plain.reset(env_ids=[1])
        np.testing.assert_array_equal(one["obs"], again.obs[0])
        np.testing.assert_array_equal(collector.t_states["obs"][1], again.obs[0])
        np.testing.assert_array_equal(collector.t_alive[1], again.alive[0])
        assert collector.state_shape == {"obs": (4, 4), "state": (2,)}
        assert {
            name: part[0].numpy() in collector.state_space[name] for name, part in states.items()
        }
        assert collector.action_space == plain.action_space["sheep_0"]
        assert set(collector.vec_reset()) == {"obs", "state"}
        collector.rollout()
        np.testing.assert_array_equal(collector.obs[0, :, 2], np.zeros((3, 4)))  # comes late


def test_ends_are_not_reset_again() -> None:
    with RolloutCollector(herds(length=2), Thinking(), 5, seed=3) as collector:
        for _ in range(2):
            collector.vec_step(torch.ones(3, 4))
        first = collector.t_states["obs"][0].clone()
        assert torch.equal(collector.env_reset(0)["obs"], first)


# -- halves, and where tensors are ---------------------------------------------------------------


@pytest.mark.parametrize("staged", [False, True], ids=["here", "staged"])
def test_halves_leave_what_all_at_once_leave(staged: bool, monkeypatch: Any) -> None:
    with RolloutCollector(herds(4), Thinking(), 6, seed=2) as collector:
        expected = rollouts(collector, 3)
    if staged:
        monkeypatch.setattr(results_module, "Transfer", StagedTransfer)
    for options in ({"in_series": 2}, {"in_series": 1, "copy": False}):
        envs = herds(4, "subproc", **options)
        with RolloutCollector(envs, Thinking(), 6, seed=2, halves=2) as collector:
            assert collector.halves == 2
            assert rollouts(collector, 3) == expected


def test_halves_may_come_in_pieces() -> None:
    with RolloutCollector(herds(4), Thinking(), 9, seed=2) as collector:
        expected = rollouts(collector, 3)
    envs = herds(4, "subproc", Uneven, in_series=1)
    with RolloutCollector(envs, Thinking(), 9, seed=2, halves=2) as collector:
        assert rollouts(collector, 3) == expected


@pytest.mark.parametrize("masks", [None, "observation"])
def test_what_environments_write_again_is_kept(masks: str | None) -> None:
    with RolloutCollector(herds(masks=masks), Thinking(), 6, seed=2) as collector:
        expected = rollouts(collector, 3)
    with RolloutCollector(herds(masks=masks, copy=False), Thinking(), 6, seed=2) as collector:
        assert rollouts(collector, 3) == expected


def test_images_have_their_channels_first_and_may_stay_bytes() -> None:
    options = {"images": True}
    with (
        RolloutCollector(herds(**options), Thinking(), 6, seed=2) as turned,
        RolloutCollector(herds(**options), Thinking(), 6, seed=2, channels_first=False) as plain,
        RolloutCollector(herds(**options), Thinking(), 6, seed=2, state_dtype=torch.uint8) as small,
    ):
        for collector in (turned, plain, small):
            collector.rollout()
        assert turned.obs.shape == (6, 3, 4, 2, 6, 6)
        assert turned.state_shape == {"obs": (4, 2, 6, 6), "state": (2,)}
        assert plain.obs.shape == (6, 3, 4, 6, 6, 2)
        assert torch.equal(turned.obs.movedim(-3, -1), plain.obs)
        assert torch.equal(turned.end_obs.movedim(-3, -1), plain.end_obs)
        assert small.obs.dtype == torch.uint8
        assert small.states.dtype == torch.float32
        assert torch.equal(small.obs.float(), turned.obs)
        seen = plain.t_states
        assert torch.equal(turned.permute_state(seen)["obs"], seen["obs"].movedim(-1, -3))


def test_no_tensor_is_written_to_again_and_none_requires_grad() -> None:
    with RolloutCollector(herds(), Thinking(), 4, seed=2) as collector:
        collector.rollout()
        kept = {name: getattr(collector, name) for name in RESULTS if name != "action_masks"}
        copies = {name: tensor.clone() for name, tensor in kept.items()}
        for _ in range(3):
            collector.rollout()
        for name, tensor in kept.items():
            assert torch.equal(tensor, copies[name]), name
            assert not tensor.requires_grad


# -- recordings, bars ----------------------------------------------------------------------------


def test_episodes_are_recorded(tmp_path: Any) -> None:
    recorder = GifRecorder(1, folder=tmp_path)
    with RolloutCollector(herds(), Thinking(), 8, seed=2, recorder=recorder) as collector:
        collector.rollout()
        assert recorder.count == 1
        assert collector.render_folder == str(tmp_path)
        collector.test_agent(3)
        assert [len(images) for images in collector.images] == [3, 3, 3]
        assert collector.global_steps == 24


# -- what is wrong -------------------------------------------------------------------------------


class NotNumbers(Thinking):
    """Its values are NaN from a call on, of those that live or of the others."""

    def __init__(self, call: int, living: bool) -> None:
        self.calls, self.call, self.living = 0, call, living

    def get_actions_and_values(self, obs: Any, states: Any, masks: Any, actions: Any = None) -> Any:
        actions, log_probs, values, entropy = super().get_actions_and_values(obs, states, masks)
        self.calls += 1
        if self.calls >= self.call:
            lives = obs.any(-1)
            values = values.masked_fill(lives if self.living else ~lives, torch.nan)
        return actions, log_probs, values, entropy


def test_values_of_those_that_act_are_numbers() -> None:
    with (
        RolloutCollector(herds(), NotNumbers(3, True), 5) as collector,
        pytest.raises(ValueError, match=r"NaN, first at step 2 .* environments 0 to 2"),
    ):
        collector.rollout()
    with RolloutCollector(herds(), NotNumbers(6, True), 5) as collector:
        collector.rollout()
        with pytest.raises(ValueError, match="values of end_states: expected numbers, got NaN"):
            collector.advantages(GAMMA, LAMBDA)
    with RolloutCollector(herds(length=30), NotNumbers(1, False), 5) as collector:
        collector.rollout()
        assert collector.values.isnan().any()
        assert collector.advantages(GAMMA, LAMBDA).isfinite().all()


def test_a_collector_that_makes_environments_itself_says_what_to_do() -> None:
    with pytest.raises(TypeError, match="pass it to RolloutCollector, or"):
        SyncVecEnv(Herd, 2, 3, agent=Thinking(), backend=partial(MultiAgentVecEnv, backend="dummy"))


# -- ends that nobody told -----------------------------------------------------------------------


class Killer(Thinking):
    """Ends a worker before a step."""

    def __init__(self, envs: MultiAgentVecEnv, step: int) -> None:
        self.envs, self.left = envs, step

    def get_actions_and_values(self, *given: Any, **more: Any) -> Any:
        self.left -= 1
        if not self.left:
            os.kill(self.envs.vec_env.pids[0], signal.SIGKILL)
        return super().get_actions_and_values(*given, **more)


def restarting(count: int) -> MultiAgentVecEnv:
    options = {"in_series": 1, "on_worker_failure": "restart"}
    return MultiAgentVecEnv([partial(Herd, length=9)] * count, backend="subproc", **options)


def test_a_rollout_may_end_with_a_lost_worker() -> None:
    envs = restarting(2)
    with RolloutCollector(envs, Killer(envs, 4), 4, seed=3) as collector:
        collector.rollout()
        assert collector.acted[:, 0].any(1).tolist() == [True, True, True, False]
        assert collector.ep_counts.tolist() == [1, 1]
        rewards, values = collector.rewards, collector.values
        advantages = collector.advantages(GAMMA, LAMBDA)
        last = rewards[2, 0] + GAMMA * values[3, 0] - values[2, 0]
        torch.testing.assert_close(advantages[2, 0], last)
        end_values = worth_of(collector.end_obs, collector.end_states)
        last = rewards[3, 1] + GAMMA * end_values[1] - values[3, 1]
        torch.testing.assert_close(advantages[3, 1], last)


def test_what_a_lost_worker_did_not_do_is_no_action() -> None:
    envs = restarting(2)
    with RolloutCollector(envs, Killer(envs, 3), 5, seed=3) as collector:
        collector.rollout()
        assert collector.acted[:, 0, 0].tolist() == [True, True, False, True, True]
        assert collector.acted[:, 1].all()
        rewards, values = collector.rewards[:, 0, 0], collector.values[:, 0, 0]
        advantages = collector.advantages(GAMMA, LAMBDA)[:, 0, 0]
        last = rewards[1] + GAMMA * values[2] - values[1]
        assert advantages[2] == 0
        assert advantages[1] == pytest.approx(float(last), rel=1e-5)
        state = collector.state_dict()
        expected = rollouts(collector, 2)
        collector.load_state_dict(state)
        assert rollouts(collector, 2) == expected
