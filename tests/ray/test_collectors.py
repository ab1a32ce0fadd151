"""Collectors where the environments are: the same tensors, whoever plays them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from interrupts import RandomInterrupts
from leftovers import is_running, wait_until
from ray_actors import VARIABLES

torch = pytest.importorskip("torch")
for library in ("PIL", "tqdm"):
    pytest.importorskip(library)

from checkpoints import through_torch
from collected_envs import (
    RESULTS,
    SPACES,
    TWO,
    Drawing,
    Thinker,
    Weighing,
    assert_same,
    collected,
    env_fns,
)
from example_envs import TAXI
from gymnasium.wrappers import NormalizeReward
from masked_envs import MaskedEnv
from play_envs import DyingEnv, FailingEnv, HangingEnv, NeverMadeEnv, SeededEnv
from vector_reward_envs import GoalsEnv

from xuance_envs import (
    AlreadySteppingError,
    ClosedVecEnvError,
    DummyVecEnv,
    EnvError,
    Gym_Env,
    RayRolloutCollector,
    RolloutCollector,
    StateMismatchError,
    WorkerDiedError,
    WorkerTimeoutError,
)
from xuance_envs.engine.ray.cluster import ActorOptions, RayCluster
from xuance_envs.engine.serialization import dumps_for_worker, loads
from xuance_envs.rollout.collector_actor import get_rng_states, reseed, set_rng_states
from xuance_envs.rollout.collector_pool import max_cpus_per_collector

pytestmark = pytest.mark.usefixtures("actors")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let collectors start for as long as a test may take; torch loads slowly on a busy machine."""
    monkeypatch.setitem(RayRolloutCollector.__init__.__kwdefaults__, "start_timeout", 280.0)


@pytest.mark.slow("starts actors and processes that load PyTorch")
@pytest.mark.parametrize(
    ("space", "count", "options"),
    [
        pytest.param("vector", 1, {"processes": 1}, marks=pytest.mark.long),
        pytest.param("vector", 3, {"processes": 1}, marks=pytest.mark.long),
        ("vector", 2, {"processes": 2}),
        pytest.param("vector", 1, {"processes": 4, "halves": 2}, marks=pytest.mark.long),
        pytest.param("dict", 2, {"processes": 1}, marks=pytest.mark.long),
    ],
)
def test_the_tensors_are_those_of_one_collector(space: str, count: int, options: Any) -> None:
    functions = env_fns(SPACES[space])
    own = RolloutCollector(DummyVecEnv(functions), Thinker(TWO), 6, device="cpu", seed=40)
    expected = collected(own)
    found = RayRolloutCollector(functions, Thinker(TWO), count, 6, seed=40, **options)
    assert (found.num_envs, found.state_shape) == (5, own.state_shape)
    assert_same(collected(found), expected)


class Obedient:
    """Does the first thing that is allowed."""

    def get_actions_and_values(self, states: Any, actions: Any = None, *, masks: Any) -> Any:
        allowed = masks.sum(1).float()
        return masks.int().argmax(1), allowed, states[:, 0] + allowed, allowed


@pytest.mark.parametrize("where", ["method", pytest.param("action_mask", marks=pytest.mark.long)])
def test_an_agent_that_takes_masks_is_given_those_of_its_environments(where: str) -> None:
    functions = [partial(MaskedEnv, number, where=(where,)) for number in range(5)]
    own = RolloutCollector(DummyVecEnv(functions), Obedient(), 6, device="cpu")
    with own, RayRolloutCollector(functions, Obedient(), 2, 6, processes=2) as collector:
        for _ in range(2):
            own.rollout()
            collector.rollout()
            assert own.action_masks is not None
            assert torch.equal(collector.action_masks, own.action_masks)
            assert torch.equal(collector.actions, own.actions)
            assert torch.equal(collector.values, own.values)
            assert torch.equal(collector.advantages(0.9, 0.8), own.advantages(0.9, 0.8))


class ThreeValued:
    """Estimates one value for each of three components of a reward, or one for their sum."""

    def __init__(self, k: int) -> None:
        self.k = k

    def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
        nothing = torch.zeros(len(states))
        values = states[:, :1] * torch.arange(1.0, self.k + 1)
        return states[:, 0].int() % 9, nothing, values if self.k > 1 else values[:, 0], nothing


