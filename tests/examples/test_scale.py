"""Where environments do not, the agent of the PPO example learns the scale of what it sees."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from xuance_envs import DummyVecEnv

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
pytest.importorskip("tqdm")

from xuance_envs import RolloutCollector

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_ppo.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("train_ppo_to_scale", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore:.*precision lowered")  # of Gymnasium's RescaleAction
def test_all_environments_are_seen_in_one_scale_which_travels_with_the_weights(
    example: Any,
) -> None:
    torch.manual_seed(0)
    envs = DummyVecEnv([partial(example.make_prepared_env, "Pendulum-v1", 0.98)] * 3)
    agent = example.Agent((3,), envs.action_space, scales=True)
    settings = replace(example.CONTINUOUS, epochs=1)
    seen = []
    with RolloutCollector(envs, agent, 16, device="cpu", seed=1) as collector:
        training = example.train(collector, agent, settings)
        for _ in range(3):
            next(training)
            seen.append(collector.states.detach().flatten(0, 1))
    states = torch.cat(seen)
    # Each environment's own scale would leave neither on the circle.
    torch.testing.assert_close(states[:, :2].square().sum(1), torch.ones(len(states)))
    mean, variance = states.mean(0), torch.stack([each.var(0) for each in seen]).mean(0)
    torch.testing.assert_close(agent.scale.running_mean, mean)
    torch.testing.assert_close(agent.scale.running_var, variance)
    assert not agent.scale.training  # or else what it plays would change its scale
    copy = example.Agent((3,), envs.action_space, scales=True)
    copy.load_state_dict(agent.state_dict())
    answers = [
        each.get_actions_and_values(states, torch.zeros(len(states), 1)) for each in (agent, copy)
    ]
    torch.testing.assert_close(*(values for _, _, values, _ in answers))
