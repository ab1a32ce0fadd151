"""Step slots, when there are more sessions than CPUs."""

from __future__ import annotations

import time
from asyncio import Semaphore
from typing import Any

import pytest
from serving import Asking, ServerMaker

from xuance_envs.remote.server.hosting import sessions


def test_a_session_that_waits_keeps_nobody_from_stepping(
    background: Any, serve: ServerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "Semaphore", lambda _: Semaphore(1))
    server = serve(request=1.5)
    waiting, other = Asking(server), Asking(server)
    for ask in (waiting, other):
        ask.begin("Mischievous", auto_reset=True)
    hanging = background(waiting.ask, "vectorized_step", actions=[4])
    served = 0
    while not hanging.done():
        assert other.ask("vectorized_step", actions=[0]).status_code == 200
        served += 1
        time.sleep(0.02)
    assert hanging.result().status_code == 409, "it hung, and was given up"
    assert served > 5


def test_a_step_that_is_refused_lets_the_next_one_through(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "Semaphore", lambda _: Semaphore(1))
    ask = Asking(serve())
    ask.client.timeout = 10
    ask.begin("Counting", auto_reset=True)
    for _ in range(2):
        assert ask.ask("vectorized_step", actions=[99]).status_code == 422
        assert ask.ask("vectorized_step", actions=[0]).status_code == 200