@pytest.mark.parametrize("scalarize", [None, [1.0, -0.5, 2.0]])
def test_vector_rewards_are_those_of_one_collector(scalarize: Any) -> None:
    functions = [partial(GoalsEnv, 3, 3 + i) for i in range(4)]
    agent = ThreeValued(3 if scalarize is None else 1)
    options: Any = {"seed": 40, "scalarize": scalarize}
    own = RolloutCollector(DummyVecEnv(functions), agent, 6, device="cpu", **options)
    with own, RayRolloutCollector(functions, agent, 2, 6, processes=1, **options) as collector:
        for _ in range(2):
            own.rollout()
            collector.rollout()
            assert own.rewards.shape == ((6, 4, 3) if scalarize is None else (6, 4))
            assert torch.equal(collector.rewards, own.rewards)
            assert torch.equal(collector.values, own.values)
            assert torch.equal(collector.advantages(0.9, 0.8), own.advantages(0.9, 0.8))
        assert str(collector.mean_ep_return) == str(own.mean_ep_return)


def test_what_is_delivered_stays_as_it_is() -> None:
    functions = env_fns(SPACES["vector"])
    with RayRolloutCollector(functions, Thinker(TWO), 2, 4, processes=1) as collector:
        collector.rollout()
        held, copies = collector.states, collector.states.clone()
        collector.rollout()
        assert torch.equal(held, copies)
        held.sum().backward()


@pytest.mark.long
def test_no_two_collectors_draw_the_same_noise() -> None:
    torch.manual_seed(11)
    functions = env_fns(SPACES["vector"])[:3]
    with RayRolloutCollector(functions, Drawing(), 3, 5, processes=1) as collector:
        torch.manual_seed(11)
        collector.rollout()
        agent = Drawing()
        for t in range(5):  # the first one goes on with what there is
            _, log_probs, values, _ = agent.get_actions_and_values(torch.zeros(1, 3))
            assert collector.values[t, 0] == values
            assert collector.log_probs[t, 0] == log_probs
        for name in ("values", "log_probs"):
            assert len(set(getattr(collector, name).flatten().tolist())) == 15
            assert len({tuple(row) for row in getattr(collector, name).t().tolist()}) == 3


def test_a_second_life_draws_something_else() -> None:
    state = torch.get_rng_state()
    try:
        found = []
        for path in ((0, 0), (0, 1), (1, 0), (1, 1)):
            reseed(Drawing(), state.numpy().tobytes(), path)
            found.append(float(torch.rand(())))
        assert len(set(found)) == 4
    finally:
        torch.set_rng_state(state)


class Noise:
    __slots__ = ("draws", "rng")

    def __init__(self) -> None:
        self.rng = np.random.default_rng(4)
        numbers = random.Random(4)
        self.draws = {"closure": lambda: numbers.random()}


class NestedNoise:
    """An agent whose generators belong to other objects."""

    def __init__(self) -> None:
        self.noises = [Noise(), np.random.RandomState(4)]
        self.shuffled = partial(torch.rand, 1, generator=torch.Generator().manual_seed(4))
        self.space = gymnasium.spaces.Discrete(1 << 40, seed=4)
        self.unused_space = gymnasium.spaces.Discrete(1 << 40)

    def drawn(self) -> list[float]:
        noise, legacy = self.noises
        own = float(self.shuffled()), int(self.space.sample()), int(self.unused_space.sample())
        return [noise.rng.random(), noise.draws["closure"](), legacy.standard_normal(), *own]


def test_generators_of_an_agents_parts_are_its_own_in_each_collector_and_saved() -> None:
    state = torch.get_rng_state()
    try:
        agents = [loads(dumps_for_worker(NestedNoise())) for _ in range(3)]
        for number, agent in enumerate(agents):
            agent.noises[1].standard_normal()  # the second of a pair is left
            reseed(agent, state.numpy().tobytes(), (number, 0))
        saved = [get_rng_states(agent) for agent in agents]
        drawn = [agent.drawn() for agent in agents]
        for column in zip(*drawn, strict=True):
            assert len(set(column)) == 3
        copy = NestedNoise()
        for states, expected in zip(saved, drawn, strict=True):
            set_rng_states(copy, states)
            assert copy.drawn() == expected
    finally:
        torch.set_rng_state(state)


