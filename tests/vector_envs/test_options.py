"""Options of vectorized environments: one list of them, and errors that show the right one."""

from __future__ import annotations

import inspect
from functools import partial, wraps
from typing import Any, get_type_hints

import pytest
from process_env import ProcessEnv

import xuance_envs
from xuance_envs import (
    DummyVecEnv,
    DummyVecEnv_Atari,
    DummyVecEnv_Gym,
    MultiAgentVecEnv,
    RayVecEnv,
    RayVecEnv_Gym,
    SubprocVecEnv,
    SubprocVecEnv_Atari,
    SubprocVecEnv_Gym,
    SubprocVecEnv_StarCraft2,
    SubprocVecMultiAgentEnv,
)
from xuance_envs.compat.gymnasium import AsyncVectorEnv
from xuance_envs.vector_envs import options
from xuance_envs.vector_envs.worker_settings import ProcessSettings, RaySettings, WorkerSettings

WITH_WORKERS = [
    SubprocVecEnv,
    SubprocVecEnv_Gym,
    SubprocVecEnv_Atari,
    RayVecEnv_Gym,
    MultiAgentVecEnv,
    SubprocVecMultiAgentEnv,
    SubprocVecEnv_StarCraft2,
    AsyncVectorEnv,
]
FUNCTIONS = [ProcessEnv] * 4


def parameters(kind: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(kind).parameters)


@pytest.mark.parametrize(
    ("typed", "settings"),
    [(options.ProcessOptions, ProcessSettings), (options.RayOptions, RaySettings)],
)
def test_names_and_types_of_options_are_those_of_the_settings(typed: Any, settings: Any) -> None:
    hints = get_type_hints(settings)
    assert {name: hints[name] for name in typed.__annotations__} == get_type_hints(typed)
    positional = {"in_series", "context"}
    missing = parameters(settings).keys() - typed.__annotations__.keys() - positional
    assert missing == set()


@pytest.mark.parametrize("kind", WITH_WORKERS)
def test_help_lists_every_option_with_its_default_and_description(kind: Any) -> None:
    found = parameters(kind)
    for name, default in parameters(WorkerSettings).items():
        assert found[name].default == default.default
        assert f"\n    {name}: " in kind.__doc__
    assert not any(each.kind is each.VAR_KEYWORD for each in found.values())


@pytest.mark.parametrize("kind", [DummyVecEnv_Gym, DummyVecEnv_Atari])
def test_help_of_another_name_describes_the_arguments(kind: Any) -> None:
    assert parameters(kind) == parameters(DummyVecEnv)
    assert all(f"\n    {name}: " in kind.__doc__ for name in parameters(kind))
    assert "Attributes:\n    envs (list)" in kind.__doc__


def test_the_order_of_positional_arguments_is_xuances() -> None:
    orders = {
        DummyVecEnv_Gym: ["env_fns", "env_seed"],
        SubprocVecEnv: ["env_fns", "env_seed", "in_series"],
        SubprocVecEnv_Gym: ["env_fns", "context", "in_series"],
        SubprocVecEnv_Atari: ["env_fns", "env_seed"],
        SubprocVecMultiAgentEnv: ["env_fns", "env_seed", "context", "in_series"],
        MultiAgentVecEnv: ["env_fns", "env_seed"],
        RayVecEnv: ["env_fns", "in_series"],
    }
    for kind, order in orders.items():
        found = parameters(kind).values()
        assert [each.name for each in found if each.kind is not each.KEYWORD_ONLY] == order


def test_ray_has_a_name_without_a_suffix() -> None:
    assert xuance_envs.RayVecEnv is RayVecEnv_Gym


@pytest.mark.parametrize("kind", WITH_WORKERS)
def test_a_misspelt_option_is_answered_with_the_right_one(kind: Any) -> None:
    message = rf"{kind.__name__}\(\) got an unexpected keyword argument 'step_timout'; did you mean"
    with pytest.raises(TypeError, match=f"{message} 'step_timeout'"):
        kind(FUNCTIONS, step_timout=3)


