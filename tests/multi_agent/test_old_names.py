"""The old name action_mask, wherever a program of 0.2.0 may use it: it warns and still works."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from agents_envs import Herd

from xuance_envs import (
    DummyVecEnv,
    DummyVecMultiAgentEnv,
    MultiAgentVecEnv,
    make_multi_agent_vec,
)
from xuance_envs.multi_agent.adapters import agents_env
from xuance_envs.multi_agent.making import make_agents_env

HERD = partial(Herd, masks="info")
RENAMED = "the argument action_mask is deprecated and will be removed; use action_masks"


def records() -> DummyVecEnv:
    return DummyVecEnv([partial(agents_env, HERD)])


@pytest.mark.parametrize(
    "construct",
    [
        lambda **given: MultiAgentVecEnv([HERD], backend="dummy", **given),
        lambda **given: MultiAgentVecEnv.of(records(), **given),
        lambda **given: make_multi_agent_vec(HERD, 1, backend="dummy", **given),
        lambda **given: DummyVecMultiAgentEnv([HERD], **given).envs_of_agents,
    ],
    ids=["class", "of", "make_multi_agent_vec", "xuance"],
)
def test_arguments(construct):
    with pytest.warns(DeprecationWarning, match=f"^{RENAMED}$") as caught:
        envs = construct(action_mask=False)
    assert [warning.filename for warning in caught] == [__file__]
    with envs:
        assert envs.reset().action_masks is None
    with pytest.raises(TypeError, match="action_mask is the old name of action_masks"):
        construct(action_mask=False, action_masks=False)


def test_arguments_on_a_server():
    pytest.importorskip("mpe2")
    with pytest.warns(DeprecationWarning, match=RENAMED):
        env = make_agents_env("mpe2:simple_spread_v3", action_mask=False)
    env.env.close()


def test_attributes():
    with make_multi_agent_vec(HERD, 2, backend="dummy") as envs:
        step = envs.reset(seed=0)
    for result in (step, step.next()):
        with pytest.warns(DeprecationWarning, match="^action_mask is deprecated") as caught:
            masks = result.action_mask
        assert [warning.filename for warning in caught] == [__file__]
        np.testing.assert_array_equal(masks, result.action_masks)
