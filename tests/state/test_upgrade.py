"""What version 0.2.0 wrote can be used: states, recorded failures, checkpoints, public names."""

from __future__ import annotations

import importlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from xuance_envs import (
    Atari_Env,
    DummyVecEnv,
    EnvStates,
    Gym_Env,
    MountainCar,
    VecEnv,
    transforms,
)
from xuance_envs.__main__ import main
from xuance_envs.multi_agent import make_multi_agent_vec
from xuance_envs.state.checkpointer import EnvCheckpointer
from xuance_envs.state.faults import FaultError
from xuance_envs.state.pickling import StatePickler

FILES = Path(__file__).with_name("files_0.2.0")

# All of them load with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

MAKERS: dict[str, tuple[Callable[[], VecEnv], int]] = {
    "cartpole": (lambda: DummyVecEnv([lambda: Gym_Env("CartPole-v1")] * 3), 2),
    "mountaincar": (lambda: DummyVecEnv([MountainCar] * 2), 3),
    "legacy": (lambda: DummyVecEnv([lambda: Gym_Env("CartPole-v1", library="gym")] * 2), 2),
    "breakout": (
        lambda: DummyVecEnv([lambda: Atari_Env("Breakout", image_size=20, num_stack=2)]),
        4,
    ),
}
"""How each file's environments are made, and the number of their actions."""


@pytest.mark.parametrize("name", MAKERS)
def test_a_state_file_continues_exactly(name: str) -> None:
    if name == "breakout" and pytest.importorskip("ale_py").__version__ != "0.12.1":
        pytest.skip("the emulator's states are of one version of ale-py")
    if name == "legacy":
        pytest.importorskip("gym")
    make, actions = MAKERS[name]
    with np.load(FILES / f"{name}.npz") as file:
        expected = dict(file)
    rng = np.random.default_rng(1)
    with make() as envs:
        envs.reset(seed=0)
        envs.load_state(EnvStates.load(FILES / f"{name}.xenvs"))
        for rows in zip(*expected.values(), strict=True):
            step = envs.step(rng.integers(actions, size=envs.num_envs))
            for got, row in zip(step, rows, strict=False):
                np.testing.assert_array_equal(np.asarray(got), row)


def test_a_multi_agent_state_file_continues_exactly() -> None:
    world = pytest.importorskip("mpe2.simple_spread.simple_spread")
    if not hasattr(world, "ExtendedWorld"):
        pytest.skip("the file was written with a newer mpe2")
    with np.load(FILES / "multi_agent.npz") as file:
        expected = file["rewards"]
    with make_multi_agent_vec("mpe2:simple_spread_v3", 2, backend="dummy") as envs:
        envs.reset(seed=0)
        envs.load_state(EnvStates.load(FILES / "multi_agent.xenvs", trusted=True))
        for row in expected:
            step = envs.step([dict.fromkeys(envs.agents, 2) for _ in range(2)])
            np.testing.assert_array_equal(step.rewards, row)


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_warning_names_what_a_state_file_does_not_hold() -> None:
    with MAKERS["cartpole"][0]() as envs:
        envs.reset(seed=0)
        with pytest.warns(UserWarning, match=r"version 0\.2, which did not save .* of functions"):
            envs.load_state(EnvStates.load(FILES / "cartpole.xenvs"))