# --- the number of workers --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "caller_steps", "sizes"),
    [
        ({"num_workers": 1}, False, [7]),
        ({"num_workers": 3}, False, [2, 2, 3]),
        ({"num_workers": 7}, False, [1] * 7),
        ({"num_workers": 3}, True, [1, 2, 2, 2]),
        ({"envs_per_worker": 3}, False, [3, 3, 1]),
        ({"envs_per_worker": 3, "in_series": "auto"}, False, [3, 3, 1]),
    ],
)
def test_environments_are_split_among_so_many_workers(
    given: dict[str, Any], caller_steps: bool, sizes: list[int]
) -> None:
    split = WorkerSettings(**given).split(7, 2, caller_steps)
    assert [hi - lo for lo, hi in split] == sizes
    assert [lo for lo, _ in split] == [0, *(hi for _, hi in split[:-1])]


@pytest.mark.parametrize("caller_steps", [False, True])
def test_so_many_workers_are_started(caller_steps: bool) -> None:
    with SubprocVecEnv(
        FUNCTIONS, context="forkserver", num_workers=3, caller_steps=caller_steps
    ) as envs:
        assert len(envs.pids) == envs.n_remotes == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_workers": 0}, "num_workers: expected an int from 1 to 4, .*, got 0"),
        ({"num_workers": 5}, "num_workers: expected an int from 1 to 4, .*, got 5"),
        ({"num_workers": 1.5}, "num_workers: expected an int from 1 to 4, .*, got 1.5"),
        ({"num_workers": True}, "num_workers: expected an int from 1 to 4, .*, got True"),
        (
            {"num_workers": 4, "caller_steps": True},
            "num_workers: expected an int from 1 to 3, .* caller_steps=True, .*, got 4",
        ),
        ({"envs_per_worker": 0}, "envs_per_worker: expected an int of at least 1, got 0"),
        (
            {"num_workers": 2, "in_series": 2},
            "of in_series, num_workers, envs_per_worker, got in_series=2, num_workers=2",
        ),
        (
            {"num_workers": 2, "envs_per_worker": 2},
            "at most one of .*, got num_workers=2, envs_per_worker=2",
        ),
    ],
)
def test_a_wrong_number_of_workers_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SubprocVecEnv(FUNCTIONS, **given)


@pytest.mark.parametrize(("caller_steps", "expected"), [(False, "1"), (True, "None")])
def test_one_environment_needs_one_worker_at_most(caller_steps: bool, expected: str) -> None:
    with pytest.raises(ValueError, match=f"num_workers: expected {expected}, .* got 2"):
        SubprocVecEnv(FUNCTIONS[:1], num_workers=2, caller_steps=caller_steps)


def test_max_concurrency_excludes_each_of_the_three() -> None:
    for name in options.SPLIT_OPTIONS:
        with pytest.raises(TypeError, match=f"max_concurrency cannot be combined with {name}"):
            AsyncVectorEnv(FUNCTIONS, max_concurrency=2, **{name: 2})


# --- an int in second place -------------------------------------------------------------------


def test_an_int_for_a_start_method_shows_the_keyword() -> None:
    with pytest.raises(ValueError, match=r"context: .* got 4; did you mean num_workers=4\?"):
        SubprocVecEnv_Gym(FUNCTIONS, 4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (SubprocVecEnv, "num_workers=4"),
        (SubprocVecEnv_Atari, "num_workers=4"),
        (DummyVecEnv, r"SubprocVecEnv\(env_fns, num_workers=4\)"),
        (DummyVecEnv_Gym, r"SubprocVecEnv\(env_fns, num_workers=4\)"),
        (MultiAgentVecEnv, "num_workers=4"),
        (SubprocVecMultiAgentEnv, "num_workers=4"),
    ],
)
def test_an_int_for_a_seed_shows_the_keyword_before_workers_start(
    kind: Any, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xuance_envs.engine.process.process_backend.ProcessBackend.start", None)
    with pytest.raises(TypeError, match=rf"4 was taken as env_seed; did you mean {hint}\?"):
        kind([lambda: ProcessEnv()] * 4, 4)


def seeded(env_seed: int) -> ProcessEnv:
    return ProcessEnv()


@wraps(ProcessEnv)  # its signature has no env_seed
def forwarding(*args: Any, **kwargs: Any) -> Any:
    return seeded(*args, **kwargs)


class Made:
    def __call__(self, *, env_seed: int) -> ProcessEnv:
        return seeded(env_seed)


@pytest.mark.parametrize(
    "function", [seeded, partial(seeded), lambda env_seed: seeded(env_seed), forwarding, Made()]
)
def test_functions_that_accept_a_seed_get_it(function: Any) -> None:
    DummyVecEnv([function] * 2, 4).close()
