"""Collectors where the environments are: the same tensors, whoever plays them."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from leftovers import is_running, wait_until
from ray_actors import VARIABLES

torch = pytest.importorskip("torch")
for library in ("PIL", "tqdm"):
    pytest.importorskip(library)

from gymnasium import spaces
from masked_envs import MaskedEnv
from rollout_reference import PlayEnv, Player, parts_of

from xuance_envs import (
    ClosedVecEnvError,
    DummyVecEnv,
    EnvError,
    RayRolloutCollector,
    RolloutCollector,
    WorkerDiedError,
    WorkerTimeoutError,
)
from xuance_envs.rollout.collecting import reseed

pytestmark = pytest.mark.usefixtures("ray_here")

ROOT = Path(__file__).resolve().parents[2]
TWO = spaces.Discrete(2)
SPACES = {
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "dict": spaces.Dict(camera=spaces.Box(0, 255, (8, 6, 3), np.uint8), gear=spaces.Discrete(5)),
}
LENGTHS = ((3, 1, 4), (2, 5), (1,), (7, 2), (30,))
RESULTS = (
    *("states", "actions", "rewards", "values", "log_probs", "done_flags", "trunc_flags"),
    *("end_states", "ep_counts", "t_states"),
)
STATISTICS = (
    *("rolling_ep_returns", "rolling_ep_lengths", "finished_ep_returns", "max_ep_return"),
    *("mean_ep_return", "median_ep_length", "global_steps", "total_return"),
)


class SeededEnv(PlayEnv):
    """What it shows follows from the seed of its first reset; tells where it lives."""

    action: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.observation_space.seed(seed)
        return super().reset()

    def step(self, action: Any) -> Any:
        path = os.environ.get("XUANCE_ENVS_TOLD")
        if path and not self.episode and not self.steps:
            with Path(path).open("a") as file:
                file.write(f"{os.getpid()}\n")
        return super().step(action)


class Thinker(Player):
    """Does what it sees."""

    def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
        if actions is None:
            first = parts_of(states)[0]
            actions = (first.double().reshape(len(first), -1).sum(1) * 1e3).long() % 2
        return super().get_actions_and_values(states, actions)


class Weighing(torch.nn.Module):
    """Values are its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))

    def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
        nothing = torch.zeros(len(states))
        return nothing.int(), nothing, nothing + self.weight[0], nothing


class Drawing(torch.nn.Module):
    """Its values are noise, and its log-probabilities noise of its own generators."""

    def __init__(self) -> None:
        super().__init__()
        self.torch = torch.Generator().manual_seed(3)
        self.numpy = np.random.default_rng(3)

    def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
        n = len(states)
        own = torch.rand(n, generator=self.torch) + torch.from_numpy(self.numpy.random(n) * 1e3)
        return torch.zeros(n).int(), own.float(), torch.rand(n), None


def env_fns(space: Any, kind: Any = SeededEnv) -> list[Any]:
    return [
        partial(kind, number, space, TWO, lengths, told="record")
        for number, lengths in enumerate(LENGTHS)
    ]


def collected(collector: Any, rollouts: int = 3) -> list[dict[str, Any]]:
    found = []
    with collector:
        for _ in range(rollouts):
            collector.rollout()
            found.append({name: getattr(collector, name) for name in RESULTS})
            # Those of one that plays itself go on growing.
            found[-1] |= {name: copy.deepcopy(getattr(collector, name)) for name in STATISTICS}
            found[-1]["advantages"] = collector.advantages(0.9, 0.8)
    return found


