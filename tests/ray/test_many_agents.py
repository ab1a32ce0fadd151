"""Many agents in the actors of a Ray cluster."""

from __future__ import annotations

from functools import partial

import pytest
from agents_envs import MIXED, Herd, Squad
from bare_agents import assert_like_bare_loops

from xuance_envs import MultiAgentVecEnv


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"kinds": 3}, id="", marks=pytest.mark.long),
        pytest.param({"kinds": 2, "masks": "info"}, id="masks"),
    ],
)
def test_steps_are_those_of_bare_loops(actors, options):
    env_fns = [partial(Herd, plays=MIXED, length=length, **options) for length in (7, 5, 6, 7)]
    given = {"backend": "ray", "in_series": 2, "num_cpus_per_worker": 0.01}
    with MultiAgentVecEnv(env_fns, **given) as envs:
        assert_like_bare_loops(envs, env_fns, steps=15)


def test_xuances_environments(actors):
    with MultiAgentVecEnv([Squad] * 2, 1, backend="ray", num_cpus_per_worker=0.01) as envs:
        assert envs.reset().alive.all()
        assert envs.step([dict.fromkeys(envs.agents, 1)] * 2).state.shape == (2, 3)
