"""The timing policy, with runners that keep a clock of their own: no test looks at real speed."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from xuance_envs.measure import StepLoop, Throughput, measure, progress_ticks, sample_actions


class FakeRunner:
    """Pretends that every vector step takes ``step_seconds``."""

    def __init__(self, name: str, step_seconds: float, log: list[tuple[str, int]]) -> None:
        self.num_envs = 4
        self.name = name
        self.step_seconds = step_seconds
        self.log = log

    def run(self, steps: int) -> float:
        self.log.append((self.name, steps))
        return steps * self.step_seconds


class FakeVecEnv:
    def __init__(self) -> None:
        self.seen: list[object] = []

    def step(self, actions: object) -> None:
        self.seen.append(actions)


def test_the_rate_counts_every_environment_and_comes_out_in_the_order_given() -> None:
    log: list[tuple[str, int]] = []
    runners = {"b": FakeRunner("b", 0.001, log), "a": FakeRunner("a", 0.002, log)}
    result = measure(runners, rounds=3, seconds=0.1)
    assert list(result) == ["b", "a"]
    assert result["b"].rates == pytest.approx((4000.0,) * 3)
    assert result["a"].median == pytest.approx(2000.0)
    assert result["b"].relative_to(result["a"]) == pytest.approx(2.0)


def test_rounds_are_interleaved_and_every_second_one_is_reversed() -> None:
    log: list[tuple[str, int]] = []
    runners = {name: FakeRunner(name, 0.001, log) for name in "abc"}
    measure(runners, rounds=2, seconds=0.1)
    timed = [name for name, steps in log[-12:] if steps == 100]
    lead_ins = [name for name, steps in log[-12:] if steps == 5]
    assert timed == lead_ins == ["a", "b", "c", "c", "b", "a"]


def test_a_step_longer_than_the_round_is_still_timed_once() -> None:
    log: list[tuple[str, int]] = []
    result = measure({"slow": FakeRunner("slow", 5.0, log)}, rounds=1, seconds=0.1)
    assert log == [("slow", 1)] * 3
    assert result["slow"].median == pytest.approx(0.8)


def test_progress_hears_of_every_warm_up_and_every_round() -> None:
    heard: list[str] = []
    runners = {name: FakeRunner(name, 0.001, []) for name in "ab"}
    measure(runners, rounds=3, seconds=0.01, progress=lambda name, rate: heard.append(name))
    assert len(heard) == progress_ticks(runners=2, rounds=3)
    assert heard[:4] == ["a", "b", "a", "b"]


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"seconds": 0.0}, {"seconds": float("nan")}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        measure({}, **wrong)  # type: ignore[arg-type]  # the wrong values are the point


def test_median_spread_and_ratio_are_taken_over_the_rounds() -> None:
    one = Throughput("one", 1, (100.0, 200.0, 300.0))
    other = Throughput("other", 1, (50.0, 50.0, 300.0))
    assert one.median == 200.0
    assert one.quartiles == (150.0, 250.0)
    assert one.spread == pytest.approx(0.5)
    assert one.relative_to(other) == 2.0


def test_the_step_loop_repeats_its_actions_and_goes_on_where_it_stopped() -> None:
    vec_env = FakeVecEnv()
    loop = StepLoop(vec_env, num_envs=2, actions=["x", "y", "z"])
    assert loop.run(4) >= 0.0
    loop.run(1)
    assert vec_env.seen == ["x", "y", "z", "x", "y"]


def test_sampled_actions_are_batches_of_the_spaces_own_dtype() -> None:
    discrete = sample_actions(spaces.Discrete(3), 8)
    assert discrete[0].shape == (8,)
    assert discrete[0].dtype == np.int64
    assert len(sample_actions(spaces.Discrete(3), 8, steps=5)) == 5
    box = sample_actions(spaces.Box(-1, 1, (2,), np.float32), 8)
    assert box[0].shape == (8, 2)
    assert box[0].dtype == np.float32
    tuples = sample_actions(spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))), 5)
    assert isinstance(tuples[0], list)
    assert len(tuples[0]) == 5


def test_sampling_repeats_itself_and_leaves_the_space_alone() -> None:
    space = spaces.Discrete(1000, seed=7)
    first = sample_actions(space, 4, seed=1)
    assert np.array_equal(first, sample_actions(space, 4, seed=1))
    assert not np.array_equal(first, sample_actions(space, 4, seed=2))
    assert space.sample() == spaces.Discrete(1000, seed=7).sample()