def assert_same(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        for name, value in one.items():
            if name in STATISTICS:
                assert value == other[name], name
                continue
            for part, same in zip(parts_of(value), parts_of(other[name]), strict=True):
                assert (part.dtype, part.requires_grad) == (same.dtype, same.requires_grad), name
                assert torch.equal(part, same), name


@pytest.mark.parametrize(
    ("space", "count", "options"),
    [
        ("vector", 1, {"processes": 1}),
        pytest.param("vector", 3, {"processes": 1}, marks=pytest.mark.long),
        ("vector", 2, {"processes": 2}),
        pytest.param("vector", 1, {"processes": 4, "halves": 2}, marks=pytest.mark.long),
        ("dict", 2, {"processes": 1}),
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


def test_what_is_delivered_stays_as_it_is() -> None:
    functions = env_fns(SPACES["vector"])
    with RayRolloutCollector(functions, Thinker(TWO), 2, 4, processes=1) as collector:
        collector.rollout()
        held, copies = collector.states, collector.states.clone()
        collector.rollout()
        assert torch.equal(held, copies)
        held.sum().backward()


def test_no_two_collectors_draw_the_same_noise() -> None:
    torch.manual_seed(11)
    functions = env_fns(SPACES["vector"])[:4]
    with RayRolloutCollector(functions, Drawing(), 4, 5, processes=1) as collector:
        torch.manual_seed(11)
        collector.rollout()
        agent = Drawing()
        for t in range(5):  # the first one goes on with what there is
            _, log_probs, values, _ = agent.get_actions_and_values(torch.zeros(1, 3))
            assert collector.values[t, 0] == values
            assert collector.log_probs[t, 0] == log_probs
        for name in ("values", "log_probs"):
            assert len(set(getattr(collector, name).flatten().tolist())) == 20
            assert len({tuple(row) for row in getattr(collector, name).t().tolist()}) == 4


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


def test_weights_go_to_all_and_rows_say_how_far_behind_they_are() -> None:
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


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({}, "expected parameter 'weight', which is missing"),
        ({"weight": torch.zeros(3)}, r"parameter 'weight': expected shape \(2,\), got \(3,\)"),
        ({"weight": torch.zeros(2), "more": torch.zeros(1)}, "got parameter 'more'"),
    ],
)
def test_weights_that_do_not_fit_are_named(weights: Any, said: str) -> None:
    with RayRolloutCollector(env_fns(SPACES["vector"]), Weighing(), 1, 3, processes=1) as collector:
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


class FailingEnv(SeededEnv):
    def step(self, action: Any) -> Any:
        if self.steps == 2:
            raise ValueError("as told")
        return super().step(action)


class DyingEnv(SeededEnv):
    def step(self, action: Any) -> Any:
        if self.steps == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


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
        assert "collector 1 is made anew" in caplog.text
        os.kill(next(p for p in pids if pids.count(p) == 2), signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match=r"(?s)environments 0, 1 .*no restart is left"):
            collector.rollout()


class SlowEnv(SeededEnv):
    def step(self, action: Any) -> Any:
        import time

        time.sleep(0.2)
        return super().step(action)


@pytest.mark.long
def test_after_an_interrupt_the_next_call_takes_the_rollout() -> None:
    functions = env_fns(SPACES["vector"], SlowEnv)[:2]
    with RayRolloutCollector(functions, Thinker(TWO), 2, 6, seed=1, processes=1) as collector:
        main = threading.main_thread().ident
        timer = threading.Timer(0.4, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            collector.rollout()
        timer.join()
        found = collected(collector, 1)
    own = RolloutCollector(
        DummyVecEnv(env_fns(SPACES["vector"])[:2]), Thinker(TWO), 6, device="cpu", seed=1
    )
    assert_same(found, collected(own, 1))


@pytest.mark.long
def test_two_of_them_do_not_meet_and_closing_twice_is_as_good_as_once(tmp_path: Path) -> None:
    functions = env_fns(SPACES["vector"])
    told = tmp_path / "pids"
    runtime_env = {"env_vars": {"XUANCE_ENVS_TOLD": str(told)}}
    options: dict[str, Any] = {"processes": 1, "seed": 3, "runtime_env": runtime_env}
    one = RayRolloutCollector(functions, Thinker(TWO), 1, 6, **options)
    other = RayRolloutCollector(functions, Thinker(TWO), 1, 6, **options)
    one.rollout()
    other.rollout()
    assert torch.equal(one.states, other.states)
    one.close()
    one.close()
    other.rollout()
    other.close()
    assert wait_until(lambda: not any(is_running(int(p)) for p in told.read_text().split()))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_collectors": 6}, "num_collectors: expected from 1 to 5"),
        ({"steps_per_env": 0}, "steps_per_env: expected at least 1, got 0"),
        ({"processes": 0}, "processes: expected 'auto' or at least 1, got 0"),
        ({"num_envs": 3}, "num_envs: expected None"),
        ({"env_fns": SeededEnv}, "num_envs: expected how many"),
        ({"start_timeout": 0}, "start_timeout"),
    ],
)
def test_a_wrong_argument_is_told(arguments: Any, said: str) -> None:
    given = {"env_fns": env_fns(SPACES["vector"]), "num_collectors": 2, "steps_per_env": 3}
    with pytest.raises(ValueError, match=said):
        RayRolloutCollector(agent=Thinker(TWO), **{**given, **arguments})


@pytest.mark.long
def test_too_little_room_is_told() -> None:
    with pytest.raises(WorkerTimeoutError, match=r"2 × 5 CPU \(in the cluster 4"):
        RayRolloutCollector(
            env_fns(SPACES["vector"]) * 2, Thinker(TWO), 2, 3, processes=5, start_timeout=2.0
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


def run_script(path: Path, *arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    result = subprocess.run(
        [sys.executable, str(path), *arguments],
        env={**environ, **VARIABLES, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.long
def test_a_script_without_a_guard_has_its_own_environments_and_agent(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert run_script(script) == "12.0 [1.0, 1.0, 1.0, 1.0]\n"


@pytest.mark.long
@pytest.mark.parametrize("env_id", ["Taxi-v3", "Pendulum-v1"])  # masks; a scale of its own
def test_the_example_of_ppo_trains_with_collectors(env_id: str) -> None:
    if env_id not in gymnasium.registry:
        env_id = "Taxi-v4"
    told = run_script(
        ROOT / "examples" / "train_ppo.py",
        *("--env", env_id, "--collectors", "2", "--num-envs", "4", "--steps", "600"),
    )
    last = told.splitlines()[-1]
    assert int(last.split()[0].replace(",", "")) >= 600
    assert "mean return" in last
