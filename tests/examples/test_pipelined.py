"""The example of double buffering."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from warm_python import run_python

from xuance_envs import Gym_Env

torch = pytest.importorskip("torch")
pytest.importorskip("tqdm")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pipelined.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pipelined", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow("measures with one half and two")
def test_it_prints_its_figures() -> None:
    answer = run_python(
        *(EXAMPLE, "--num-envs", "4", "--think", "1", "--sleep"),
        *("--workers", "3", "--rounds", "2", "--steps", "64", "--work", "1"),
    )
    assert answer.returncode == 0, answer.stderr
    assert "4 × CartPole-v1, 2 workers per half" in answer.stdout
    assert answer.stdout.count(" µs per step") == 3
    assert re.search(r"halves=2: [\d.]+ times as fast as halves=1", answer.stdout)
    assert re.search(r"halves='auto' chose [12]\n", answer.stdout)


def test_an_odd_number_is_refused(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        example.main(["--num-envs", "5"])
    assert caught.value.code == 2
    assert "expected an even number, got 5" in capsys.readouterr().err


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_the_policy_gives_actions_of_the_space(example: ModuleType, env_id: str) -> None:
    env = Gym_Env(env_id)
    policy = example.Policy(env, 3, 0.0, "cpu")
    obs, _ = env.reset(seed=0)
    actions, *_ = policy.get_actions_and_values(torch.from_numpy(obs).repeat(3, 1))
    for action in actions.numpy():
        assert env.action_space.contains(action)
