"""The ledger: interrupted submissions, and errors after which environments cannot be used."""

from __future__ import annotations

import pytest

from xuance_envs.engine.group.outcome import OK
from xuance_envs.engine.ledger import Ledger, state_unknown_after
from xuance_envs.errors import EnvError, StateError, StateMismatchError, WorkerDiedError


class CountingDriver:
    """Driver of one environment that records the steps it receives."""

    runs_in_result = False

    def __init__(self, lo):
        self.lo, self.hi = lo, lo + 1
        self.tag = 0
        self.actions = []
        self.interrupted = False

    def submit_step(self, tag, actions):
        if self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt
        self.tag = tag
        self.actions.append(actions)

    def result(self):
        return OK


class NoInfos:
    def infos(self, outcomes):
        return list(outcomes)


@pytest.mark.parametrize("actions", [{}, {0: "a", 1: "b", 2: "c"}], ids=["in arrays", "objects"])
def test_an_interrupted_submission_is_finished_once_in_any_step(actions):
    drivers = [CountingDriver(lo) for lo in range(3)]
    ledger = Ledger(drivers, NoInfos())
    for step in range(1, 4):
        drivers[1].interrupted = True
        with pytest.raises(KeyboardInterrupt):
            ledger.start_step(actions)
        assert ledger.stepping
        assert ledger.finish_step(pytest.fail) == []
        assert ledger.stepping
        ledger.settle()
        assert not ledger.stepping
        assert [driver.actions for driver in drivers] == [[actions.get(k)] * step for k in range(3)]


def died(restarted):
    error = WorkerDiedError([0], None, 1, "step")
    error.restarted = restarted
    return error


@pytest.mark.parametrize(
    ("error", "unknown"),
    [
        (died(restarted=False), True),
        (died(restarted=True), False),
        (EnvError(0, "load_state", "failed"), True),
        (StateError(0, "load_state", "failed"), False),
        (StateMismatchError(0, "save_state", "failed"), False),
        (ValueError(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_states_are_unknown_after_lost_workers_and_failures_of_environments(error, unknown):
    assert state_unknown_after(error) is unknown
