"""Many agents by their environment's name."""

from __future__ import annotations

import numpy as np
import pytest
from agents_envs import MIXED, Herd

from xuance_envs import EnvError, make_multi_agent_vec


def test_a_function_with_its_arguments_and_a_seed():
    with make_multi_agent_vec(Herd, 3, backend="dummy", seed=6, plays=MIXED) as envs:
        first, second = envs.reset().obs, envs.reset().obs
        bare = Herd(plays=MIXED)
        for obs, reset in ((first, bare.reset(seed=7)), (second, bare.reset())):
            np.testing.assert_array_equal(obs[1, 1], reset[0]["sheep_0"])
        np.testing.assert_array_equal(envs.reset(seed=6).obs, first)
    with make_multi_agent_vec(Herd, 1, backend="dummy", seed=6) as envs:
        np.testing.assert_array_equal(
            envs.reset(seed=9).obs[0, 0], Herd().reset(seed=9)[0]["sheep_0"]
        )


def test_the_seed_of_the_first_reset_is_part_of_the_state():
    with make_multi_agent_vec(Herd, 1, backend="dummy", seed=6) as envs:
        state = envs.save_state()
        first, second = envs.reset().obs, envs.reset().obs
        envs.load_state(state)
        np.testing.assert_array_equal(envs.reset().obs, first)
        np.testing.assert_array_equal(envs.reset().obs, second)


def test_options_for_the_class():
    with make_multi_agent_vec(
        Herd,
        2,
        backend="subproc",
        state=False,
        groups={"all": ["sheep_0", "sheep_1", "sheep_2"]},
        vector_kwargs={"context": "forkserver", "in_series": 1},
    ) as envs:
        assert envs.groups == {"all": ("sheep_0", "sheep_1", "sheep_2")}
        assert envs.reset().state is None
        assert len(envs.vec_env.pids) == 2


def test_auto_honours_the_options_of_the_class():
    with make_multi_agent_vec(Herd, 2, vector_kwargs={"num_workers": 2}) as envs:
        assert envs.autotuned.choice.options["num_workers"] == 2
        assert len(envs.vec_env.pids) == 2


def test_an_option_among_the_arguments_of_environments_is_recognized():
    with pytest.raises(TypeError, match=r"use vector_kwargs=\{'in_series': 2\}"):
        make_multi_agent_vec(Herd, 2, in_series=2)


def test_a_name():
    pytest.importorskip("mpe2")
    with make_multi_agent_vec("mpe2:simple_spread_v3", 2, backend="dummy", N=4) as envs:
        assert envs.num_agents == 4
        assert envs.reset(seed=0).obs.shape[:2] == (2, 4)


def test_the_name_of_turn_based_ones():
    with pytest.raises(EnvError, match="is turn-based"):
        make_multi_agent_vec("turned_worlds:turns", 1, backend="dummy")


@pytest.fixture(autouse=True)
def modules_of_worlds(tmp_path, monkeypatch):
    package = tmp_path / "turned_worlds"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "turns.py").write_text(
        "from agents_envs import Herd\n"
        "class env(Herd):\n"
        "    def last(self): pass\n"
        "    def observe(self, agent): pass\n"
    )
    (package / "nothing.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("simple_spread_v3", ValueError, "'package:name'"),
        ("butterfly/pong-v6", ValueError, r"make, 'parallel', 'butterfly/pong-v6'\)"),
        ("turned_worlds:", ValueError, "'package:name'"),
        ("turned_worlds:nothing", ValueError, "a module with parallel_env or env"),
        ("turned_worlds:no_such", ImportError, "no_such"),
    ],
)
def test_names_that_are_none(name, error, told):
    with pytest.raises(error, match=told):
        make_multi_agent_vec(name, 2)


def test_numbers_that_are_none():
    with pytest.raises(ValueError, match="num_envs: expected an int of at least 1"):
        make_multi_agent_vec(Herd, 0)
    with pytest.raises(ValueError, match="seed: expected a non-negative int"):
        make_multi_agent_vec(Herd, 1, seed=-1)