def test_weights_go_to_all_and_rows_say_how_far_behind_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[Any] = []  # Ray brings what is put once to each node
    put, call = RayCluster.put, RayCluster.call

    def counted_call(cluster: RayCluster, method: Any, *arguments: Any) -> Any:
        assert not any(isinstance(argument, bytes) for argument in arguments)
        return call(cluster, method, *arguments)

    monkeypatch.setattr(RayCluster, "put", lambda *given: sent.append(1) or put(*given))
    monkeypatch.setattr(RayCluster, "call", counted_call)
    functions = env_fns(SPACES["vector"])
    agent = Weighing()
    with RayRolloutCollector(functions, agent, 2, 3, processes=1) as collector:
        collector.rollout()
        assert not collector.values.any()
        assert collector.policy_lag.tolist() == [[0] * 5] * 3
        agent.weight.data.fill_(1.0)
        collector.update_agent()
        collector.collect_async()
        collector.update_agent({"weight": torch.full((2,), 2.0)})
        collector.update_agent({"weight": torch.full((2,), 3.0)})
        collector.rollout()
        assert collector.values.eq(1).all()
        assert collector.policy_lag.dtype is torch.int32
        assert collector.policy_lag.tolist() == [[2] * 5] * 3
        collector.rollout()
        assert collector.values.eq(3).all()
        assert not collector.policy_lag.any()
    assert len(sent) == 3


def test_weights_that_do_not_fit_are_named() -> None:
    with RayRolloutCollector(env_fns(SPACES["vector"]), Weighing(), 1, 3, processes=1) as collector:
        for weights, said in (
            ({}, "parameter 'weight' is missing"),
            ({"weight": torch.zeros(3)}, r"'weight': expected shape \(2,\), got \(3,\)"),
            ({"weight": torch.zeros(2), "more": torch.zeros(1)}, "has no parameter 'more'"),
        ):
            with pytest.raises(ValueError, match=said):
                collector.update_agent(weights)
            collector.rollout()


@pytest.mark.long
def test_an_agent_without_weights_cannot_be_given_any() -> None:
    functions = env_fns(SPACES["vector"])
    with (
        RayRolloutCollector(functions, Thinker(TWO), 1, 3, processes=1) as collector,
        pytest.raises(TypeError, match="expected an agent with state_dict"),
    ):
        collector.update_agent()


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.long), 2])
def test_an_environment_that_raises_is_named_with_its_collector_and_node(processes: int) -> None:
    functions = env_fns(SPACES["vector"])
    functions[4] = partial(FailingEnv, 4, SPACES["vector"], TWO, (9,))
    collector = RayRolloutCollector(functions, Thinker(TWO), 2, 6, processes=processes)
    said = r"environment 4 failed in 'step': ValueError: as told \(in collector 1 on node .*id "
    with pytest.raises(EnvError, match=said) as caught:
        collector.rollout()
    assert caught.value.env_index == 4
    with pytest.raises(ClosedVecEnvError):
        collector.rollout()
    collector.close()


def test_a_process_that_dies_is_named_with_its_collector() -> None:
    functions = env_fns(SPACES["vector"])
    functions[4] = partial(DyingEnv, 4, SPACES["vector"], TWO, (9,))
    collector = RayRolloutCollector(functions, Thinker(TWO), 2, 6, processes=2)
    with pytest.raises(WorkerDiedError, match=r"(?s)environment.* 4 .*collector 1 on node"):
        collector.rollout()


@pytest.mark.slow("starts actors that load PyTorch, one of them again")
def test_a_lost_collector_is_made_anew_with_the_current_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = tmp_path / "pids"
    agent = Weighing()
    functions = env_fns(SPACES["vector"])
    runtime_env = {"env_vars": {"XUANCE_ENVS_TOLD": str(told)}}
    with RayRolloutCollector(
        functions, agent, 2, 6, processes=1, seed=0, runtime_env=runtime_env, max_restarts=1
    ) as collector:
        collector.rollout()
        before = collector.t_states.clone()
        pids = [int(line) for line in told.read_text().split()]
        assert len(set(pids)) == 2
        agent.weight.data.fill_(1.0)
        collector.update_agent()
        pid = next(pid for pid in pids if pids.count(pid) == 3)  # of environments 2 to 4
        os.kill(pid, signal.SIGKILL)
        collector.rollout()
        assert collector.values.eq(1).all()
        assert torch.equal(collector.states[0, :2], before[:2])
        assert not torch.equal(collector.states[0, 2:], before[2:])
        assert collector.global_steps == 60
        assert "restarting collector 1: " in caplog.text
        os.kill(next(p for p in pids if pids.count(p) == 2), signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="environments 0, 1 died during 'state_dict'"):
            collector.state_dict()
        with pytest.raises(WorkerDiedError, match=r"(?s)environments 0, 1 .*no restarts are left"):
            collector.rollout()


