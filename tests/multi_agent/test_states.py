"""Many agents saved, loaded and cloned: everything goes on bit for bit."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from agents_envs import MIXED, Herd, Squad

from xuance_envs import EnvStates, StateMismatchError
from xuance_envs.multi_agent.adapters import AsyncAgentsEnv, AsyncXuanCeAgentsEnv
from xuance_envs.multi_agent.agents_env import AgentsEnv
from xuance_envs.multi_agent.xuance_env import XuanCeAgentsEnv


@pytest.mark.everywhere("3")
@pytest.mark.parametrize("at", [0, 1, 3, 5, 8])
@pytest.mark.parametrize(
    "make_one", [partial(Herd, plays=MIXED, masks="info"), Squad], ids=["pettingzoo", "xuance"]
)
def test_what_was_saved_goes_on_as_it_did(make, make_one, at):
    envs = make([make_one] * 4, env_seed=1)
    envs.reset()
    for _ in range(at):
        last = envs.step(steps_of(envs))
    state = envs.save_state()
    told = [np.copy(part) for part in run(envs)]
    loaded = envs.load_state(state)
    if at:
        np.testing.assert_array_equal(loaded.alive, last.next().alive)
    for one, other in zip(told, run(envs), strict=True):
        np.testing.assert_array_equal(one, other)
    envs.load_state(state)
    clones = envs.clone_state([0, 0], [2, 3])
    assert clones.env_ids.tolist() == [2, 3]
    for part in run(envs):
        np.testing.assert_array_equal(part[:, 2], part[:, 0])
        np.testing.assert_array_equal(part[:, 3], part[:, 0])


def test_so_it_does_by_bytes_in_other_environments(make_near):
    envs, others = (make_near([partial(Herd, plays=MIXED, masks="info")] * 2) for _ in range(2))
    envs.reset(seed=3), others.reset(seed=4)
    for _ in range(4):
        envs.step(steps_of(envs))
    others.load_state(EnvStates.from_bytes(envs.save_state().to_bytes(), trusted=True))
    for one, other in zip(run(envs), run(others), strict=True):
        np.testing.assert_array_equal(one, other)


def test_states_of_records_with_other_masks_are_refused(make_here):
    envs, others = (
        make_here([partial(Herd, masks="info")], action_masks=masks) for masks in (True, False)
    )
    envs.reset(), others.reset()
    assert envs.record.dtype.itemsize == others.record.dtype.itemsize
    for one, other in ((envs, others), (others, envs)):
        with pytest.raises(StateMismatchError, match="no action masks"):
            one.load_state(other.save_state())


def steps_of(envs):
    return [dict.fromkeys(envs.agents, 1)] * envs.num_envs


def run(envs):
    """What comes of some steps, by part."""
    steps = [envs.step(steps_of(envs)) for _ in range(9)]
    parts = [(s.obs, s.rewards, s.alive, s.acted, s.terminated, s.action_masks) for s in steps]
    return [np.stack(part) for part in zip(*parts, strict=True)]


@pytest.mark.parametrize(
    ("adapter", "name"),
    [
        (AgentsEnv, "xuance_envs.multi_agent.agents_env.AgentsEnv"),
        (XuanCeAgentsEnv, "xuance_envs.multi_agent.xuance_env.XuanCeAgentsEnv"),
        (AsyncAgentsEnv, "xuance_envs.multi_agent.adapters.AsyncAgentsEnv"),
        (AsyncXuanCeAgentsEnv, "xuance_envs.multi_agent.adapters.AsyncXuanCeAgentsEnv"),
    ],
)
def test_adapters_have_the_names_that_states_of_earlier_versions_have(adapter, name):
    assert f"{adapter.__module__}.{adapter.__qualname__}" == name
