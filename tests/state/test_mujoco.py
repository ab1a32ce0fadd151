"""MuJoCo's models that change, and what the last step left: contacts, forces, statistics."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same
from gymnasium import spaces

from xuance_envs import DummyVecEnv, EnvStates, Gym_Env, StateMismatchError, SubprocVecEnv
from xuance_envs.state.checkpointer import EnvCheckpointer
from xuance_envs.state.faults import FaultError, MismatchError
from xuance_envs.state.handlers import handler_of
from xuance_envs.state.recorders import record

mujoco = pytest.importorskip("mujoco")

XML = """
<mujoco>
  <option timestep="0.01" density="1.2" viscosity="0.0001"/>
  <asset>
    <texture name="plain" type="2d" builtin="checker" width="64" height="64"/>
    <material name="plain" texture="plain"/>
  </asset>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 0.1" material="plain"/>
    <body name="box" pos="0 0 0.4">
      <freejoint/>
      <geom type="box" size="0.1 0.15 0.1" mass="1"/>
      <body pos="0.2 0 0">
        <joint name="hinge" axis="0 1 0" damping="0.1"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.04" mass="0.3"/>
      </body>
    </body>
    <body name="ball" pos="0.3 0.1 0.8"><freejoint/><geom size="0.1" mass="0.5"/></body>
  </worldbody>
  <actuator><motor joint="hinge" gear="5"/></actuator>
  <sensor><accelerometer site="s"/></sensor>
</mujoco>
""".replace('<geom size="0.1" mass="0.5"/>', '<geom size="0.1" mass="0.5"/><site name="s"/>')


class Falling(gymnasium.Env[Any, Any]):
    """A box with an arm, and a ball, that fall to the floor."""

    observation_space = spaces.Box(-np.inf, np.inf, (60,), np.float64)
    action_space = spaces.Box(-1, 1, (1,), np.float64)
    xml = XML

    def __init__(self) -> None:
        self.model = mujoco.MjModel.from_xml_string(self.xml)
        self.data = mujoco.MjData(self.model)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        self.randomize()
        self.data.qpos[:3] += 0.1 * self.np_random.random(3)
        mujoco.mj_forward(self.model, self.data)
        self.steps = 0
        return self.seen(), {}

    def randomize(self) -> None:
        pass

    def seen(self) -> Any:
        data = self.data
        parts = [data.qpos, data.qvel, data.xpos.ravel(), data.sensordata, [data.time]]
        parts += [contact.dist for contact in data.contact]
        parts += [data.efc_force, data.efc_J.ravel(), [data.ncon, data.nefc], data.cfrc_ext.ravel()]
        parts += [data.solver_niter.ravel(), data.qacc_warmstart, data.energy]
        flat = np.concatenate([np.ravel(part) for part in parts]).astype(float)
        return np.resize(flat, 60)

    def step(self, action: Any) -> Any:
        before = self.seen().sum() + sum(map(float, self.data.efc_pos))  # what the last one left
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data, 3)
        self.steps += 1
        info = {"wind": self.model.opt.wind.copy(), "niter": int(self.data.solver_niter[0])}
        return self.seen(), before, self.steps >= 60, False, info


class Randomized(Falling):
    """Draws another model at each reset, in one place of it."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def randomize(self) -> None:
        holder: Any = self.model
        *path, name = self.what.split(".")
        for part in path:
            holder = getattr(holder, part)
        value = getattr(holder, name)
        if isinstance(value, np.ndarray):
            drawn = self.np_random.random(value.shape)
            value[...] = drawn * 200 if value.dtype.kind in "iu" else value * (0.5 + drawn) + drawn
        else:
            setattr(holder, name, value * (0.5 + float(self.np_random.random())))

    def seen(self) -> Any:
        found = super().seen()
        found[-1] = self.model.tex_data.astype(float).sum() + self.model.vis.headlight.ambient.sum()
        return found


def transcript(env: Any, actions: Any) -> list[Any]:
    found: list[Any] = []
    for action in actions:
        found.append(copy.deepcopy(env.step(action)))
        if found[-1][2] or found[-1][3]:
            found.append(copy.deepcopy(env.reset()))
    return found