class SeedAndPidEnv(SeededEnv):
    def __init__(self, env_seed: int) -> None:
        super().__init__(0, gymnasium.spaces.Box(0, np.inf, (2,)), TWO, (9,))
        self.env_seed = env_seed

    def step(self, action: Any) -> Any:
        return np.array([self.env_seed, os.getpid()], np.float32), *super().step(action)[1:]


@pytest.mark.slow("starts an actor that loads PyTorch, and starts it again")
def test_a_lost_collector_is_made_anew_with_other_env_seeds_and_counts_anew() -> None:
    with RayRolloutCollector(
        SeedAndPidEnv, Thinker(TWO), 1, 3, num_envs=2, processes=1, env_seed=5
    ) as collector:
        collector.rollout()
        seeds, pids = collector.states[-1].t().long().tolist()
        assert seeds == [5, 6]
        os.kill(pids[0], signal.SIGKILL)
        collector.load_state_dict(collector.state_dict())
        for _ in range(3):
            collector.rollout()
        new_seeds, new_pids = collector.states[-1].t().long().tolist()
        assert set(pids).isdisjoint(new_pids)
        assert len({*seeds, *new_seeds}) == 4
        assert collector.rolling_ep_lengths == [[9], [9]], "the lost episodes' steps count"


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_an_environment_that_hangs_is_named_with_its_collector_and_node(processes: int) -> None:
    functions = env_fns(SPACES["vector"])
    functions[4] = partial(HangingEnv, 4, SPACES["vector"], TWO, (9,))
    collector = RayRolloutCollector(
        functions, Thinker(TWO), 2, 6, processes=processes, step_timeout=1.0
    )
    said = r"(?s)did not answer 'step' within 1 s.* in collector 1 on node .*\(id "
    with pytest.raises(WorkerTimeoutError, match=said) as caught:
        collector.rollout()
    assert (caught.value.env_index, 4 in caught.value.env_indices) == (4, True)
    with pytest.raises(ClosedVecEnvError):
        collector.rollout()


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2])
def test_an_environment_that_is_never_made_is_told(processes: int) -> None:
    functions = env_fns(SPACES["vector"])
    functions[4] = partial(NeverMadeEnv, 4, SPACES["vector"], TWO, (9,))
    with pytest.raises(
        WorkerTimeoutError, match=r"(?s)'construct' within 20 s.* collector 1\b"
    ) as told:
        RayRolloutCollector(functions, Thinker(TWO), 2, 6, processes=processes, start_timeout=20.0)
    assert 4 in told.value.env_indices


def test_no_interrupt_at_any_moment_loses_or_repeats_a_rollout() -> None:
    functions = env_fns(SPACES["vector"])
    own = RolloutCollector(DummyVecEnv(functions), Thinker(TWO), 6, device="cpu", seed=1)
    them = RayRolloutCollector(functions, Thinker(TWO), 2, 6, seed=1, processes=1)
    played, taken = 0, []
    with own, them, RandomInterrupts(0.02) as interrupts:
        while interrupts.count < 20:
            assert played < 500, "no interrupt comes"
            while len(taken) == played:
                interrupts.call(lambda: taken.append(them.rollout()))
            played += 1
            own.rollout()
            assert torch.equal(them.states, own.states)
            assert them.global_steps == own.global_steps == played * 30
            assert them.finished_ep_returns == own.finished_ep_returns


def learned(collector: RayRolloutCollector) -> None:
    """Has a rollout played with the weights that the agent has now."""
    collector.update_agent()
    collector.rollout()


