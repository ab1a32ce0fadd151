"""Any vector environment of ours as one of Gymnasium's."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from backends import make
from compat_envs import InfoEnv
from example_envs import EchoEnv, NamedEnv
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers

from xuance_envs import VecEnvWrapper
from xuance_envs.compat import to_gymnasium
from xuance_envs.compat.native import make_native
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv

__all__ = ["make"]


class PlainInfos(DummyVecEnv):
    """Gives its infos in a list, as a backend of another kind may."""

    def step_wait(self):
        *result, infos = super().step_wait()
        return *result, list(infos)


def assert_alike(envs, own, steps):
    assert isinstance(envs, gymnasium.vector.VectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert (envs.observation_space, envs.action_space) == (own.observation_space, own.action_space)
    assert data_equivalence(envs.reset(seed=3), own.reset(seed=3))
    rng = np.random.default_rng(0)
    for number in range(steps):
        actions = rng.integers(2, size=own.num_envs)
        got, expected = envs.step(actions), own.step(actions)
        assert data_equivalence(got, expected, exact=True), f"{number}: {got}, not {expected}"
        mask = rng.random(own.num_envs) < 0.1
        if mask.any():
            got = envs.reset(options={"reset_mask": mask})
            assert data_equivalence(got, own.reset(options={"reset_mask": mask})), number


@pytest.mark.parametrize("kind", [None, 0, 1])
def test_it_is_gymnasiums_in_its_mode_of_the_same_step(make, kind):
    functions = [partial(InfoEnv, number, kind=kind) for number in range(4)]
    own = SyncVectorEnv(functions, autoreset_mode="SameStep")
    envs = to_gymnasium(make(functions))
    assert_alike(envs, own, 60)
    assert envs.autoreset_mode is envs.metadata["autoreset_mode"] is own.autoreset_mode
    envs.close()
    assert envs.closed
    assert envs.vec_env.closed


def test_infos_need_not_be_ours(closing):
    functions = [partial(InfoEnv, number) for number in range(3)]
    envs = closing(to_gymnasium(PlainInfos(functions)))
    assert_alike(envs, SyncVectorEnv(functions, autoreset_mode="SameStep"), 40)


class Noting(VecEnvWrapper):
    """Adds to the infos of two environments, in two ways, where their episodes end, too."""

    def step_wait(self):
        *result, infos = super().step_wait()
        infos[0]["noted"] = infos[0]["int"]
        infos[1] = {**infos[1], "noted": infos[1]["int"]}
        return *result, infos


def test_infos_may_be_changed_by_a_wrapper(closing):
    envs = closing(to_gymnasium(Noting(DummyVecEnv([partial(InfoEnv, kind=0)] * 3))))
    envs.reset()
    for _ in range(5):
        *_, terminated, truncated, infos = envs.step([0] * 3)
        if (terminated | truncated).any():
            infos = infos["final_info"]
        assert infos["_noted"].tolist() == [True, True, False]
        assert infos["noted"][:2].tolist() == infos["int"][:2].tolist()


def test_views_are_not_written_to(closing):
    functions = [partial(InfoEnv, number) for number in range(3)]
    envs = closing(to_gymnasium(DummyVecEnv(functions, copy=False)))
    assert_alike(envs, SyncVectorEnv(functions, autoreset_mode="SameStep"), 20)


def test_observations_of_any_structure(make):
    space = spaces.Dict(
        a=spaces.Tuple([spaces.Discrete(3), spaces.Text(4)]), b=spaces.Box(0, 1, (2,))
    )
    functions = [partial(EchoEnv, space)] * 2
    envs = to_gymnasium(make(functions))
    own = SyncVectorEnv(functions, autoreset_mode="SameStep")
    assert data_equivalence(envs.reset(seed=3), own.reset(seed=3))
    for _ in range(5):
        got, expected = envs.step([0, 1]), own.step([0, 1])
        assert data_equivalence(got[:4], expected[:4])
        assert got[0] in envs.observation_space


def test_environments_are_reached(make):
    envs = to_gymnasium(make([partial(NamedEnv, name) for name in (1, 2)]))
    assert envs.call("describe", "hi") == ("hi 1.", "hi 2.")
    envs.set_attr("name", [3, 4])
    assert envs.get_attr("name") == (3, 4)
    assert [frame.max() for frame in envs.render()] == [3, 4]


def test_engines_can_be_wrapped(closing):
    envs = to_gymnasium(make_native("CartPole-v1", 4))
    envs = closing(wrappers.RecordEpisodeStatistics(envs))
    envs.reset(seed=0)
    for _ in range(60):
        *_, infos = envs.step(np.ones(4, int))
        if "episode" in infos:
            break
    ended = infos["_episode"]
    assert np.array_equal(infos["episode"]["l"][ended], infos["final_info"]["episode_step"][ended])


def test_only_vec_envs_are_converted():
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")])
    with pytest.raises(TypeError, match="to_gymnasium: expected a VecEnv, got SyncVectorEnv; conv"):
        to_gymnasium(envs)
