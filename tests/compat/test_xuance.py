"""XuanCe's own agents and configurations on the vector environments that ``install`` puts in place.

They run where XuanCe is: in an environment of its own, with ``make test-libraries``.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import os
import random
import re
import runpy
import subprocess
import sys
import types
from argparse import Namespace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from agents_envs import Squad

import xuance_envs
from xuance_envs.compat import xuance as compat

pytest.importorskip("xuance")
torch = pytest.importorskip("torch")
if importlib.util.find_spec("torchvision") is None:
    # XuanCe imports it for learners that are not tried here; not every torch has one.
    for name in ("torchvision", "torchvision.transforms"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]
    sys.modules["torchvision.transforms"].transforms = sys.modules["torchvision.transforms"]

pytestmark = [  # of XuanCe, and of libraries that it loads
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("own_folder"),
]

from xuance.common import get_arguments
from xuance.environment import REGISTRY_VEC_ENV, make_envs
from xuance.torch.agents import REGISTRY_Agents

OWN = dict(REGISTRY_VEC_ENV)
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "xuance_dqn.py"
PAGE = ROOT / "docs" / "migrating.md"
QUICK = {"context": "forkserver", "in_series": 2}


@pytest.fixture(autouse=True)
def own_registry():
    yield
    compat.uninstall()
    assert OWN == REGISTRY_VEC_ENV


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """XuanCe writes its logs and models where it is started."""
    monkeypatch.chdir(tmp_path)


def learn(algorithm, env, env_id, steps, vectorize, **settings):
    """Trains an agent as XuanCe does with its own configuration; its weights before and after."""
    settings = {"parallels": 4, "device": "cpu", "start_training": 32, "batch_size": 16, **settings}
    config = get_arguments(
        algorithm,
        env,
        env_id,
        None,
        Namespace(vectorize=vectorize, running_steps=steps, **settings),
    )
    config.agent_name = algorithm
    config.render = False
    config.log_dir = config.model_dir = os.getcwd()
    random.seed(0)
    np.random.seed(0)
    envs = make_envs(config)
    if isinstance(envs.action_space, dict):  # what XuanCe draws from, unseeded
        envs.action_space = {
            agent: copy.deepcopy(space) for agent, space in envs.action_space.items()
        }
        for number, space in enumerate(envs.action_space.values()):
            space.seed(number)
    agent = REGISTRY_Agents[config.agent](config, envs)
    before = {name: value.clone() for name, value in agent.policy.state_dict().items()}
    agent.train(steps // config.parallels)
    after = dict(agent.policy.state_dict())
    agent.finish()
    envs.close()
    return before, after


def same(one, other):
    assert one.keys() == other.keys()
    return all([bool((one[name] == other[name]).all()) for name in one])


def evened_out(name):
    """XuanCe's class, but first transitions are not overwritten, and actions are in the space."""

    class EvenedOut(OWN[name]):
        def step_async(self, actions):
            self.buf_obs = self.buf_obs.copy()
            space = self.action_space
            if isinstance(space, dict):
                actions = [
                    {agent: np.asarray(one, space[agent].dtype) for agent, one in given.items()}
                    for given in actions
                ]
            else:
                actions = np.asarray(actions).astype(space.dtype)
            super().step_async(actions)

    return EvenedOut


# --- learning -----------------------------------------------------------------------------------

DISCRETE = ("classic_control", "CartPole-v1")
CONTINUOUS = ("classic_control", "Pendulum-v1")
SINGLE = {
    "ppo": (*DISCRETE, 256, {"horizon_size": 32, "n_epochs": 2}),
    "a2c": (*DISCRETE, 256, {"horizon_size": 16}),
    "dqn": (*DISCRETE, 160, {}),
    "sac": (*CONTINUOUS, 128, {}),
    "td3": (*CONTINUOUS, 128, {}),
    "ddpg": (*CONTINUOUS, 128, {}),
}
ON_POLICY = {"ppo", "a2c"}
IN_PROCESSES_TOO = {"ppo", "td3", "maddpg"}
"""Whose workers may take the seconds in which they import XuanCe."""


