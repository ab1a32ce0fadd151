"""The contract: masks of actions are those of the states that the next actions are chosen in."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from backends import QUICK_START
from comparing import assert_same
from example_envs import TAXI, ReusingEnv
from gymnasium import spaces
from masked_envs import AnswersWith, MaskedEnv

from xuance_envs.errors import AlreadySteppingError, ClosedVecEnvError, EnvError
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv

WAYS = {
    "info": ("action_mask",),
    "XuanCe's info": ("avail_actions",),
    "method": ("method",),
    "all": ("method", "avail_actions", "action_mask"),
    "info before the method": ("method", "avail_actions"),
}
FIRST = {"action_mask": 0, "avail_actions": 1, "method": 2}


class Twins:
    """The environments stepped by hand beside a vector environment."""

    def __init__(self, options):
        self.envs = [MaskedEnv(**each) for each in options]
        self.reset()

    def reset(self, ids=None):
        for i in range(len(self.envs)) if ids is None else ids:
            self.envs[i].reset()

    def step(self, ids=None):
        for i in range(len(self.envs)) if ids is None else ids:
            if self.envs[i].step(0)[2]:
                self.envs[i].reset()

    def masks(self, ids=None):
        chosen = self.envs if ids is None else [self.envs[i] for i in ids]
        return np.stack([env.mask(min(FIRST[way] for way in env.where)) for env in chosen])


def both(make, where, **options):
    """A vector environment of five, reset, and its twins."""
    each = [{"number": i % 3, "where": where} for i in range(5)]
    vec_env = make([partial(MaskedEnv, **given) for given in each], **options)
    vec_env.reset()
    return vec_env, Twins(each)


@pytest.mark.everywhere
@pytest.mark.parametrize("where", WAYS.values(), ids=WAYS)
def test_they_are_those_of_the_next_actions(make, where):
    envs, twins = both(make, where)
    for _ in range(13):
        masks = envs.action_masks()
        assert_same(masks, twins.masks())
        again = envs.action_masks()
        masks[:] = True
        assert_same(again, twins.masks())
        envs.step([0] * 5)
        twins.step()


@pytest.mark.parametrize("where", [WAYS["info"], WAYS["method"]], ids=["info", "method"])
@pytest.mark.parametrize("asked_before", [True, False])
def test_they_are_right_whenever_they_are_asked_for_first(make, where, asked_before):
    envs, twins = both(make, where)
    if asked_before:
        envs.action_masks()
    for _ in range(4):  # an episode ends
        envs.step([0] * 5)
        twins.step()
    envs.reset(env_ids=[3, 1])
    twins.reset([3, 1])
    assert_same(envs.action_masks(), twins.masks())
    envs.step([0] * 5)
    twins.step()
    assert_same(envs.action_masks(), twins.masks())
    envs.reset()
    twins.reset()
    assert_same(envs.action_masks(), twins.masks())


@pytest.mark.everywhere
@pytest.mark.parametrize("where", [WAYS["info"], WAYS["method"]], ids=["info", "method"])
def test_environments_that_were_received_have_theirs(make, where):
    envs, twins = both(make, where)
    assert_same(envs.action_masks(), twins.masks())
    envs.async_reset()
    twins.reset()
    held = []
    for _ in range(6):  # episodes end
        received = 0
        while received < 5:
            batch = envs.recv()
            ids = batch.env_ids.tolist()
            received += len(ids)
            assert_same(batch.action_masks, twins.masks(ids))
            held.append((batch, batch.action_masks))
        envs.send([0] * 5, np.arange(5))
        twins.step()
    for batch, masks in held:
        assert_same(batch.action_masks, masks)
    envs.recv(min_envs=5)
    assert_same(envs.action_masks(), twins.masks())


@pytest.mark.everywhere
def test_a_result_that_is_thrown_away_has_changed_them(make):
    envs, twins = both(make, WAYS["info"])
    envs.async_reset()
    envs.recv(min_envs=5)
    envs.send([0] * 5, np.arange(5))
    envs.reset(env_ids=[2])
    twins.reset()
    twins.step()
    twins.reset([2])
    assert_same(envs.action_masks(), twins.masks())


def test_what_gives_its_mask_now_here_and_now_there(make):
    each = [{"where": where} for where in WAYS.values()]
    envs, twins = make([partial(MaskedEnv, **given) for given in each]), Twins(each)
    envs.reset()
    for _ in range(6):
        assert_same(envs.action_masks(), twins.masks())
        envs.step([0] * 5)
        twins.step()


def test_environments_are_asked_by_their_group_once_for_each_state(make):
    envs, _ = both(make, WAYS["method"])
    envs.step([0] * 5)
    if make.backend.name != "remote":
        assert set(envs.get_attr("asked")) == {0}, "nobody wanted to know"
    envs.action_masks()
    for _ in range(3):
        envs.step([0] * 5)
        envs.action_masks()
        envs.action_masks()
    assert set(envs.get_attr("asked")) == {4}


def test_what_is_done_to_environments_is_heeded(make):
    envs, twins = both(make, WAYS["method"])
    assert_same(envs.action_masks(), twins.masks())
    envs.set_attr("extra", [1, 2, 3, 4, 5])
    for i, env in enumerate(twins.envs):
        env.extra = i + 1
    assert_same(envs.action_masks(), twins.masks())
    envs.step([0] * 5)
    twins.step()
    assert_same(envs.action_masks(), twins.masks())


SPACES = {
    "Discrete that begins elsewhere": (spaces.Discrete(3, start=5), [1, 0, 2]),
    "MultiDiscrete": (spaces.MultiDiscrete([2, 3]), [1, 0, 0, 0, 1]),
    "MultiDiscrete, part by part": (spaces.MultiDiscrete([2, 3]), ([1, 0], np.array([0, 0, 1]))),
    "MultiDiscrete of several axes": (spaces.MultiDiscrete([[2, 2]]), np.eye(2)),
    "MultiBinary": (spaces.MultiBinary(2), [True, False, True, True]),
    "bools": (spaces.Discrete(2), np.array([True, False])),
    "nothing allowed": (spaces.Discrete(3), np.zeros(3, np.int8)),
}


@pytest.mark.parametrize(("space", "answer"), SPACES.values(), ids=SPACES)
def test_any_array_of_the_right_length_is_a_mask(make_either, space, answer):
    envs = make_either([partial(AnswersWith, answer, space)] * 3)
    envs.reset()
    flat = np.concatenate([np.ravel(part) for part in answer]) if len(answer) == 2 else answer
    assert_same(envs.action_masks(), np.stack([np.ravel(flat).astype(bool)] * 3))


@pytest.mark.everywhere
def test_masks_of_dicts_and_tuples_have_their_structure(make_either):
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Discrete(3)] * 2)})
    answer = {"a": [1, 0], "b": ([1, 1, 0], [0, 0, 1])}
    envs = make_either([partial(AnswersWith, answer, space)] * 3)
    envs.reset()
    masks = envs.action_masks()
    assert list(masks) == ["a", "b"]
    assert_same(masks["a"], np.array([[True, False]] * 3))
    assert_same(masks["b"][1], np.array([[False, False, True]] * 3))


def test_actions_are_checked_with_the_masks_of_their_own_keys(make_either):
    space = spaces.Dict(move=spaces.Discrete(3), attack=spaces.Discrete(3))
    answer = {"move": [0, 0, 1], "attack": [1, 0, 0]}
    envs = make_either([partial(AnswersWith, answer, space)] * 3, check_actions=True)
    envs.reset()
    envs.action_masks()
    envs.step([{"move": 2, "attack": 0}] * 3)
    with pytest.raises(ValueError, match="the action mask of environment 0 forbids"):
        envs.step([{"move": 0, "attack": 2}] * 3)


@pytest.mark.parametrize(
    "answer", [np.ones(5), [1, 0], None, "no", [], [[1, 2], 3], {"a": 1}], ids=repr
)
def test_a_mask_of_another_length_names_its_environment(make_either, answer):
    envs = make_either([MaskedEnv, MaskedEnv, partial(AnswersWith, answer)])
    envs.reset()
    with pytest.raises(
        EnvError, match=r"environment 2 .*mask: expected 6 entries, all bools or numbers, got"
    ):
        envs.action_masks()
    envs.step([0] * 3)
    assert envs.call("mask", 2, env_ids=[0])


@pytest.mark.everywhere
def test_a_mask_of_another_length_in_an_info_names_its_environment(make):
    class Short(MaskedEnv):
        def _info(self):
            return {"action_mask": np.ones(3 if self.number == 4 else 6)}

    envs = make([partial(Short, number=i) for i in range(5)])
    envs.reset()
    with pytest.raises(
        EnvError, match=r"environment 4 .*expected 6 entries, .* got an array of shap"
    ):
        envs.action_masks()
    envs.step([0] * 5)


def test_a_method_that_raises_names_its_environment(make):
    envs = make([MaskedEnv, MaskedEnv, partial(AnswersWith, RuntimeError("no idea"))])
    envs.reset()
    with pytest.raises(EnvError, match=r"environment 2 failed in 'action_masks': .*no idea"):
        envs.action_masks()
    envs.step([0] * 3)


def test_a_method_that_comes_to_raise_does_so_in_the_step(make_local):
    envs = make_local([MaskedEnv] * 2 + [partial(AnswersWith, np.ones(6))])
    envs.reset()
    envs.action_masks()
    envs.set_attr("answer", RuntimeError("no idea"), env_ids=[2])
    with pytest.raises(EnvError, match=r"environment 2 failed in 'action_masks': .*no idea"):
        envs.step([0] * 3)
    assert envs.closed


def test_an_environment_without_masks_is_told_where_they_were_looked_for(make):
    envs = make([MaskedEnv, partial(MaskedEnv, where=()), MaskedEnv])
    envs.reset()
    with pytest.raises(
        AttributeError, match=r"environment 1 .*'action_mask' or 'avail_actions'.*action_masks\(\)"
    ):
        envs.action_masks()
    envs.step([0] * 3)
    envs.async_reset()
    with pytest.raises(AttributeError, match="environment 1"):
        _ = envs.recv(min_envs=3).action_masks


def test_actions_of_other_spaces_have_no_masks(make):
    class Moving(ReusingEnv):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.Box(-1, 1, (2,))

    envs = make([Moving] * 2)
    envs.reset()
    with pytest.raises(AttributeError, match=r"action masks are not supported for Box"):
        envs.action_masks()


def test_wide_masks_are_given_too(make_local):
    space, answer = spaces.Discrete(100), np.arange(100) % 3 == 0
    envs = make_local([partial(AnswersWith, answer, space)] * 3, info_bytes=50)
    envs.reset()
    for _ in range(3):
        assert_same(envs.action_masks(), np.stack([answer] * 3))
        envs.step([0] * 3)


def test_they_are_not_asked_for_while_a_step_is_pending(make):
    envs, _ = both(make, WAYS["method"])
    envs.step_async([0] * 5)
    with pytest.raises(AlreadySteppingError, match="action_masks"):
        envs.action_masks()
    envs.step_wait()
    envs.close()
    with pytest.raises(ClosedVecEnvError):
        envs.action_masks()


def test_an_action_that_is_forbidden_is_refused_where_actions_are_checked(make):
    answer = [0, 1, 0, 1, 1, 0]
    envs = make([partial(AnswersWith, answer)] * 3, check_actions=True)
    envs.reset()
    envs.step([0, 0, 0])  # nobody has looked at masks so far
    envs.action_masks()
    envs.step([1, 3, 4])
    with pytest.raises(ValueError, match=r"mask of environment 2 forbids its action .*2"):
        envs.step([1, 3, 2])
    envs.step([4, 3, 1])


CHOICES = {
    "Discrete": (spaces.Discrete(3, start=5), [0, 1, 1], 6, 5),
    "MultiDiscrete": (spaces.MultiDiscrete([2, 3]), [0, 1, 1, 0, 0], [1, 0], [1, 2]),
    "MultiBinary": (spaces.MultiBinary(2), [0, 1, 1, 1], [1, 0], [0, 0]),
    "Tuple": (
        spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]),
        ([1, 1], [1, 0, 0]),
        (1, 0),
        (1, 2),
    ),
    "unsorted Dict": (
        spaces.Dict([("wheel", spaces.Discrete(2)), ("arm", spaces.Discrete(3))]),
        {"wheel": [1, 1], "arm": [1, 0, 0]},
        {"wheel": 1, "arm": 0},
        {"wheel": 1, "arm": 2},
    ),
}


@pytest.mark.parametrize(("space", "answer", "allowed", "forbidden"), CHOICES.values(), ids=CHOICES)
def test_actions_of_any_space_are_checked(make_local, space, answer, allowed, forbidden):
    envs = make_local([partial(AnswersWith, answer, space)] * 3, check_actions=True)
    envs.reset()
    envs.action_masks()
    envs.step([allowed] * 3)
    with pytest.raises(ValueError, match="mask of environment 1 forbids its action"):
        envs.step([allowed, forbidden, allowed])


class Dying(MaskedEnv):
    """Ends its process at a step of its first life."""

    def step(self, action):
        if action == 5:
            raise SystemExit("as told")
        return super().step(action)


def test_after_a_restart_they_are_those_of_the_new_environments():
    for where in (("method",), ("action_mask",)):
        with SubprocVecEnv(
            [partial(Dying, number, where=where) for number in range(4)],
            in_series=2,
            context=QUICK_START,
            on_worker_failure="restart",
            restart_on_exception=True,
        ) as envs:
            envs.reset()
            envs.action_masks()
            *_, truncated, _ = envs.step([0, 0, 5, 0])
            assert truncated.tolist() == [False, False, True, True]
            way = FIRST[where[0]]
            for _ in range(3):
                masks = envs.action_masks()
                assert_same(masks, np.stack(envs.call("mask", way)))
                envs.step([0] * 4)


class Interrupted(MaskedEnv):
    """Is interrupted while it is asked for its third mask."""

    def mask_by_method(self):
        if self.asked == 2 and self.number == 1:
            self.asked += 1
            raise KeyboardInterrupt
        return super().mask_by_method()


@pytest.mark.everywhere
@pytest.mark.parametrize("where", [("action_mask",), ("method",)], ids=str)
def test_those_of_a_restored_state_are_those_it_was_saved_with(make_local, where):
    envs, twins = both(make_local, where)
    actions = np.zeros(5, int)
    for _ in range(3):
        envs.step(actions)
        twins.step()
    saved = envs.save_state()
    for _ in range(4):
        envs.step(actions)
    elsewhere, _ = both(make_local, where)
    for loaded in (envs, elsewhere):
        loaded.load_state(saved)
        assert_same(loaded.action_masks(), twins.masks())
    for _ in range(6):
        twins.step()
        for loaded in (envs, elsewhere):
            loaded.step(actions)
            assert_same(loaded.action_masks(), twins.masks())
    envs.clone_state(2, [0, 4])
    assert_same(envs.action_masks(), twins.masks()[[2, 1, 2, 3, 2]])


@pytest.mark.parametrize("length", [1, 2, 9])
def test_an_interrupt_while_an_environment_is_asked_repeats_no_step(length):
    with DummyVecEnv([partial(Interrupted, number, length) for number in range(3)]) as envs:
        envs.reset()
        envs.action_masks()
        envs.step([0] * 3)
        with pytest.raises(KeyboardInterrupt):
            envs.step([0] * 3)
        obs = envs.step_wait()[0]
        lengths = [length, length + 1, length + 2]
        assert obs.ravel().tolist() == [2.0 if each > 1 else 1.0 for each in lengths]
        assert_same(envs.action_masks(), np.stack([env.mask(2) for env in envs.envs]))
        assert [env.episode for env in envs.envs] == [1 + 2 // each for each in lengths]


def test_gymnasiums_taxi_has_them(make_either):
    envs = make_either([partial(gymnasium.make, TAXI, max_episode_steps=3)] * 3)
    _, infos = envs.reset(seed=0)
    for _ in range(5):
        expected = [info.get("reset_info", info)["action_mask"] for info in infos]
        assert_same(envs.action_masks(), np.stack(expected).astype(bool))
        infos = envs.step(envs.action_masks().argmax(axis=1))[4]
