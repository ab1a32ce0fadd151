"""The contract: async_reset, send and recv."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial

import gymnasium
import numpy as np
import pytest
from backends import QUICK_START
from comparing import HandSteps, assert_same_reset, assert_same_step, batch_of
from example_envs import EchoEnv, FailingEnv, ReusingEnv
from gymnasium import spaces
from interrupts import Instant, alarms_interrupt

from xuance_envs import (
    AlreadySteppingError,
    ClosedVecEnvError,
    DummyVecEnv,
    EnvError,
    NotSteppingError,
    StepBatch,
    SubprocVecEnv,
    WorkerDiedError,
    WorkerTimeoutError,
)
from xuance_envs.engine import ledger

MIXED = spaces.Dict(box=spaces.Box(-1, 1, (2,)), word=spaces.Text(4), pair=spaces.Discrete(3))


class WaitingEnv(gymnasium.Env):
    """Takes as long as its action says, in milliseconds; counts its steps."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(100_000)

    def __init__(self):
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if options:
            time.sleep(options["wait"])
        return np.zeros(1), {}

    def step(self, action):
        time.sleep(action / 1000)
        self.steps += 1
        return np.full(1, self.steps), 0.5, False, False, {"steps": self.steps}


class NamedEnv(WaitingEnv):
    """Its infos have a name, which is not a number."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def reset(self, **given):
        return super().reset(**given)[0], {"name": self.name}


@pytest.mark.everywhere
def test_ids_may_be_written_into(make):
    envs = make([partial(NamedEnv, name) for name in "abcd"])
    envs.async_reset()
    batch = envs.recv(min_envs=4)
    batch.env_ids[:] = batch.env_ids[::-1].copy()
    assert [info["name"] for info in batch.infos] == ["a", "b", "c", "d"]


def receive(envs, count):
    """Receives so many environments; returns by environment its batch and its place in it."""
    seen = {}
    while len(seen) < count:
        batch = envs.recv()
        seen.update((int(env), (batch, i)) for i, env in enumerate(batch.env_ids))
    return seen


def workers_of(env_fns, in_series, **options):
    return SubprocVecEnv(env_fns, in_series=in_series, context=QUICK_START, **options)


def kill(envs):
    """Ends workers that would let a close wait for their steps."""
    for pid in envs.pids:
        os.kill(pid, signal.SIGKILL)


def assert_batch(space, batch, hands):
    """Compares a batch with what its environments do by hand, given the last action 0."""
    __tracebackhide__ = True
    assert isinstance(batch, StepBatch)
    assert batch.env_ids.dtype == np.intp
    assert batch.env_ids.tolist() == sorted(set(batch.env_ids.tolist()))
    assert_same_step(space, batch[:5], hands)


@pytest.mark.everywhere("mixed")
@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,)), MIXED], ids=["box", "mixed"])
def test_each_environment_goes_as_it_does_by_hand(make, space):
    env_fns = [partial(EchoEnv, space, space, length=2 + i) for i in range(5)]
    envs = make(env_fns)
    hands = [HandSteps(env_fn(), 3 + i) for i, env_fn in enumerate(env_fns)]
    space = envs.action_space
    space.seed(0)
    envs.async_reset(seed=3)
    received = 0
    waiting = set(range(5))
    while waiting:
        batch = envs.recv()
        assert_same_reset(
            envs.observation_space, (batch.obs, batch.infos), [hands[i] for i in batch.env_ids]
        )
        assert batch.rewards.tolist() == [0.0] * len(batch.env_ids)
        assert not batch.terminated.any()
        assert not batch.truncated.any()
        waiting -= set(batch.env_ids.tolist())
    envs.send(batch_of(space, actions := [space.sample() for _ in range(5)]), range(5))
    last = dict(enumerate(actions))
    while received < 60:
        batch = envs.recv(min_envs=2)
        ids = batch.env_ids.tolist()
        assert len(ids) >= 2
        assert_batch(envs.observation_space, batch, [hands[i].step(last[i]) for i in ids])
        received += len(ids)
        actions = [space.sample() for _ in ids]
        last.update(zip(ids, actions, strict=True))
        envs.send(batch_of(space, actions), ids)


@pytest.mark.everywhere
def test_a_reset_has_no_rewards_and_flags_of_an_earlier_step(make):
    envs = make([partial(EchoEnv, spaces.Discrete(9), length=2)] * 5)
    envs.async_reset()
    for _ in range(2):
        envs.recv(min_envs=5)
        envs.send([1] * 5, range(5))
    last = envs.recv(min_envs=5)
    assert last.terminated.all() or last.truncated.all()
    assert last.rewards.all()
    for sent in (False, True):
        if sent:  # its result is never received
            envs.send([1] * 5, range(5))
        envs.async_reset()
        batch = envs.recv(min_envs=5)
        assert not batch.rewards.any()
        assert not (batch.terminated | batch.truncated).any()


@pytest.mark.everywhere
def test_environments_may_be_sent_in_parts_and_in_any_order(make):
    envs = make([ReusingEnv] * 5)
    envs.async_reset()
    receive(envs, 5)
    envs.send([4, 0], [4, 0])
    envs.send([3, 2, 1], (3, 2, 1))
    seen = {env: batch.obs[i, 2] for env, (batch, i) in receive(envs, 5).items()}
    assert seen == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4}
    envs.send(np.array([14, 10]), np.array([4, 0], np.uint8))
    envs.send(np.array([13, 12, 11]), np.array([3, 2, 1], np.int16))
    seen = {env: batch.obs[i, 2] for env, (batch, i) in receive(envs, 5).items()}
    assert seen == {0: 10, 1: 11, 2: 12, 3: 13, 4: 14}


@pytest.mark.everywhere
def test_what_was_received_stays_as_it_was(make):
    envs = make([ReusingEnv] * 5, copy=False)
    envs.async_reset()
    batches = []
    for step in range(8):
        batch = envs.recv(min_envs=5)
        batches.append((batch, [part.copy() for part in batch[:4]]))
        envs.send(np.full(5, step), batch.env_ids)
    for batch, copies in batches:
        for part, its_copy in zip(batch, copies, strict=False):
            assert part.flags.writeable
            assert part.tobytes() == its_copy.tobytes()


def test_an_action_changed_after_it_was_sent_is_received_as_it_was(make):
    """Environments of one worker step together, so actions wait for those of the others."""
    envs = make(
        [partial(EchoEnv, spaces.Box(-1, 1, (2,)), spaces.Sequence(spaces.Discrete(9)))] * 2
    )
    envs.reset()
    action = [1, 2]
    envs.send([action], [0])
    action.append(3)
    envs.send([action], [1])
    envs.recv(min_envs=2)
    assert envs.get_attr("received") == ([[1, 2]], [[1, 2, 3]])


@pytest.mark.everywhere
def test_it_may_follow_and_precede_the_other_way_of_stepping(make):
    envs = make([ReusingEnv] * 5)
    envs.reset()
    envs.send([7] * 5, range(5))
    assert envs.recv(min_envs=5).obs[:, 2].tolist() == [7] * 5
    assert envs.step([8] * 5)[0][:, 2].tolist() == [8] * 5
    assert envs.get_attr("steps_ever") == (2,) * 5


# -- what is refused -----------------------------------------------------------------

IN_FLIGHT = {
    "step": lambda envs: envs.step([0] * 5),
    "step_async": lambda envs: envs.step_async([0] * 5),
    "call": lambda envs: envs.call("render"),
    "get_attr": lambda envs: envs.get_attr("steps_ever"),
    "set_attr": lambda envs: envs.set_attr("steps_ever", 1),
    "render": lambda envs: envs.render(),
    "send": lambda envs: envs.send([0], [2]),
}


@pytest.mark.parametrize("ask", IN_FLIGHT.values(), ids=IN_FLIGHT)
def test_while_environments_are_in_flight_this_is_refused(make, ask):
    envs = make([ReusingEnv] * 5)
    envs.async_reset()
    with pytest.raises(AlreadySteppingError, match=r"environments? .*recv"):
        ask(envs)
    assert len(envs.recv(min_envs=5).env_ids) == 5


PENDING = {
    "async_reset": lambda envs: envs.async_reset(),
    "send": lambda envs: envs.send([0] * 5, range(5)),
    "recv": lambda envs: envs.recv(),
}


@pytest.mark.parametrize("ask", PENDING.values(), ids=PENDING)
def test_while_a_step_is_pending_this_is_refused(make, ask):
    envs = make([ReusingEnv] * 5)
    envs.reset()
    envs.step_async([5] * 5)
    with pytest.raises(AlreadySteppingError, match="a step_async is pending"):
        ask(envs)
    assert envs.step_wait()[0][:, 2].tolist() == [5] * 5


@pytest.mark.parametrize(
    "ask",
    [*PENDING.values(), lambda envs: envs.statistics()],
    ids=[*PENDING, "statistics"],
)
def test_once_closed_all_is_refused(make, ask):
    envs = make([ReusingEnv] * 5)
    envs.close()
    with pytest.raises(ClosedVecEnvError):
        ask(envs)


@pytest.mark.everywhere
def test_once_closed_with_environments_under_way_the_rest_is_refused_as_closed_too(make):
    envs = make([ReusingEnv] * 5)
    envs.async_reset()
    envs.close()
    assert envs.closed
    for ask in (
        lambda: envs.step_async([5] * 5),
        lambda: envs.call("reset"),
        lambda: envs.get_attr("lengths"),
        lambda: envs.set_attr("lengths", 1),
        lambda: envs.render(),
    ):
        with pytest.raises(ClosedVecEnvError):
            ask()


def test_nothing_can_be_received_where_nothing_was_sent(make):
    envs = make([ReusingEnv] * 5)
    envs.reset()
    with pytest.raises(NotSteppingError, match="no environment is stepping"):
        envs.recv()
    envs.send([0] * 5, range(5))
    assert len(envs.recv(min_envs=5).env_ids) == 5
    with pytest.raises(NotSteppingError):
        envs.recv(timeout=0.1)


@pytest.mark.everywhere
def test_what_waits_for_its_neighbours_is_not_waited_for(make):
    envs = make([ReusingEnv] * 5)
    envs.reset()
    envs.send([1], [0])
    told = "environment 0 cannot step before the other environments"
    with pytest.raises(NotSteppingError, match=told):
        envs.recv()
    with pytest.raises(AlreadySteppingError, match=told):
        envs.send([1], [0])
    envs.send([1] * 4, [1, 2, 3, 4])
    with pytest.raises(ValueError, match=r"min_envs: expected 1 to 5, .*got 6"):
        envs.recv(min_envs=6)
    with pytest.raises(ValueError, match=r"min_envs: expected an int of at least 1, got 0"):
        envs.recv(min_envs=0)
    for timeout in ("1", [1]):
        with pytest.raises(ValueError, match=r"timeout: expected a number, got"):
            envs.recv(timeout=timeout)
    assert len(envs.recv(min_envs=5).env_ids) == 5


BAD_SENDS = {
    "too few actions": (([0], [1, 2]), "actions for 2 environments"),
    "no such environment": (([0], [5]), "expected indices from 0 to 4, got 5"),
    "twice": (([0, 0], [1, 1]), "at most once"),
    "wrong shape": ((np.zeros((2, 3), int), [0, 1]), "actions for 2 environments"),
    "not ids": (([0], 1), "expected a sequence of ints"),
    "no such environment in an array": ((np.zeros(1, int), np.array([5])), "from 0 to 4, got 5"),
    "below the first": ((np.zeros(1, int), np.array([-1])), "from 0 to 4, got -1"),
    "far beyond": ((np.zeros(1, int), np.array([2**64 - 2], np.uint64)), "from 0 to 4, got 18446"),
    "twice in an array": ((np.zeros(2, int), np.array([1, 1])), "at most once"),
    "a mask": ((np.zeros(1, int), np.array([True])), "expected a sequence of ints"),
    "two axes": ((np.zeros(1, int), np.array([[1]])), "expected a sequence of ints"),
}


def test_sending_nothing_changes_nothing(make):
    envs = make([ReusingEnv] * 5)
    envs.reset()
    envs.send([], [])
    assert envs.step([0] * 5)[4][0]["step"] == 1


@pytest.mark.parametrize(("arguments", "message"), BAD_SENDS.values(), ids=BAD_SENDS)
def test_what_does_not_fit_is_not_sent(make, arguments, message):
    envs = make([ReusingEnv] * 5)
    envs.reset()
    with pytest.raises(ValueError, match=message):
        envs.send(*arguments)
    envs.send([1] * 5, range(5))
    assert envs.recv(min_envs=5).obs[:, 2].tolist() == [1] * 5


def test_actions_outside_their_space_are_refused_where_that_is_asked_for(make):
    envs = make([ReusingEnv] * 5, check_actions=True)
    envs.reset()
    with pytest.raises(ValueError, match="the action for environment 3: expected one in Discrete"):
        envs.send([1, 100], [1, 3])
    envs.send([1] * 5, range(5))
    assert len(envs.recv(min_envs=5).env_ids) == 5


# -- who waits for whom --------------------------------------------------------------


def test_one_slow_environment_delays_no_other():
    with workers_of([WaitingEnv] * 3, 1) as envs:
        envs.async_reset()
        envs.recv(min_envs=3)
        envs.send([30_000, 0, 0], range(3))
        for _ in range(50):
            batch = envs.recv()
            assert 0 not in batch.env_ids
            envs.send([0] * len(batch.env_ids), batch.env_ids)
        with contextlib.suppress(WorkerTimeoutError):
            while True:
                envs.recv(timeout=1.0)
        start = time.monotonic()
        with pytest.raises(WorkerTimeoutError, match=r"no reply from environment 0 within 0\.2"):
            envs.recv(timeout=0.2)
        assert time.monotonic() - start < 10
        os.kill(envs.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="environment 0"):
            envs.recv()
        assert envs.closed


def test_what_the_caller_steps_gets_its_turn_where_others_are_always_ready():
    with SubprocVecEnv([WaitingEnv] * 3, in_series=1, caller_steps=True) as envs:
        envs.reset()
        envs.send(np.zeros(3, np.int64), range(3))
        received = np.zeros(3, int)
        while received.sum() < 60:
            batch = envs.recv(min_envs=1)
            received[batch.env_ids] += 1
            time.sleep(0.005)  # the caller thinks, while its workers are done
            envs.send(np.zeros(len(batch.env_ids), np.int64), batch.env_ids)
    assert received[2] >= 10  # the others may have to wait for a CPU


def test_a_slow_reset_delays_only_its_own_group():
    with workers_of([WaitingEnv] * 2, 1) as envs:
        envs.async_reset(options={"wait": 0.5})
        assert len(envs.recv(min_envs=2).env_ids) == 2


def test_a_timeout_returns_what_is_there():
    with workers_of([WaitingEnv] * 4, 1) as envs:
        envs.reset()
        envs.send([0, 60_000, 0, 60_000], range(4))
        assert envs.recv(min_envs=4, timeout=2.0).env_ids.tolist() == [0, 2]
        kill(envs)


@pytest.mark.parametrize("limit", [1e8, np.inf])
def test_a_limit_may_be_longer_than_the_system_can_wait(limit):
    with workers_of([WaitingEnv] * 2, 1, step_timeout=limit) as envs:
        envs.async_reset()
        for timeout in (None, limit):
            assert len(envs.recv(min_envs=2, timeout=timeout).env_ids) == 2
            envs.send([100, 100], range(2))
        assert len(envs.recv(min_envs=2, timeout=limit).env_ids) == 2


def test_a_timeout_that_is_no_number_waits_for_nothing():
    with workers_of([WaitingEnv], 1) as envs:
        envs.reset()
        envs.send([1000], [0])
        with pytest.raises(WorkerTimeoutError, match="nan"):
            envs.recv(timeout=np.nan)


def test_the_time_limit_of_a_step_holds_here_too():
    with workers_of([WaitingEnv] * 2, 1, step_timeout=1.0) as envs:
        envs.reset()
        envs.send([0, 60_000], range(2))
        assert envs.recv().env_ids.tolist() == [0]
        with pytest.raises(WorkerTimeoutError, match=r"environment 1 .*'step' within 1 s"):
            envs.recv()


def test_a_restart_delays_no_other():
    options = {"on_worker_failure": "restart", "step_timeout": 60}
    with workers_of([WaitingEnv] * 3, 1, **options) as envs:
        envs.async_reset(seed=0)
        envs.recv(min_envs=3)
        envs.send([60_000, 0, 0], range(3))
        seen = {1: 0, 2: 0}
        os.kill(envs.pids[0], signal.SIGKILL)
        batch = envs.recv()
        while 0 not in batch.env_ids:
            for i in batch.env_ids.tolist():
                seen[i] += 1
            envs.send([0] * len(batch.env_ids), batch.env_ids)
            batch = envs.recv()
        place = batch.env_ids.tolist().index(0)
        assert batch.truncated[place]
        assert batch.infos[place]["worker_restarted"] is True
        assert batch.infos[place]["reset_obs"].tolist() == [0.0]
        with contextlib.suppress(NotSteppingError):
            while True:
                envs.recv()
        assert min(seen.values()) >= 1
        assert envs.get_attr("steps", env_ids=[0]) == (0,)


# -- how it ends ---------------------------------------------------------------------


@pytest.mark.everywhere("auto-reset")
@pytest.mark.parametrize("command", ["reset", "step", "auto-reset"])
def test_an_exception_closes_it(make, command):
    env_fns = [ReusingEnv] * 3 + [partial(FailingEnv, command), ReusingEnv]
    envs = make(env_fns)
    envs.async_reset()

    def step_for_ever():
        while True:
            batch = envs.recv()
            envs.send([0] * len(batch.env_ids), batch.env_ids)

    with pytest.raises(EnvError, match="environment 3 failed") as caught:
        step_for_ever()
    assert isinstance(caught.value.__cause__, ValueError)
    assert envs.closed


@pytest.mark.everywhere("partial")
@pytest.mark.parametrize("again", ["reset", "async_reset", "partial"])
def test_a_reset_throws_away_what_is_in_flight(make, again):
    envs = make([ReusingEnv] * 5)
    envs.async_reset()
    envs.recv(min_envs=5)
    envs.send([1] * 5, range(5))
    if again == "async_reset":
        envs.async_reset()
        obs = envs.recv(min_envs=5).obs
    else:
        obs, _ = envs.reset(env_ids=None if again == "reset" else [0, 1, 2, 3, 4])
    assert obs.tolist() == [[2, 0, -1]] * 5
    assert envs.step([0] * 5)[4][0]["step"] == 1


def test_an_interrupted_reset_loses_no_column_of_infos():
    """The discarded step is the first one whose infos have numbers."""
    number, came = 0, True
    while came:
        with DummyVecEnv([WaitingEnv] * 2) as envs:
            envs.reset()
            envs.send([0, 0], [0, 1])
            with Instant(number, [ledger.__file__]) as instant:
                envs.reset()
            envs.reset()
            assert "steps" in envs.step([0, 0])[4][1], instant.place
        came, number = instant.came, number + 1
    assert number > 10


def test_no_interrupt_loses_or_repeats_a_step():
    """Interrupts at random moments of recv; each environment steps as often as it was sent."""
    generator = np.random.default_rng(0)
    with workers_of([WaitingEnv] * 4, 2) as envs, alarms_interrupt():
        envs.reset()
        sent = np.zeros(4, int)
        interrupts = 0
        while interrupts < 50:
            for pair in ([0, 1], [2, 3]):
                with contextlib.suppress(AlreadySteppingError):
                    envs.send([1, 1], pair)
                    sent[pair] += 1
            try:
                signal.setitimer(signal.ITIMER_REAL, generator.uniform(20e-6, 5e-3))
                envs.recv()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
                interrupts += 1
            assert not envs.closed
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(0.01)  # the last one may take a moment
        with contextlib.suppress(NotSteppingError):
            while True:
                envs.recv()
        assert envs.get_attr("steps") == tuple(sent.tolist())


# -- statistics ----------------------------------------------------------------------


@pytest.mark.everywhere
def test_statistics_say_how_long_steps_take(make):
    envs = make([WaitingEnv] * 5)
    assert [s.steps for s in envs.statistics()] == [0] * len(envs.statistics())
    assert all(np.isnan(s.p50) and s.slowest_env is None for s in envs.statistics())
    envs.reset()
    for step in range(65):
        is_timed = step % 64 == 0  # environment by environment, with longer waits than stalls are
        envs.step([0, 0, 0, 500 if is_timed else 4, 0])
    statistics = envs.statistics()
    assert [i for s in statistics for i in s.env_ids] == list(range(5))
    (slow,) = [s for s in statistics if 3 in s.env_ids]
    assert slow.slowest_env == 3
    assert 0.5 <= slow.slowest_time < 5
    for each in statistics:
        assert each.steps == 65
        assert 0 <= each.p50 <= each.p99 < 60
        assert 0 < each.busy_fraction <= 1
    assert slow.p50 >= 0.004


def test_statistics_can_be_asked_for_at_any_time():
    with workers_of([WaitingEnv] * 2, 1) as envs:
        envs.reset()
        envs.step([1, 0])
        envs.step_async([30_000, 0])
        assert envs.statistics()[0].steps == 1
        kill(envs)
