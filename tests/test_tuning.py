"""The choice of a backend by measuring, on environments whose nature is known."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from xuance_envs import BackendOptions, DummyVecEnv, EnvError, autotune, tuning, tuning_estimates
from xuance_envs.errors import counted
from xuance_envs.measure import Runner, Throughput
from xuance_envs.tuning import Autotuned, Candidate, backend_for


class Work(gymnasium.Env[Any, Any]):
    """Sleeps and computes for so many seconds a step."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, sleep: float = 0.0, compute: float = 0.0, making: float = 0.0) -> None:
        time.sleep(making)
        self.sleep = sleep
        self.compute = compute

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.sleep:
            time.sleep(self.sleep)
        end = time.thread_time() + self.compute
        while time.thread_time() < end:
            pass
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "available_cpus", lambda: 2)


def names(tuned: Autotuned) -> list[str]:
    return [each.name for each in tuned.candidates]


def test_environments_that_wait_get_a_process_each() -> None:
    tuned = autotune(partial(Work, sleep=0.02), 16)
    assert tuned.cpu_fraction < 0.5
    assert 0.02 <= tuned.step_time < 0.5
    assert (tuned.choice.backend, tuned.choice.options) == ("subproc", {"in_series": 1})
    assert "wait" in tuned.reason


def test_a_combination_of_options_is_named_as_such() -> None:
    options: BackendOptions = {"copy": False, "on_worker_failure": "restart", "in_series": 4}
    tuned = autotune(Work, 4, options=options)
    expected = "'subproc' is the only candidate that supports copy and on_worker_failure"
    assert tuned.reason.startswith(expected)


def test_so_many_that_wait_share_some() -> None:
    tuned = autotune(partial(Work, sleep=0.005), 1000)
    assert tuned.choice.backend == "subproc"
    assert tuned.choice.options["in_series"] >= 1000 / tuning_estimates.MAX_WORKERS


def test_the_fastest_as_measured_is_chosen() -> None:
    ticks: list[tuple[str, float]] = []
    tuned = autotune(partial(Work, compute=0.002), 8, progress=lambda *tick: ticks.append(tick))
    assert tuned.cpu_fraction == 1.0
    rates = {each.name: each.steps_per_second for each in tuned.candidates if each.measured}
    assert rates.keys() >= {"dummy", "subproc, caller_steps"}
    assert tuned.choice.options.get("in_series") is None
    assert rates[tuned.choice.name] >= 0.9 * max(rates.values())
    assert {name for name, _ in ticks} == {"one environment", *rates}
    assert all(rate > 0 for _, rate in ticks)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("measured", "chosen"),
    [
        ({"dummy": 1.0, "subproc": 2.0, "ray": 1.0}, "subproc"),
        ({"dummy": 1.0, "subproc": 1.95, "ray": 2.0}, "subproc"),  # the same, and expected
        ({"dummy": 1.95, "subproc": 2.0, "ray": 1.0}, "subproc"),  # simpler, but not expected
        ({"dummy": 2.0, "subproc": 1.7, "ray": 1.0}, "dummy"),
        ({"dummy": 1.0, "subproc": 1.0, "ray": 2.0}, "ray"),
        ({"subproc, caller_steps": 1.9, "subproc": 2.0}, "subproc, caller_steps"),
        ({"subproc": 1.9, "subproc, in_series=2": 2.0}, "subproc"),  # nearly what is expected
    ],
)
def test_what_figures_do_not_tell_apart_is_chosen_as_expected(
    measured: dict[str, float], chosen: str
) -> None:
    expected = {
        "dummy": 1.0,
        "subproc": 1.8,
        "subproc, in_series=2": 1.85,
        "subproc, caller_steps": 1.9,
    }
    candidates = [Candidate(name, {}, rate, True) for name, rate in measured.items()]
    assert tuning._chosen(candidates, expected).name == chosen


def test_environments_that_take_no_time_are_stepped_here() -> None:
    tuned = autotune(Work, 1)
    assert names(tuned) == ["dummy"]
    assert tuned.choice.backend == "dummy"


def test_one_cpu_is_not_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "available_cpus", lambda: 1)
    assert autotune(partial(Work, compute=0.001), 8).choice.backend == "dummy"


def test_what_takes_long_to_make_is_not_made_for_measuring() -> None:
    tuned = autotune(partial(Work, compute=0.002, making=0.3), 32)
    assert not any(each.measured for each in tuned.candidates)
    assert tuned.choice.backend == "subproc"
    assert "not measured" in tuned.reason