@pytest.mark.parametrize("algorithm", SINGLE)
def test_agents_learn_the_same(algorithm, monkeypatch):
    *where, steps, settings = SINGLE[algorithm]
    run = partial(learn, algorithm, *where, steps, **settings)
    if algorithm not in ON_POLICY:
        monkeypatch.setitem(REGISTRY_VEC_ENV, "DummyVecEnv", evened_out("DummyVecEnv"))
    before, theirs = run("DummyVecEnv")
    monkeypatch.setitem(REGISTRY_VEC_ENV, "DummyVecEnv", OWN["DummyVecEnv"])
    assert not same(before, theirs), "nothing was learned"
    with compat.install(**QUICK):
        assert REGISTRY_VEC_ENV["DummyVecEnv"].args == (xuance_envs.DummyVecEnv,)
        _, here = run("DummyVecEnv")
        assert same(theirs, here)
        if algorithm in IN_PROCESSES_TOO:
            _, in_processes = run("SubprocVecEnv")
            assert same(theirs, in_processes)


MANY = {
    "ippo": (256, {"buffer_size": 128, "n_epochs": 1}),
    "mappo": (256, {"buffer_size": 128, "n_epochs": 1}),
    "qmix": (160, {}),
    "maddpg": (160, {}),
}


@pytest.mark.parametrize("algorithm", MANY)
def test_agents_of_many_learn_the_same(algorithm, monkeypatch):
    pytest.importorskip("pettingzoo.mpe")
    steps, settings = MANY[algorithm]
    run = partial(learn, algorithm, "mpe", "simple_spread_v3", steps, **settings)
    name = "DummyVecMultiAgentEnv"
    monkeypatch.setitem(REGISTRY_VEC_ENV, name, evened_out(name))
    before, theirs = run(name)
    monkeypatch.setitem(REGISTRY_VEC_ENV, name, OWN[name])
    assert not same(before, theirs), "nothing was learned"
    with compat.install(**QUICK):
        _, here = run(name)
        assert same(theirs, here)
        if algorithm in IN_PROCESSES_TOO:
            _, in_processes = run("SubprocVecMultiAgentEnv")
            assert same(theirs, in_processes)


def test_a_configuration_of_atari_learns(monkeypatch):
    pytest.importorskip("ale_py")
    settings = {"horizon_size": 8, "n_epochs": 1, "n_minibatch": 1, "parallels": 2}
    run = partial(learn, "ppo", "atari", "ALE/Pong-v5", 32, **settings)
    monkeypatch.setitem(REGISTRY_VEC_ENV, "Dummy_Atari", evened_out("Dummy_Atari"))
    _, theirs = run("Dummy_Atari")
    monkeypatch.setitem(REGISTRY_VEC_ENV, "Dummy_Atari", OWN["Dummy_Atari"])
    with compat.install(context="forkserver"):
        _, here = run("Dummy_Atari")
        before, in_processes = run("Subproc_Atari")
    assert same(theirs, here)
    assert not same(before, in_processes)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_tensor_memory_learns_the_same(algorithm, monkeypatch):
    *where, steps, settings = SINGLE[algorithm]
    run = partial(learn, algorithm, *where, steps, use_tensor_memory=True, **settings)
    monkeypatch.setitem(REGISTRY_VEC_ENV, "DummyVecEnv", evened_out("DummyVecEnv"))
    before, theirs = run("DummyVecEnv")
    monkeypatch.setitem(REGISTRY_VEC_ENV, "DummyVecEnv", OWN["DummyVecEnv"])
    assert not same(before, theirs), "nothing was learned"
    with compat.install(**QUICK):
        _, here = run("SubprocVecEnv")
    assert same(theirs, here)


