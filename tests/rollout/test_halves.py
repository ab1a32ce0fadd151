"""Halves that take turns: the same rollouts, and who is asked about what when."""

from __future__ import annotations

import logging
import time
from functools import partial

import collected_envs
import numpy as np
import pytest
from collected_envs import RESULTS, STATISTICS, TWO, assert_same, env_fns
from gymnasium import spaces
from play_envs import Meeting, PlayEnv, Uneven
from rollout_reference import Player, StagedTransfer, parts_of

import xuance_envs.rollout.results as results_module
from xuance_envs import (
    DummyVecEnv,
    EnvError,
    RolloutCollector,
    SubprocVecEnv,
    SyncVecEnv,
)
from xuance_envs.rollout.recorder import GifRecorder
from xuance_envs.vector_envs.vector_env import VecEnv

SPACES = {"image": spaces.Box(0, 255, (8, 6, 3), np.uint8), **collected_envs.SPACES}


class Thinker(collected_envs.Thinker):
    """Does what it sees, and notes whom it is asked about."""

    def __init__(self):
        super().__init__(TWO)
        self.asked = []

    def get_actions_and_values(self, states, actions=None):
        self.asked.append(len(parts_of(states)[0]))
        return super().get_actions_and_values(states, actions)


def workers(functions, in_series=1, **options):
    return SubprocVecEnv(functions, in_series=in_series, context="forkserver", **options)


def played(envs, agent, rollouts=3, steps=6, **options):
    """Everything that some rollouts leave behind."""
    found = []
    with RolloutCollector(envs, agent, steps, device="cpu", **options) as collector:
        for _ in range(rollouts):
            collector.rollout()
            found.append({name: getattr(collector, name) for name in (*RESULTS, *STATISTICS)})
            found[-1]["advantages"] = collector.advantages(0.9, 0.8)
    return found


@pytest.mark.parametrize("staged", [False, True], ids=["here", "staged"])
@pytest.mark.parametrize("space", SPACES)
def test_every_attribute_is_that_of_all_at_once(space, staged, monkeypatch):
    if staged:
        monkeypatch.setattr(results_module, "Transfer", StagedTransfer)
    expected = played(DummyVecEnv(env_fns(SPACES[space])), Thinker())
    assert_same(played(workers(env_fns(SPACES[space])), Thinker(), halves=2), expected)


@pytest.mark.parametrize(
    "options", [{"in_series": 2}, {"in_series": 2, "caller_steps": True}, {"copy": False}], ids=str
)
def test_so_it_is_when_workers_answer_in_any_order(options):
    functions = env_fns(SPACES["vector"], Uneven)
    expected = played(DummyVecEnv(functions), Thinker(), steps=30)
    assert_same(played(workers(functions, **options), Thinker(), steps=30, halves=2), expected)


def test_the_agent_is_asked_about_the_halves_in_turn():
    agent = Thinker()
    with RolloutCollector(workers(env_fns(SPACES["vector"]), 2), agent, 4, halves=2) as collector:
        collector.rollout()
    assert agent.asked == [2, 3] * 4


def test_an_agent_that_draws_does_so_in_that_order():
    agent = Player(TWO)
    with RolloutCollector(workers(env_fns(SPACES["vector"])), agent, 4, halves=2) as collector:
        collector.rollout()
        other = Player(TWO)
        for row in collector.actions:
            assert row.tolist() == [*other.draw(2).tolist(), *other.draw(3).tolist()]


def test_one_half_steps_while_the_agent_thinks_about_the_other():
    class Slow(Thinker):
        def get_actions_and_values(self, states, actions=None):
            begin = time.monotonic()
            time.sleep(0.05)
            self.thought = [*getattr(self, "thought", ()), (begin, time.monotonic())]
            return super().get_actions_and_values(states, actions)

    stepped = []
    functions = [
        partial(Meeting, number, SPACES["vector"], TWO, (100,), told="score") for number in range(2)
    ]
    envs = workers(functions)
    recv = envs.recv

    def noted(**arguments):
        batch = recv(**arguments)
        stepped.extend(batch.infos.column("at")[0].tolist())
        return batch

    envs.recv = noted
    agent = Slow()
    with RolloutCollector(envs, agent, 3, halves=2) as collector:
        collector.rollout()
    within = [any(a < at < b for a, b in agent.thought) for at in stepped]
    assert len(within) == 6
    # All but the last have somebody to think about meanwhile; on a busy machine fewer.
    assert sum(within) >= 3


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (partial(DummyVecEnv, env_fns(SPACES["vector"])), "two or more workers"),
        (partial(workers, env_fns(SPACES["vector"]), 5), "two or more workers"),
    ],
    ids=["dummy", "one worker"],
)
def test_where_all_step_together_there_are_no_halves(make, said):
    with make() as envs:
        with pytest.raises(ValueError, match=rf"halves=2: expected .*{said}"):
            RolloutCollector(envs, Thinker(), 3, halves=2)
        collector = RolloutCollector(envs, Thinker(), 3, halves="auto")
        assert collector.halves == 1
        collector.rollout()


