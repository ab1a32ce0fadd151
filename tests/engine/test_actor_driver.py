"""The time limit of an actor's reply, without a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from xuance_envs.engine.group.outcome import OK
from xuance_envs.engine.group.protocol import ReplyType
from xuance_envs.engine.ray.driver import ActorDriver
from xuance_envs.engine.ray.hosting import NO_TIMING, ActorPlan
from xuance_envs.engine.ray.messages import GroupReply
from xuance_envs.engine.system import deadline
from xuance_envs.errors import WorkerTimeoutError

LIMIT = 0.2
DONE = GroupReply(ReplyType.VALUE, (), NO_TIMING, b"")  # type: ignore[arg-type]  # not an outcome


def driver_of(wait: Callable[[Any, float], None], connection: Any = None) -> ActorDriver:
    """A driver whose waits for the actor are calls of a function with the actor."""
    actor: Any = SimpleNamespace(plan=ActorPlan(((0, 2),), timeout=LIMIT), lost=None, pid=None)
    actor.connection, actor.place, actor.where, actor.answer = (
        connection,
        (1, "node"),
        "a node",
        None,
    )
    actor.reply = lambda group: actor.answer
    actor.has_answered = lambda group: actor.answer is not None
    actor.mark_lost = lambda report: None
    exchange: Any = SimpleNamespace(
        submit=lambda *_: None, receive=lambda _, seconds: wait(actor, seconds)
    )
    driver = ActorDriver(actor, 0, exchange, str)  # type: ignore[arg-type]
    driver.unpack = lambda *_: OK  # type: ignore[method-assign]
    driver.submit_step(1, None)
    return driver


def test_an_actor_that_does_not_reply_in_time_is_lost() -> None:
    driver = driver_of(lambda actor, seconds: time.sleep(seconds))
    with pytest.raises(WorkerTimeoutError, match=f"{LIMIT:g} s"):
        driver.result()


def test_time_in_which_this_process_was_suspended_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deadline, "SUSPENSION_THRESHOLD", 0.05)
    waits = []

    def wait(actor: Any, seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            time.sleep(LIMIT + deadline.CHECK_INTERVAL + 0.1)
        else:
            actor.answer = DONE

    assert driver_of(wait).result() is OK
    assert len(waits) == 2


def test_an_actor_whose_long_reply_is_arriving_is_waited_for() -> None:
    connection = SimpleNamespace(num_unread=0)

    def wait(actor: Any, seconds: float) -> None:
        time.sleep(seconds)
        connection.num_unread += 1
        if connection.num_unread == 4:
            actor.answer = DONE

    assert driver_of(wait, connection).result() is OK
