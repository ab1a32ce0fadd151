"""Masks of actions for sb3-contrib: as its algorithms ask for them, and without a pipe per step."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from masked_envs import AnswersWith, MaskedEnv

torch = pytest.importorskip("torch")
pytest.importorskip("stable_baselines3")
pytest.importorskip("sb3_contrib")

from sb3_contrib import MaskablePPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete, InvalidActionEnvMultiDiscrete
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common import vec_env as theirs

from xuance_envs.compat.sb3 import DummyVecEnv, SubprocVecEnv
from xuance_envs.engine.process.driver import ProcessDriver

# Other processes would import torch anew.
Fork = partial(theirs.SubprocVecEnv, start_method="fork")
OurFork = partial(SubprocVecEnv, start_method="fork")
PAIRS = {"dummy": (DummyVecEnv, theirs.DummyVecEnv), "subproc": (OurFork, Fork)}
pairs = pytest.mark.parametrize(("kind", "own"), PAIRS.values(), ids=PAIRS)


@pytest.fixture
def asked(monkeypatch):
    """The commands that processes are asked for, steps aside."""
    commands = []
    submit = ProcessDriver.submit

    def recording(driver, tag, packed):
        commands.append(packed[0])
        submit(driver, tag, packed)

    monkeypatch.setattr(ProcessDriver, "submit", recording)
    return commands


def wrapped(number):
    return TimeLimit(MaskedEnv(number, length=6), 5)


@pairs
def test_learning_is_the_same_bit_for_bit(closing, kind, own):
    learned = []
    for each in (kind, own):
        vec_env = closing(each([partial(wrapped, number) for number in range(3)]))
        model = MaskablePPO("MlpPolicy", vec_env, n_steps=32, batch_size=32, n_epochs=2, seed=3)
        model.learn(256)
        learned.append(model.policy.state_dict())
    for name, ours in learned[0].items():
        assert torch.equal(ours, learned[1][name]), name


def test_steps_ask_nothing_over_a_pipe(closing, asked):
    vec_env = closing(OurFork([partial(wrapped, number) for number in range(4)]))
    model = MaskablePPO("MlpPolicy", vec_env, n_steps=64, batch_size=64, n_epochs=1, seed=3)
    asked.clear()
    model.learn(64 * 4 * 2)
    assert len(asked) < 40, "the rollouts' beginnings aside"


ANSWERS = {
    "bools": np.array([True, False, True, False, True, True]),
    "a list": [True, False, True, False, True, True],
    "int8": np.array([1, 0, 1, 0, 1, 1], np.int8),
    "floats": np.array([1.0, 0, 1, 0, 1, 1]),
    "other numbers": np.array([2, 0, 1, 0, 1, 1]),
    "ints in a list": [1, 0, 1, 0, 1, 1],
    "another length": np.ones(3, bool),
    "something else": "no mask",
    "none": None,
    "of several axes": np.ones((2, 3), bool),
}


@pairs
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_env_method_returns_what_the_method_does(closing, kind, own, answer):
    vec_env, other = (closing(each([partial(AnswersWith, answer)] * 3)) for each in (kind, own))
    for each in (vec_env, other):
        each.reset()
    for _ in range(3):
        got, expected = vec_env.env_method("action_masks"), other.env_method("action_masks")
        assert type(got) is type(expected)
        for one, its in zip(got, expected, strict=True):
            assert type(one) is type(its)
            assert getattr(one, "dtype", None) == getattr(its, "dtype", None)
            assert np.array_equal(one, its)
        assert vec_env.env_method("action_masks", indices=[1])
        vec_env.step([0] * 3)


@pairs
def test_masks_follow_resets_and_what_is_done_to_environments(closing, kind, own):
    both = [
        closing(each([partial(wrapped, number) for number in range(3)])) for each in (kind, own)
    ]
    for each in both:
        each.reset()
    rng = np.random.default_rng(0)
    for number in range(30):
        assert np.array_equal(*map(get_action_masks, both))
        if number % 7 == 3:
            for each in both:
                each.env_method("get_wrapper_attr", "extra")
                each.env_method("set_wrapper_attr", "extra", number)
        if number % 11 == 5:
            for each in both:
                each.reset()
            continue
        actions = rng.integers(6, size=3)
        for each in both:
            each.step(actions)


@pairs
def test_whether_there_are_masks_is_answered_as_theirs(closing, kind, own):
    for function, expected in ((MaskedEnv, True), (partial(MaskedEnv, where=()), False)):
        for each in (kind, own):
            vec_env = closing(each([function] * 2))
            assert is_masking_supported(vec_env) is expected
            if each is kind and not expected:  # theirs ends with its processes
                vec_env.reset()
                with pytest.raises(AttributeError):
                    vec_env.env_method("action_masks")


@pytest.mark.parametrize(
    "function",
    [
        partial(InvalidActionEnvDiscrete, dim=5, n_invalid_actions=2, ep_length=7),
        partial(InvalidActionEnvMultiDiscrete, dims=[2, 3], n_invalid_actions=1, ep_length=7),
    ],
    ids=["Discrete", "MultiDiscrete"],
)
def test_sb3_contribs_own_environments_have_theirs(closing, function, asked):
    vec_env = closing(OurFork([function] * 3))
    vec_env.reset()
    masks = vec_env.env_method("action_masks")
    assert type(masks[0]) is list
    for _ in range(10):
        asked.clear()
        masks = get_action_masks(vec_env)
        assert asked == []
        expected = vec_env.env_method("action_masks", indices=range(3))
        assert np.array_equal(masks, expected)
        vec_env.env_method("action_masks")
        vec_env.step(np.zeros((3, *vec_env.action_space.shape), int))


def test_masks_of_a_dict_are_asked_for_each_time(closing):
    space = spaces.Dict({"a": spaces.Discrete(2)})
    vec_env = closing(OurFork([partial(AnswersWith, {"a": [1, 0]}, space)] * 2))
    vec_env.reset()
    for _ in range(3):
        assert vec_env.env_method("action_masks") == [{"a": [1, 0]}] * 2
