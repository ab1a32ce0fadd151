"""The demo's learning half, and the example it trains with."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from example_envs import TAXI
from warm_python import run_python

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
pytest.importorskip("matplotlib")
pytest.importorskip("pygame")
pytest.importorskip("tqdm")

from PIL import Image

from xuance_envs import SubprocVecEnv_Gym, demo

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "train_ppo.py"


@pytest.fixture(scope="module")
def ppo():
    return demo.load_example()


def test_the_demo_learns_draws_and_records(tmp_path, capsys):
    assert demo.show_learning(seed=1, goal=30.0, out=tmp_path / "new")
    captured = capsys.readouterr()
    *_, curve, recording = (Path(line) for line in captured.out.splitlines())
    assert curve.parent == recording.parent == tmp_path / "new"
    assert curve.read_bytes().startswith(b"\x89PNG")
    with Image.open(recording) as gif:
        assert gif.size == (600, 400)
        assert gif.n_frames > 8
    assert "Goal reached after" in captured.out
    assert captured.err == "", "progress is shown on terminals only"


def test_training_that_reaches_no_goal_is_said_to_have_stopped(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "MAX_STEPS", 1)
    assert not demo.show_learning(seed=1, goal=500.0, out=tmp_path)
    assert "STOPPED after" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_agent():
    courses = [demo.train(seed, 25.0)[1] for seed in (3, 3, 4)]
    assert courses[0].episodes == courses[1].episodes
    assert courses[0].episodes != courses[2].episodes
    assert all(history.mean_return >= 25 for history in courses)


def test_what_the_example_defines_reaches_workers_that_cannot_import_it(ppo):
    make_env = partial(ppo.make_env, "CartPole-v1")
    with SubprocVecEnv_Gym([make_env], context="spawn") as envs:
        obs, _ = envs.reset()
    assert obs.shape == (1, 4)


def test_the_callers_threads_are_left_alone():
    threads = torch.get_num_threads()
    demo.train(1, 20.0)
    assert torch.get_num_threads() == threads


def test_the_examples_agent_chooses_what_masks_allow(ppo):
    agent = ppo.Agent((5,), gymnasium.spaces.Discrete(6))
    masks = torch.rand(1000, 6) < 0.5
    masks[:, 2] = True
    states = torch.randn(1000, 5)
    actions, log_probs, _, entropy = agent.get_actions_and_values(states, masks=masks)
    assert masks[torch.arange(1000), actions].all()
    assert torch.isfinite(log_probs).all()
    assert torch.isfinite(entropy).all()
    again = agent.get_actions_and_values(states, actions, masks)[1]
    assert torch.equal(again, log_probs)
    assert not torch.equal(agent.get_actions_and_values(states, actions)[1], log_probs)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_example_learns_to_drive_a_taxi(ppo):
    settings = ppo.settings_for(TAXI)
    torch.manual_seed(1)
    envs = ppo.make_envs(TAXI, 32, "dummy", settings.gamma)
    agent = ppo.Agent(envs.observation_space.shape, envs.action_space)
    with ppo.RolloutCollector(envs, agent, settings.steps_per_env, seed=1) as collector:
        for _ in ppo.train(collector, agent, settings):
            assert collector.action_masks is not None
            if collector.mean_ep_return > 5 or collector.global_steps > 200_000:
                break
        assert collector.mean_ep_return > 5


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_cartpole_is_solved(seed):
    _, history = demo.train(seed, demo.GOAL)
    assert history.mean_return >= demo.GOAL


# --- the example --------------------------------------------------------------------------------


def test_the_example_fits_one_file_of_less_than_400_lines():
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 400


def run_example(*arguments):
    return run_python("-W", "error", EXAMPLE, *arguments)


@pytest.mark.slow("a training run")
@pytest.mark.parametrize(
    ("env_id", "backend"),
    [
        ("CartPole-v1", "subproc"),
        pytest.param("Pendulum-v1", "dummy", marks=pytest.mark.long),  # another test saves it
    ],
)
def test_the_example_trains_as_the_command_line_says(env_id, backend):
    answer = run_example(
        *("--env", env_id, "--backend", backend, "--num-envs", "4", "--seed", "2", "--steps", "600")
    )
    assert answer.returncode == 0, answer.stderr
    last = answer.stdout.splitlines()[-1]
    assert int(last.split()[0].replace(",", "")) >= 600
    assert "mean return" in last


@pytest.mark.long
def test_the_example_trains_on_an_atari_game():
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    answer = run_example("--env", "ALE/Breakout-v5", "--num-envs", "2", "--steps", "10")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1].split()[:2] == ["256", "steps"]


@pytest.mark.slow("two training runs")
def test_the_example_saves_an_agent_with_the_scale_it_sees_in_and_has_it_play(tmp_path):
    path = str(tmp_path / "agent.pt")
    options = ("--env", "Pendulum-v1", "--backend", "dummy", "--num-envs", "4")
    answer = run_example(*options, "--steps", "600", "--save", path)
    assert answer.returncode == 0, answer.stderr
    saved = torch.load(path, weights_only=True)
    assert saved["scale"]["NormalizeObservations.count"] > 600
    assert saved["scale"]["NormalizeRewards.squares"] > 0
    answer = run_example(*options, "--steps", "600", "--play", path)
    assert answer.returncode == 0, answer.stderr
    assert "mean return" in answer.stdout.splitlines()[-1]


@pytest.mark.parametrize("flag", ["--save", "--play"])
def test_the_examples_collectors_keep_no_agent_and_say_so(flag, tmp_path):
    answer = run_example("--collectors", "2", flag, str(tmp_path / "kept"))
    assert answer.returncode == 2
    assert "--collectors cannot be combined with --save or --play" in answer.stderr


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (gymnasium.spaces.Discrete(3, start=-1), (4,)),
        (gymnasium.spaces.Discrete(6), (4, 84, 84)),
        (gymnasium.spaces.Box(-1, 1, (2,)), (5,)),
    ],
    ids=["start", "images", "box"],
)
def test_the_agent_answers_for_its_spaces(ppo, space, shape):
    torch.manual_seed(0)
    agent = ppo.Agent(shape, space)
    states = torch.randint(0, 255, (7, *shape), dtype=torch.uint8)
    actions, log_probs, values, entropy = agent.get_actions_and_values(states.float() / 255)
    assert log_probs.shape == values.shape == entropy.shape == (7,)
    assert actions.shape == (7, *space.shape)
    if isinstance(space, gymnasium.spaces.Discrete):
        assert all(space.contains(action) for action in actions.numpy())
    again = agent.get_actions_and_values(states.float() / 255, actions)
    assert torch.equal(again[1], log_probs)
    if shape == (5,):
        expected = torch.distributions.Normal(0.0, 0.5).log_prob(actions).sum(-1)
    else:
        expected = -np.log(space.n) * torch.ones(7)
    torch.testing.assert_close(log_probs, expected, atol=0.1, rtol=0.1)


def test_drawn_actions_have_the_policys_frequencies(ppo):
    torch.manual_seed(0)
    agent = ppo.Agent((4,), gymnasium.spaces.Discrete(3))
    wanted = torch.tensor([0.2, 0.7, 0.1])
    actions, log_probs, _ = agent.choose(wanted.log().expand(20_000, 3), None)
    found = torch.bincount(actions, minlength=3) / 20_000
    torch.testing.assert_close(found, wanted, atol=0.015, rtol=0.0)
    torch.testing.assert_close(log_probs, wanted.log()[actions])