def check_exact(
    make: Callable[[], Any], length: int = 80, steps: Sequence[int] = (0, 1, 17, 60)
) -> None:
    """Compares what goes on after loading, from states of several steps, in two twins."""
    env, stepped, fresh = make(), make(), make()
    for each in (env, stepped, fresh):
        record(each)
    env.action_space.seed(3)
    actions = [env.action_space.sample() for _ in range(length)]
    env.reset(seed=1)
    stepped.reset(seed=2)
    transcript(stepped, actions[: length // 2])
    fresh.reset(seed=5)
    for before in steps:
        transcript(env, actions[:before])
        data = EnvCheckpointer(env).save()
        expected = transcript(env, actions)
        for twin in (stepped, fresh):
            for _ in range(2):  # also right after a load
                EnvCheckpointer(twin).prepare(data, trusted=False).apply()
                assert EnvCheckpointer(twin).save() == data
            assert_same(transcript(twin, actions), expected)
    for each in (env, stepped, fresh):
        each.close()


CHANGES = [
    "body_mass",
    "geom_friction",
    "tex_data",
    "opt.wind",
    "opt.viscosity",
    "vis.headlight.ambient",
    "stat.extent",
]


@pytest.mark.parametrize("what", CHANGES)
def test_a_model_that_changes_is_state(what: str) -> None:
    check_exact(lambda: Randomized(what), 24, (17, 60))


def test_contacts_and_forces_are_what_the_last_step_left() -> None:
    check_exact(Falling)


def test_states_with_and_without_contacts_are_loaded_in_turn() -> None:
    env, twin = Falling(), Falling()
    states = []
    for seed in range(3):
        env.reset(seed=seed)
        states.append(EnvCheckpointer(env).save())
        transcript(env, np.zeros((40, 1)))
        states.append(EnvCheckpointer(env).save())
        assert env.data.ncon
    twin.reset(seed=9)
    for data in states + states[::-1]:
        EnvCheckpointer(twin).prepare(data, trusted=False).apply()
        assert EnvCheckpointer(twin).save() == data


def test_pointers_beyond_the_arena_are_refused() -> None:
    env = Falling()
    env.reset(seed=0)
    handler: Any = handler_of(mujoco.MjData)
    transcript(env, np.zeros((40, 1)))
    numbers, solver, offsets, buffer, arena = handler.save(env.data, env)
    beyond = offsets[:-8] + (len(arena) + 9).to_bytes(8, "little")
    for _ in range(2):
        with pytest.raises(FaultError, match="pointers into"):
            handler.check(env.data, (numbers, solver, beyond, buffer, arena))
    too_large = bytes(env.data.narena + 8)
    with pytest.raises(MismatchError, match="bytes of arena in use when it was saved"):
        handler.check(env.data, (numbers, solver, offsets, buffer, too_large))
    with pytest.raises(MismatchError, match=r"of pointers and \d+ of buffer here"):
        handler.check(env.data, (numbers, solver, offsets, buffer[:-8], arena))
    assert handler.check(env.data, (numbers, solver, offsets, buffer, arena)) is None


@pytest.mark.parametrize(
    "name",
    [
        "Ant-v5",
        "Humanoid-v5",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("Pusher-v5", "Walker2d-v5")),
    ],
)
def test_gymnasiums_environments_see_the_same_contacts(name: str) -> None:
    class Seeing(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            data = self.unwrapped.data  # type: ignore[attr-defined]
            seen = [data.efc_force.copy(), data.efc_D.copy(), [c.dist for c in data.contact]]
            *result, info = self.env.step(action)
            return *result, {**info, "before": seen, "island": data.nisland}

    check_exact(lambda: Seeing(gymnasium.make(name)), 60)


def test_workers_and_other_backends_take_models_over(tmp_path: Path) -> None:
    fns = [lambda: Randomized("body_inertia")] * 4
    with DummyVecEnv(fns) as dummy, SubprocVecEnv(fns, in_series=2) as workers:
        for seed, envs in enumerate((dummy, workers)):
            envs.reset(seed=seed)
            for _ in range(70):
                envs.step(np.zeros((4, 1)))
        dummy.save_state().save(tmp_path / "one.xenvs")
        workers.load_state(EnvStates.load(tmp_path / "one.xenvs"))
        for _ in range(70):
            assert_same(workers.step(np.ones((4, 1)))[:4], dummy.step(np.ones((4, 1)))[:4])
        workers.clone_state([0], [3])
        obs = workers.step(np.ones((4, 1)))[0]
        assert_same(obs[3], obs[0])


def test_a_model_that_was_made_otherwise_is_refused() -> None:
    class Heavy(Falling):
        def __init__(self) -> None:
            super().__init__()
            self.model.dof_armature[6] = 0.5

    Heavy.__name__, Heavy.__qualname__ = Falling.__name__, Falling.__qualname__
    with DummyVecEnv([Falling]) as one, DummyVecEnv([Heavy]) as other:
        one.reset()
        other.reset()
        with pytest.raises(StateMismatchError, match="differs in its model: initial values"):
            other.load_state(one.save_state())


FILE = Path(__file__).with_name("files_0.2.0") / "halfcheetah.xenvs"


def test_a_file_of_an_earlier_version_says_what_it_does_not_hold() -> None:
    state = EnvStates.load(FILE)
    ((_, versions),) = state.facts.values()
    if mujoco.__version__ != versions["mujoco"]:
        pytest.skip("MuJoCo's states are of one version")
    with DummyVecEnv([lambda: Gym_Env("HalfCheetah-v5")] * 2) as envs:
        envs.reset(seed=0)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            envs.load_state(state)
        texts = " ".join(str(each.message) for each in told)
        assert "without the MuJoCo model's parameters" in texts
        assert "without MuJoCo's contacts and constraint forces" in texts
        with np.load(FILE.with_suffix(".npz")) as file:
            expected = dict(file)
        rng = np.random.default_rng(1)
        for obs, rewards in zip(expected["observations"], expected["rewards"], strict=True):
            step = envs.step(rng.uniform(-1, 1, (2, 6)).astype(np.float32))
            np.testing.assert_array_equal(step[0], obs)
            np.testing.assert_array_equal(step[1], rewards)
        envs.envs[0].unwrapped.model.dof_armature[5] += 0.1
        with pytest.raises(StateMismatchError, match="the state lacks the model's parameters"):
            envs.load_state(state)