def test_an_interrupt_after_any_call_has_it_made_again_and_executed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = [0]
    call = RayCluster.call

    def interrupted_call(cluster: Any, *arguments: Any) -> Any:
        ref = call(cluster, *arguments)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt  # before anybody has taken note of it
        return ref

    agent = Weighing()
    functions = env_fns(SPACES["vector"])
    own = RolloutCollector(DummyVecEnv(functions), Thinker(TWO), 6, device="cpu", seed=1)
    with own, RayRolloutCollector(functions, agent, 2, 6, seed=1, processes=1) as collector:
        monkeypatch.setattr(RayCluster, "call", interrupted_call)
        for after in (1, 2, 3, 4):  # the first two give weights, the others have rollouts played
            left[0] = after
            agent.weight.data.fill_(after)
            with pytest.raises(KeyboardInterrupt):
                learned(collector)
            left[0] = 0
            collector.rollout()
            own.rollout()
            assert torch.equal(collector.states, own.states)
            assert collector.values.eq(after).all()
            assert not collector.policy_lag.any()
        monkeypatch.undo()


@pytest.mark.long
def test_two_of_them_do_not_meet_and_closing_twice_is_as_good_as_once(tmp_path: Path) -> None:
    functions = env_fns(SPACES["vector"])
    told = tmp_path / "pids"
    runtime_env = {"env_vars": {"XUANCE_ENVS_TOLD": str(told)}}
    options: dict[str, Any] = {"seed": 3, "runtime_env": runtime_env}
    one = RayRolloutCollector(functions, Thinker(TWO), 1, 6, processes=1, **options)
    other = RayRolloutCollector(functions, Thinker(TWO), 1, 6, processes=2, **options)
    one.rollout()
    other.rollout()
    assert torch.equal(one.states, other.states)
    one.close()
    one.close()
    other.collect_async()  # one that plays is ended in the midst of it
    other.close()
    pids = {int(line) for line in told.read_text().split()}
    assert len(pids) == 3
    assert wait_until(lambda: not any(map(is_running, pids)))
    for use in (one.rollout, one.collect_async, one.state_dict, one.update_agent):
        with pytest.raises(ClosedVecEnvError):
            use()


# --- states -------------------------------------------------------------------------------------


def a_cartpole() -> Any:
    return NormalizeReward(Gym_Env("CartPole-v1"))


class Leaning:
    """Pushes the way the pole falls, most of the time, without drawing."""

    def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
        side = (states[:, 2] + 0.3 * states[:, 0].sin() > 0).int()
        return side, states[:, 1], states[:, 2], None


def on_cluster(agent: Any, count: int, **options: Any) -> RayRolloutCollector:
    return RayRolloutCollector([a_cartpole] * 5, agent, count, 23, processes=1, **options)


def here(agent: Any, **options: Any) -> RolloutCollector:
    return RolloutCollector(DummyVecEnv([a_cartpole] * 5), agent, 23, device="cpu", **options)


def rollouts(collector: Any, count: int = 3) -> list[Any]:
    found: list[Any] = []
    for _ in range(count):
        collector.rollout()
        found.append({name: getattr(collector, name) for name in RESULTS})
        found[-1]["advantages"] = collector.advantages(0.9, 0.8)
        found[-1]["told"] = torch.tensor(
            [
                collector.global_steps,
                *collector.finished_ep_returns,
                collector.mean_ep_return,
                collector.max_ep_return,
                collector.median_ep_length,
            ]
        )
    return found


def test_it_goes_on_from_where_any_number_of_collectors_was() -> None:
    with here(Leaning(), seed=1) as own:
        assert_same([{"t": on_cluster_states(seed=1)}], [{"t": own.t_states}])
        rollouts(own, 2)
        state = through_torch(own.state_dict())
        expected = rollouts(own)
        with on_cluster(Leaning(), 2, seed=9) as other:
            rollouts(other, 1)
            other.load_state_dict(state)
            assert torch.equal(other.t_states, own._layout.whole([expected[0]["states"][0]]))
            rollouts(other, 1)
            later = through_torch(other.state_dict())
            assert_same(rollouts(other, 2), expected[1:])
            other.load_state_dict(later)
            assert_same(rollouts(other, 2), expected[1:])
        own.load_state_dict(later)
        assert_same(rollouts(own, 2), expected[1:])
        with on_cluster(Leaning(), 3) as third:
            third.load_state_dict(later)
            assert_same(rollouts(third, 2), expected[1:])