def test_an_environment_of_the_programs_own_is_made(monkeypatch):
    import gymnasium
    from xuance.environment import REGISTRY_ENV, RawEnvironment

    class Counting(RawEnvironment):
        def __init__(self, config):
            super().__init__()
            self.env_id = config.env_id
            self.seed = config.env_seed
            self.observation_space = gymnasium.spaces.Box(0, 99, (2,), np.float32)
            self.action_space = gymnasium.spaces.Discrete(2)
            self.max_episode_steps = 3

        def reset(self, **kwargs):
            self.count = 0
            return np.array([self.seed, self.count], np.float32), {}

        def step(self, action):
            self.count += 1
            seen = np.array([self.seed, self.count], np.float32)
            return seen, 1.0, False, self.count == 3, {"given": int(action)}

        def render(self, *args, **kwargs):
            return np.zeros((2, 2, 3), np.uint8)

        def close(self):
            pass

    monkeypatch.setitem(REGISTRY_ENV, "Counting", Counting)
    config = Namespace(
        env_name="Counting", env_id="one", env_seed=7, parallels=3, vectorize="SubprocVecEnv"
    )
    with compat.install(**QUICK):
        envs = make_envs(config)
    try:
        assert envs.max_episode_steps == 3
        assert envs.reset()[0].tolist() == [[7, 0], [8, 0], [9, 0]]
        for _ in range(3):
            *_, truncated, infos = envs.step([0, 1, 0])
        assert truncated.all()
        assert [info["given"] for info in infos] == [0, 1, 0]
        assert infos[1]["reset_obs"].tolist() == [8, 0]
        assert infos[1]["episode_score"] == 3
    finally:
        envs.close()


def wrapped_cart_pole(env_seed):
    from xuance.environment import REGISTRY_ENV
    from xuance.environment.utils import XuanCeEnvWrapper

    config = Namespace(env_id="CartPole-v1", env_seed=env_seed, render_mode="rgb_array")
    return XuanCeEnvWrapper(REGISTRY_ENV["Classic Control"](config))


def test_names_that_a_program_imports_work_with_what_is_installed():
    with compat.install():
        here = REGISTRY_VEC_ENV["DummyVecEnv"]([wrapped_cart_pole] * 2, 5)
        theirs = OWN["DummyVecEnv"]([wrapped_cart_pole] * 2, 5)
    assert isinstance(here, xuance_envs.DummyVecEnv)
    assert (here.reset()[0] == theirs.reset()[0]).all()
    for _ in range(30):
        one, other = here.step([1, 1]), theirs.step([1, 1])
        assert (one[0] == other[0]).all()
        assert [info["episode_step"] for info in one[4]] == [
            info["episode_step"] for info in other[4]
        ]
    here.close(), theirs.close()