@pytest.mark.parametrize("faster", ["dummy", "subproc", "subproc, caller_steps"])
def test_what_takes_a_while_to_make_is_measured_with_fewer(
    faster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(runners: dict[str, Runner], **_: Any) -> dict[str, Throughput]:
        counts.update({name: runner.num_envs for name, runner in runners.items()})
        dummy = 500.0  # so a step takes 2 ms, and each further one of a process as long
        rates = {name: 900.0 if name == faster else 100.0 for name in runners}
        rates["dummy"] = 5000.0 if faster == "dummy" else dummy
        return {name: Throughput(name, counts[name], (rates[name],)) for name in runners}

    counts: dict[str, int] = {}
    monkeypatch.setattr(tuning_estimates, "seconds_to_make", lambda env_fn: 0.05)
    monkeypatch.setattr(tuning, "measure", measure)
    tuned = autotune(partial(Work, compute=0.002), 32)
    (count,) = set(counts.values())
    assert count == 4  # 0.05 s each in this process, half of that in two at once, twice
    assert f"measured with {count} environments" in tuned.reason
    assert tuned.choice.name == faster
    assert tuned.choice.measured
    if faster != "dummy":
        step = count / 900 + (32 - count) / 2 * 0.002
        assert tuned.choice.steps_per_second == pytest.approx(32 / step)


def test_further_candidates_are_measured_with_the_rest() -> None:
    made: list[str] = []

    def other() -> DummyVecEnv:
        made.append("other")
        return DummyVecEnv([Work] * 4)

    tuned = autotune(partial(Work, compute=0.002), 4, others={"native": other})
    assert made == ["other"]
    assert tuned.choice.name == "native"


@pytest.mark.parametrize(
    ("options", "names_of_candidates"),
    [
        ({"on_worker_failure": "restart"}, ["subproc, on_worker_failure=restart"]),
        ({"num_workers": 2}, ["subproc, num_workers=2", "subproc, caller_steps, num_workers=2"]),
        ({"num_workers": 8}, ["subproc, num_workers=8"]),  # none is left for this process
        (
            {"envs_per_worker": 2, "caller_steps": True},
            ["subproc, envs_per_worker=2, caller_steps"],
        ),
        (
            {"info_bytes": 9},
            [f"{n}, info_bytes=9" for n in ("dummy", "subproc", "subproc, caller_steps")],
        ),
    ],
)
def test_every_candidate_has_the_options(options: Any, names_of_candidates: list[str]) -> None:
    tuned = autotune(partial(Work, compute=0.0005), 8, options=options)
    assert names(tuned) == names_of_candidates
    assert options.items() <= tuned.choice.options.items()
    assert all(each.steps_per_second > 0 for each in tuned.candidates)


def test_environments_that_wait_are_split_as_the_options_say() -> None:
    tuned = autotune(partial(Work, sleep=0.02), 16, options={"num_workers": 4})
    assert tuned.choice.options == {"num_workers": 4}
    assert tuned.choice.steps_per_second == pytest.approx(4 / tuned.step_time, rel=0.1)


def test_the_number_of_workers_is_checked_before_any_starts() -> None:
    with pytest.raises(ValueError, match=r"num_workers: expected an int from 1 to 4, .* got 5"):
        autotune(Work, 4, options={"num_workers": 5})


def test_it_prints_as_a_table() -> None:
    lines = str(autotune(partial(Work, sleep=0.005), 16)).splitlines()
    assert lines[0].startswith("16 environments, ")
    (chosen,) = [line for line in lines if "<- chosen" in line]
    assert chosen.startswith("subproc, in_series=1")


def broken() -> Any:
    raise ValueError("cannot be made")


@pytest.mark.parametrize(
    ("env_fn", "num_envs", "error", "message"),
    [
        (Work, 0, ValueError, "num_envs: expected an int of at least 1, got 0"),
        (Work, 2.5, ValueError, "num_envs: expected an int of at least 1, got 2.5"),
        (broken, 2, EnvError, "cannot be made"),
    ],
)
def test_what_cannot_be_measured_is_an_error(
    env_fn: Callable[[], Any], num_envs: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        autotune(env_fn, num_envs)


class Strict(Work):
    """Refuses actions that it does not allow."""

    def step(self, action: Any) -> Any:
        if action == 1:
            raise ValueError("action 1 is not allowed now")
        return super().step(action)


@pytest.mark.parametrize(("num_envs", "backend"), [(1, "dummy"), (3, "subproc")])
def test_where_drawn_actions_are_refused_a_backend_is_chosen_without(
    num_envs: int, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(EnvError, match="action 1 is not allowed now"):
        autotune(Strict, num_envs)
    tuned = backend_for(Strict, num_envs)
    assert tuned.choice == tuned.candidates[0]
    assert tuned.choice.backend == backend
    assert str(tuned).startswith(f"{counted(num_envs, 'environment')}, not timed")
    assert "action 1 is not allowed now" in caplog.text
    options: Any = {"step_timeout": 3}
    choice = backend_for(Strict, num_envs, options=options).choice
    assert (choice.backend, choice.options) == ("subproc", options)


def test_what_cannot_be_made_is_an_error_all_the_same() -> None:
    with pytest.raises(EnvError, match="cannot be made"):
        backend_for(broken, 2)