def test_a_vec_env_without_workers_steps_as_a_whole():
    class Own(DummyVecEnv):
        statistics = VecEnv.statistics

    with Own(env_fns(SPACES["vector"])) as envs:
        assert RolloutCollector(envs, Thinker(), 3, halves="auto").halves == 1


def test_pictures_and_halves_do_not_go_together(tmp_path):
    with workers(env_fns(SPACES["vector"])) as envs:
        recorder = GifRecorder(10, folder=str(tmp_path))
        with pytest.raises(ValueError, match="halves=2: expected recorder=None"):
            RolloutCollector(envs, Thinker(), 3, halves=2, recorder=recorder)


@pytest.mark.parametrize("halves", [0, 3, "two", None])
def test_something_else_is_refused(halves):
    with (
        DummyVecEnv(env_fns(SPACES["vector"])) as envs,
        pytest.raises(ValueError, match="halves: expected 1, 2 or 'auto', got"),
    ):
        RolloutCollector(envs, Thinker(), 3, halves=halves)


@pytest.mark.parametrize(("slow", "chosen"), [(1, 2), (2, 1)])
def test_auto_takes_what_is_quicker_and_says_so(slow, chosen, monkeypatch, caplog):
    now = [0.0]
    monkeypatch.setattr("xuance_envs.rollout.playing.perf_counter", lambda: now[0])
    asked = []

    class Timed(Thinker):
        """Takes so long over a step that is made in one way, and less in the other."""

        def get_actions_and_values(self, states, actions=None):
            kind = 1 if len(states) == 5 else 2
            asked.append(kind)
            now[0] += (0.002 if kind == slow else 0.001) / kind
            return super().get_actions_and_values(states, actions)

    monkeypatch.setattr("xuance_envs.rollout.playing.STEPS_PER_TURN", 4)
    functions = env_fns(SPACES["vector"])
    expected = played(DummyVecEnv(functions), Thinker(), rollouts=8, steps=6)
    with caplog.at_level(logging.INFO, "xuance_envs"):
        found = played(workers(functions), Timed(), rollouts=8, steps=6, halves="auto")
    assert_same(found, expected)
    assert f"halves={chosen}: a step takes" in caplog.text
    assert asked[-1 - chosen] == chosen  # behind it the advantages were asked for


def test_a_rollout_that_an_error_ended_is_got_over():
    agent = Thinker()
    with RolloutCollector(workers(env_fns(SPACES["vector"])), agent, 6, halves=2) as collector:
        collector.rollout()
        answer, agent.get_actions_and_values = agent.get_actions_and_values, None
        with pytest.raises(TypeError):
            collector.rollout()
        calls = []

        def third_fails(states, actions=None):
            calls.append(states)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return answer(states, actions)

        agent.get_actions_and_values = third_fails
        with pytest.raises(KeyboardInterrupt):
            collector.rollout()
        assert not hasattr(collector, "states")
        agent.get_actions_and_values = answer
        collector.rollout()
        assert collector.states.shape == (6, 5, 3)
        assert collector.vec_step([0] * 5)[0].shape == (5, 3)


def test_an_environment_that_raises_is_named():
    class Failing(PlayEnv):
        def step(self, action):
            if self.steps == 2:
                raise ValueError("as told")
            return super().step(action)

    functions = env_fns(SPACES["vector"])
    functions[3] = partial(Failing, 3, SPACES["vector"], TWO, (9,))
    with (
        RolloutCollector(workers(functions), Thinker(), 6, halves=2) as collector,
        pytest.raises(EnvError, match="environment 3 failed in 'step': ValueError: as told"),
    ):
        collector.rollout()


def test_it_makes_two_workers_for_each_cpu(monkeypatch):
    monkeypatch.setattr("xuance_envs.rollout.sync_vec_env.available_cpus", lambda: 2)
    env_fn = env_fns(SPACES["vector"])[0]
    options = {"backend": "subproc", "context": "forkserver", "halves": 2}
    with SyncVecEnv(env_fn, 8, 3, agent=Thinker(), **options) as collector:
        assert len(collector.vec_env.statistics()) == 4
        collector.rollout()
        assert collector.states.shape == (3, 8, 3)
