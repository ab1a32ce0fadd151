"""TorchRL's GymWrapper over these vector environments, side by side with it over Gymnasium's.

It runs where TorchRL is: in an environment of its own, with ``make test-libraries``.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import gymnasium
import pytest
from gymnasium import vector

pytest.importorskip("torchrl.envs", exc_type=ImportError)

import torch
from torchrl.envs import GymWrapper

from xuance_envs import DummyVecEnv_Gym, Gym_Env
from xuance_envs.compat import gymnasium as compat
from xuance_envs.compat import to_gymnasium

pytestmark = pytest.mark.filterwarnings("ignore")  # of TorchRL, and of libraries that it loads

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
FUNCTIONS = [partial(gymnasium.make, "CartPole-v1")] * 3
COMPAT = {
    "sync": compat.SyncVectorEnv,
    "async": partial(compat.AsyncVectorEnv, context="forkserver"),
}


def rollout(envs):
    """Forty steps to the right in each environment, through several episodes."""
    wrapped = GymWrapper(envs, categorical_action_encoding=True)
    wrapped.set_seed(0)
    right = torch.ones(3, dtype=torch.long)
    steps = wrapped.rollout(
        40, policy=lambda td: td.set("action", right), break_when_any_done=False
    )
    wrapped.close()
    return steps


def assert_same(mine, theirs):
    assert theirs["next", "done"].sum() > 3
    for key in theirs.keys(include_nested=True, leaves_only=True):
        assert mine[key].dtype == theirs[key].dtype, key
        assert (mine[key] == theirs[key]).all(), key


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
@pytest.mark.parametrize("make", COMPAT.values(), ids=COMPAT)
def test_rollouts_are_those_in_gymnasiums(make, mode):
    theirs = rollout(vector.SyncVectorEnv(FUNCTIONS, autoreset_mode=mode))
    assert_same(rollout(make(FUNCTIONS, autoreset_mode=mode)), theirs)


def test_any_vector_environment_is_wrapped_by_way_of_to_gymnasium():
    envs = to_gymnasium(DummyVecEnv_Gym([partial(Gym_Env, "CartPole-v1")] * 3))
    steps = rollout(envs)
    assert_same(steps, rollout(vector.SyncVectorEnv(FUNCTIONS, autoreset_mode="SameStep")))
    assert steps["next", "episode_step"].max() > 5


def test_the_example_of_the_page_runs():
    text = PAGE.read_text(encoding="utf-8").partition("\n## TorchRL\n")[2]
    (code,) = re.findall(
        r"^```{code-block} python\n(.*?)^```$", text.partition("\n## ")[0], re.M | re.S
    )
    names: dict[str, object] = {}
    exec(code, names)
    assert names["steps"].batch_size == (4, 100)