def test_the_example_trains(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--timesteps", "80"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "Finish training." in capsys.readouterr().out


@pytest.mark.parametrize(
    "whose", ["ours-with-caller", pytest.param("nobody", marks=pytest.mark.long)]
)
def test_the_benchmark_trains(whose, tmp_path):
    command = [sys.executable, "-m", "benchmarks.peers.xuance_training"]
    done = subprocess.run(
        [*command, whose, "CartPole-v1", "2", "64"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seconds, busy = json.loads(done.stdout)
    assert seconds > 0
    assert busy > 0


@pytest.mark.parametrize("whose", ["ours", pytest.param("xuance", marks=pytest.mark.long)])
def test_the_benchmark_of_many_agents_trains(whose, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    settings = importlib.import_module("benchmarks.mappo").settings
    monkeypatch.syspath_prepend(ROOT / "examples")
    example = vars(importlib.import_module("train_mappo"))
    command = [sys.executable, "-m", "benchmarks.peers.xuance_mappo"]
    done = subprocess.run(
        [*command, whose, "2", "100", "1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=json.dumps(settings(example, 2)),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seconds, busy, mean_return = json.loads(done.stdout)
    assert seconds > 0
    assert busy > 0
    assert -100 < mean_return < 0, "a distance from what is to be covered"


# --- what is put in place -----------------------------------------------------------------------


def test_every_entry_is_replaced_and_put_back(caplog):
    with caplog.at_level("INFO", logger="xuance_envs"):
        installed = compat.install()
    assert set(installed.names) == set(REGISTRY_VEC_ENV)
    assert "Dummy_Atari" in caplog.text
    for name, entry in REGISTRY_VEC_ENV.items():
        assert entry is not OWN[name]
        assert entry.args[0].__module__.startswith("xuance_envs.")
    compat.install()
    compat.uninstall()
    assert OWN == REGISTRY_VEC_ENV
    compat.uninstall()


def test_the_line_to_add_is_all_that_changes():
    text = PAGE.read_text(encoding="utf-8").partition("\n## XuanCe\n")[2]
    added = re.findall(r"^\+(.*)$", text, re.MULTILINE)[0]
    exec(added, {})
    assert REGISTRY_VEC_ENV["SubprocVecEnv"].args == (xuance_envs.SubprocVecEnv,)


def test_options_go_to_those_that_take_them():
    compat.install(in_series=3, copy=False)
    assert REGISTRY_VEC_ENV["SubprocVecEnv"].keywords == {"in_series": 3, "copy": False}
    assert REGISTRY_VEC_ENV["Dummy_Atari"].keywords == {"copy": False}
    many = {"in_series": 3, "copy": False}
    assert REGISTRY_VEC_ENV["SubprocVecMultiAgentEnv"].keywords == many
    envs = REGISTRY_VEC_ENV["DummyVecMultiAgentEnv"]([Squad], 0)
    obs, _ = envs.reset()
    assert isinstance(envs, xuance_envs.DummyVecMultiAgentEnv)
    assert not obs[0]["red_0"].flags.writeable
    envs.close()
    compat.install(caller_steps=True)
    assert REGISTRY_VEC_ENV["SubprocVecEnv"].keywords == {"caller_steps": True}
    assert REGISTRY_VEC_ENV["Dummy_Atari"].args == (xuance_envs.DummyVecEnv,)
    assert REGISTRY_VEC_ENV["Dummy_Atari"].keywords == {}
    with pytest.raises(TypeError, match=r"expected options .*in_series.*, got 'in_serial'"):
        compat.install(in_serial=1)
    assert REGISTRY_VEC_ENV["SubprocVecEnv"].keywords == {"caller_steps": True}


def test_as_a_context_manager_it_gives_back_what_was_there():
    with compat.install(in_series=1):
        with compat.install(in_series=2) as installed:
            assert REGISTRY_VEC_ENV["SubprocVecEnv"].keywords == {"in_series": 2}
            assert "SubprocVecEnv" in installed.names
        assert REGISTRY_VEC_ENV["SubprocVecEnv"].keywords == {"in_series": 1}
        with pytest.raises(ZeroDivisionError), compat.install():
            raise ZeroDivisionError
        assert REGISTRY_VEC_ENV["SubprocVecEnv"].keywords == {"in_series": 1}
    assert OWN == REGISTRY_VEC_ENV


def test_of_a_version_whose_environments_are_too_old_is_said(monkeypatch, caplog):
    for version, said in (("1.3.0", False), ("v1.2.6", True)):
        monkeypatch.setattr("xuance.__version__", version)
        with compat.install():
            assert ("need Gymnasium 0.28" in caplog.text) is said


def test_another_version_is_refused(monkeypatch):
    for version in ("v1.1.1", "2.0", "none"):
        monkeypatch.setattr("xuance.__version__", version)
        with pytest.raises(RuntimeError, match=f"1.2 or later, below 1.5, got {version}"):
            compat.install()
    assert OWN == REGISTRY_VEC_ENV
