"""The path of one step through the package, as docs/design.md describes it."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fake_cluster import pretended_machines

from xuance_envs.gym.gym_env import Gym_Env
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.ray_vec_env import RayVecEnv_Gym
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design.md"
STEPS = 30
"""With a constant action, several CartPole episodes end in this many steps."""

Entries = dict[str, set[str]]
"""For each module that was entered: the modules that entered it."""


def watch(entries: Entries) -> None:
    """Record each call from one module of the package to another, from now on."""

    def look(frame: Any, event: str, _: Any) -> None:
        if event != "call" or not (module := module_of(frame)):
            return
        caller = frame.f_back
        while caller is not None and not module_of(caller):
            caller = caller.f_back
        if caller is not None and module_of(caller) != module:
            entries[module].add(module_of(caller))

    sys.setprofile(look)


def module_of(frame: Any) -> str:
    name = str(frame.f_globals.get("__name__", ""))
    return name.rpartition(".")[2] if name.startswith("xuance_envs.") else ""


class Watched(Gym_Env):
    """An environment; the first one records the calls in its worker process, after some steps."""

    def __init__(self, env_seed: int, in_worker: bool) -> None:
        super().__init__("CartPole-v1", env_seed)
        self.watching = in_worker and env_seed == 0
        self.entries: Entries = defaultdict(set)
        self.count = 0

    def step(self, action: Any = None, actions: Any = None) -> Any:
        self.count += 1
        if self.watching and self.count == 2 * STEPS:
            sys.setprofile(None)
        result = super().step(action, actions)
        if self.watching and self.count == STEPS:
            watch(self.entries)
        return result


def paths(
    make: Callable[..., VecEnv], in_worker: bool = False, **options: Any
) -> tuple[Entries, Entries]:
    """Return the path of some steps in this process, and in the first worker."""
    here: Entries = defaultdict(set)
    with make([partial(Watched, in_worker=in_worker)] * 4, env_seed=0, **options) as envs:
        envs.reset()
        actions = np.zeros(4, np.int64)
        for _ in range(STEPS):
            envs.step(actions)
        for _ in range(STEPS):
            watch(here)
            try:
                *_, infos = envs.step(actions)
            finally:
                sys.setprofile(None)
        assert infos[0]["episode_step"] < STEPS, "an episode has ended"
        (there,) = envs.get_attr("entries", env_ids=[0])
    for entries in (here, there):
        entries.pop("gym_env", None)
    return here, there


def entered_twice(entries: Entries) -> Entries:
    return {module: others for module, others in entries.items() if len(others) > 1}


def documented() -> str:
    """Return the section of the page that lists the modules."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition("### Step\n")[2].partition("### Episode end")[0]
    assert section
    return section.replace("process/driver", "driver")


def test_a_step_in_this_process_enters_each_module_from_one_other() -> None:
    here, _ = paths(DummyVecEnv)
    assert here["env_group"] == {"driver"}
    assert entered_twice(here) == {}
    assert {module for module in here if f"`{module}`" not in documented()} == set()


def test_a_step_in_processes_enters_each_module_from_one_other_on_either_side() -> None:
    here, there = paths(SubprocVecEnv, in_worker=True, in_series=2, context="forkserver")
    assert (here["channel"], there["channel"]) == ({"driver"}, {"worker"})
    assert entered_twice(here) == entered_twice(there) == {}
    assert {module for module in {*here, *there} if f"`{module}`" not in documented()} == set()


RAY_MODULES = [
    *("grouped", "ledger", "driver", "exchange", "actor_client", "connection", "stream"),
    *("messages", "space_rows", "step_arrays", "info_columns"),
]
"""From the top down."""


def test_a_step_over_ray_only_calls_modules_below() -> None:
    with pretended_machines(here=2):
        here, _ = paths(RayVecEnv_Gym, in_series=2, actors="core")
    below = {module: RAY_MODULES[k + 1 :] for k, module in enumerate(RAY_MODULES)}
    entered = {module: here[module] for module in RAY_MODULES[1:-3]}
    assert entered["driver"] == {"ledger"}
    assert entered["connection"] == {"actor_client"}
    for module, callers in entered.items():
        assert callers, module
        assert {caller for caller in callers if module not in below[caller]} == set(), module