def on_cluster_states(**options: Any) -> Any:
    """The first states, before anything is played."""
    with on_cluster(Leaning(), 2, **options) as collector:
        return collector.t_states


def test_as_many_collectors_draw_as_they_would_have() -> None:
    with on_cluster(Drawing(), 2, seed=1) as collector:
        rollouts(collector, 1)
        torch.manual_seed(4)
        state = through_torch(collector.state_dict())
        expected = rollouts(collector, 2)
        drawn = torch.rand(())
    with on_cluster(Drawing(), 2) as other:
        rollouts(other, 2)
        other.load_state_dict(state)
        assert_same(rollouts(other, 2), expected)
        assert torch.rand(()) == drawn  # the caller's own, which learning draws from
        other.load_state_dict(state)
        assert_same(rollouts(other, 2), expected)
    with on_cluster(Drawing(), 3) as third:
        third.load_state_dict(state)
        third.rollout()
        assert len(set(third.values.flatten().tolist())) == 5 * 23


def test_states_that_do_not_fit_change_nothing() -> None:
    functions = [a_cartpole] * 4 + [lambda: Gym_Env("CartPole-v1")]
    with here(Leaning(), seed=1) as own, on_cluster(Leaning(), 2, seed=2) as expected:
        state = own.state_dict()
        with RayRolloutCollector(functions, Leaning(), 2, 23, processes=1, seed=2) as them:
            them.rollout()
            expected.rollout()
            with pytest.raises(ValueError, match="expected a state of 5 environments, got 3"):
                them.load_state_dict({**state, "num_envs": 3})
            said = r"(?s)environment 4 .*differs in its wrappers.*in collector 1 on node"
            with pytest.raises(StateMismatchError, match=said) as caught:
                them.load_state_dict(state)
            assert caught.value.what == "wrappers"
            them.collect_async()
            for use in (them.state_dict, lambda: them.load_state_dict(state)):
                with pytest.raises(AlreadySteppingError, match="call rollout"):
                    use()
            them.rollout()
            expected.rollout()
            assert torch.equal(them.states, expected.states)
            assert them.finished_ep_returns == expected.finished_ep_returns


def test_an_interrupted_load_changes_nothing() -> None:
    with on_cluster(Leaning(), 2, seed=1) as collector:
        rollouts(collector, 1)
        state = collector.state_dict()
        expected = rollouts(collector, 1)
        later = collector.state_dict()
        collector.load_state_dict(state)
        actors = collector._actors
        call_all = actors.call_all

        def interrupted(*arguments: Any) -> Any:
            answers = call_all(*arguments)
            if arguments[0] == "load":
                actors.call_all = call_all
                raise KeyboardInterrupt
            return answers

        actors.call_all = interrupted
        with pytest.raises(KeyboardInterrupt):
            collector.load_state_dict(later)
        assert_same(rollouts(collector, 1), expected)


# --- what is told at the start ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capacities", "count", "expected"),
    [
        ({"a": (4, 4), "b": (4, 4)}, 2, 4),
        ({"a": (4, 4), "b": (2, 2)}, 2, 2),
        ({"a": (9, 9), "b": (3, 3)}, 4, 3),
        ({"a": (1, 8), "b": (0, 8)}, 2, 8),
        ({"a": (0, 1)}, 3, 1),
        ({}, 1, 1),
    ],
)
def test_collectors_take_the_most_they_all_find_room_for(
    capacities: Any, count: int, expected: int
) -> None:
    cluster: Any = SimpleNamespace(wait_until_idle=lambda _: None, capacities=lambda _: capacities)
    assert max_cpus_per_collector(cluster, ActorOptions(), count) == expected


def test_what_there_is_too_little_of_bounds_how_many_are_on_a_node() -> None:
    cluster: Any = SimpleNamespace(
        wait_until_idle=lambda _: None,
        capacities=lambda options: {"a": (1, 1) if options.resources else (8, 8), "b": (3, 3)},
    )
    assert max_cpus_per_collector(cluster, ActorOptions(resources={"special": 1}), 2) == 3