class Scaled(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Holds a function whose variable was not saved."""

    def __init__(self, env: Any, scale: float) -> None:
        super().__init__(env)
        self.scaled = lambda value: value * scale


def old_state_of(env: Any) -> bytes:
    """Return the state of an environment as version 0.2 would have saved it."""
    checkpointer = EnvCheckpointer(env)
    checkpointer.save()
    plan = checkpointer.plan
    attributes = [
        {n: v for n, v in layer.items() if n not in layer.excluded and not callable(v)}
        for layer in plan.layers
    ]
    names = [" ".join({*layer.excluded, "scaled"}) for layer in plan.layers]
    generators = [space._np_random for space in plan.spaces.values()]
    file = io.BytesIO()
    content = names, {"function": (0, "")}, attributes, [], generators, None
    StatePickler(file, plan).dump(content)
    return file.getvalue()


def test_what_a_function_closes_over_is_refused_if_a_state_does_not_hold_it() -> None:
    plain, scaled = gymnasium.make("CartPole-v1"), Scaled(gymnasium.make("CartPole-v1"), 2.0)
    for env in (plain, scaled):
        env.reset(seed=1)
    EnvCheckpointer(plain).prepare(old_state_of(plain), trusted=False)
    with pytest.raises(FaultError, match=r"version 0\.2.* did not save the variable 'scale'"):
        EnvCheckpointer(scaled).prepare(old_state_of(scaled), trusted=False)


# --- recorded failures, checkpoints, names and the protocol --------------------------------------


@pytest.mark.parametrize("name", ["dummy", "subproc"])
def test_a_recorded_failure_happens_again(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["replay", str(FILES / f"failure_{name}.xenvs")])
    printed = capsys.readouterr().out.splitlines()
    assert "environment 2 failed in 'step': AssertionError: np.int64(7)" in printed[0]
    assert re.search(r"raised: environment 2 failed in 'step': AssertionError: .*7", printed[-1])


def test_a_checkpoint_of_a_training_run_continues_exactly() -> None:
    torch = pytest.importorskip("torch", "2.5")  # with weights_only, older ones read no bytes
    from xuance_envs import RolloutCollector

    class Agent(torch.nn.Module):  # type: ignore[misc, name-defined]
        """The agent that the checkpoint was written with."""

        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.arange(8.0).reshape(2, 4) / 10

        def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
            zeros = torch.zeros(len(states))
            chosen = (states @ self.weights.T).argmax(-1) if actions is None else actions
            return chosen, zeros, zeros, zeros

    with np.load(FILES / "checkpoint.npz") as file:
        expected = dict(file)
    envs: VecEnv = DummyVecEnv([lambda: Gym_Env("CartPole-v1")] * 3)
    envs = transforms.NormalizeRewards(transforms.NormalizeObservations(envs), gamma=0.9)
    with RolloutCollector(envs, Agent(), 16, device="cpu", seed=5) as collector:
        collector.load_state_dict(torch.load(FILES / "checkpoint.pt", weights_only=True))
        assert collector.global_steps == 3 * 3 * 16
        collector.rollout()
        for name, values in expected.items():
            np.testing.assert_array_equal(getattr(collector, name).detach(), values, name)


NAMES = json.loads((FILES / "public_names.json").read_text(encoding="utf-8"))


NEEDED = {"sb3": "stable_baselines3", "as_sb3": "stable_baselines3", "xuance": "xuance"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("module", NAMES)
def test_public_names_can_still_be_imported(module: str) -> None:
    if library := NEEDED.get(module.rpartition(".")[2]):
        pytest.importorskip(library)
    try:
        imported = importlib.import_module(module)
        missing = [name for name in NAMES[module] if not hasattr(imported, name)]
    except ImportError as error:
        if "pip install" not in str(error):
            raise
        pytest.skip(str(error))
    assert missing == []


def test_a_renamed_module_names_the_new_one() -> None:
    pytest.importorskip("torch")
    from xuance_envs.rollout import agents, many_agents

    with pytest.warns(DeprecationWarning, match=r"use xuance_envs\.rollout\.agents\.MultiAgent$"):
        assert many_agents.MultiAgent is agents.MultiAgent


@pytest.mark.parametrize("version", [2, 3])
def test_a_server_of_then_is_refused_with_both_versions(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("uvicorn")
    from serving import make_server

    from xuance_envs import RemoteVecEnv
    from xuance_envs.errors import RemoteError
    from xuance_envs.remote.server.routes import pages

    monkeypatch.setattr(pages, "PROTOCOL_VERSION", version)
    server = make_server()
    try:
        with pytest.raises(RemoteError, match=rf"version {version}, this client uses version 4"):
            RemoteVecEnv(server.url, None, 2)
    finally:
        server.close()
