"""Step slots, when there are more sessions than CPUs."""

from __future__ import annotations

import asyncio
import threading

import pytest
from serving import Asking, ServerMaker

from xuance_envs.remote.server.hosting import sessions
from xuance_envs.remote.server.limits.waiting import FifoSemaphore


def test_so_many_are_inside_and_the_others_follow_in_their_order() -> None:
    inside: list[int] = []
    order: list[int] = []

    async def go(fifo_semaphore: FifoSemaphore, number: int) -> None:
        await fifo_semaphore.acquire()
        inside.append(number)
        order.append(number)
        assert len(inside) <= 2
        await asyncio.sleep(0.001)
        inside.remove(number)
        fifo_semaphore.release()

    async def all_of_them() -> None:
        fifo_semaphore = FifoSemaphore(2)
        tasks = [asyncio.create_task(go(fifo_semaphore, number)) for number in range(10)]
        await asyncio.sleep(0)
        for impatient in (tasks[3], tasks[7]):
            impatient.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [fifo_semaphore.try_acquire() for _ in range(3)] == [True, True, False]

    asyncio.run(all_of_them())
    assert order == [0, 1, 2, 4, 5, 6, 8, 9]


def test_a_session_that_waits_keeps_nobody_from_stepping(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "FifoSemaphore", lambda _: FifoSemaphore(1))
    server = serve(request=1.5)
    waiting, other = Asking(server), Asking(server)
    for ask in (waiting, other):
        ask.ask("create", env_id="Mischievous", auto_reset=True)
        ask.ask("vectorized_reset")
    statuses: list[int] = []

    def wait() -> None:
        statuses.append(waiting.ask("vectorized_step", actions=[4]).status_code)

    thread = threading.Thread(target=wait)
    thread.start()
    served = 0
    while not statuses:
        assert other.ask("vectorized_step", actions=[0]).status_code == 200
        served += 1
    thread.join()
    assert statuses == [409], "it hung, and was given up"
    assert served > 5


def test_a_step_that_is_refused_lets_the_next_one_through(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "FifoSemaphore", lambda _: FifoSemaphore(1))
    ask = Asking(serve())
    ask.client.timeout = 10
    ask.ask("create", env_id="Counting", auto_reset=True)
    ask.ask("vectorized_reset")
    for _ in range(2):
        assert ask.ask("vectorized_step", actions=[99]).status_code == 422
        assert ask.ask("vectorized_step", actions=[0]).status_code == 200