@pytest.mark.parametrize(
    ("alike", "said"),
    [
        (2, "environment 2 has a different observation space than environment 0"),
        (
            4,
            r"environment 2 has a different observation_space .*\(in collector 1 .* is 2\)",
        ),
    ],
)
def test_environments_with_other_spaces_are_told(alike: int, said: str) -> None:
    functions = env_fns(SPACES["vector"])[:alike] + env_fns(SPACES["dict"])[alike:]
    with pytest.raises(RuntimeError, match=said):
        RayRolloutCollector(functions, Thinker(TWO), 2, 3, processes=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_collectors": 6}, "num_collectors: expected 1 to 5"),
        ({"steps_per_env": 0}, "steps_per_env: expected an int of at least 1, got 0"),
        ({"processes": 0}, "processes: expected 'auto' or an int of at least 1, got 0"),
        ({"num_envs": 3}, "num_envs: expected None"),
        ({"env_fns": SeededEnv}, "num_envs: expected an int of at least 1"),
        ({"start_timeout": 0}, "start_timeout"),
        ({"step_timeout": -1.0}, "step_timeout"),
    ],
)
def test_a_wrong_argument_is_told(arguments: Any, said: str) -> None:
    given = {"env_fns": env_fns(SPACES["vector"]), "num_collectors": 2, "steps_per_env": 3}
    with pytest.raises(ValueError, match=said):
        RayRolloutCollector(agent=Thinker(TWO), **{**given, **arguments})


@pytest.mark.long
def test_too_little_room_is_told() -> None:
    with pytest.raises(WorkerTimeoutError, match=r"2 × 12 CPU \(the cluster has 16"):
        RayRolloutCollector(
            env_fns(SPACES["vector"]) * 8, Thinker(TWO), 2, 3, processes=12, start_timeout=15
        )


SCRIPT = """
import gymnasium, numpy as np, torch
import ray
from xuance_envs import RayRolloutCollector

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

class OwnEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}
    def step(self, action):
        return np.ones(1, np.float32), float(action), False, False, {}

class OwnAgent(torch.nn.Module):
    def get_actions_and_values(self, states, actions=None):
        nothing = torch.zeros(len(states))
        return torch.ones(len(states)).int(), nothing, nothing, nothing

with RayRolloutCollector(OwnEnv, OwnAgent(), 1, 3, num_envs=4, processes=2) as collector:
    collector.rollout()
    print(collector.rewards.sum().item(), collector.states[1].flatten().tolist())
"""


def run_script(path: Path, *arguments: str, seconds: float = 110) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    result = subprocess.run(
        [sys.executable, str(path), *arguments],
        env={**environ, **VARIABLES, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.long
def test_a_script_without_a_guard_has_its_own_environments_and_agent(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert run_script(script) == "12.0 [1.0, 1.0, 1.0, 1.0]\n"


@pytest.mark.long
@pytest.mark.parametrize("env_id", [TAXI, "Pendulum-v1"])  # masks; a scale of its own
def test_the_example_of_ppo_trains_with_collectors(env_id: str) -> None:
    told = run_script(
        ROOT / "examples" / "train_ppo.py",
        *("--env", env_id, "--collectors", "2", "--num-envs", "4", "--steps", "600"),
    )
    last = told.splitlines()[-1]
    assert int(last.split()[0].replace(",", "")) >= 600
    assert "mean return" in last


@pytest.mark.long
def test_the_example_learns_with_collectors() -> None:
    path = ROOT / "examples" / "train_ppo.py"
    options = ("--collectors", "2", "--seed", "4")
    told = run_script(path, *options, seconds=1000)
    assert float(told.split()[-1]) >= 475


@pytest.mark.long
def test_the_example_goes_on_with_collectors_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    def train(folder: str, steps: int, *more: str) -> Any:
        kept = tmp_path / folder
        path = ROOT / "examples" / "train_ppo.py"
        options = ("--collectors", "2", "--num-envs", "4", "--steps", str(steps), "--every", "2")
        run_script(path, *options, "--checkpoint", str(kept), *more)
        return torch.load(kept / "checkpoint.pt", weights_only=True)

    expected = train("whole", 4 * 256)
    train("parts", 2 * 256)
    found = train("parts", 4 * 256, "--resume", str(tmp_path / "parts"))
    assert found["collector"]["global_steps"] == expected["collector"]["global_steps"] == 4 * 256
    assert found["agent"].keys() == expected["agent"].keys()
    for name, weights in expected["agent"].items():
        assert torch.equal(found["agent"][name], weights), name
