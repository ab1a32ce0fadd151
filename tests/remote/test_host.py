"""Environments that one request created, and their process."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import time
from collections.abc import Callable
from typing import Any

import pytest
from remote_envs import CountingEnv, MischievousEnv
from serving import SETTINGS, assert_nothing_is_left, wait_until

from xuance_envs.errors import ClosedVecEnvError, EnvError
from xuance_envs.remote.server.hosting.env_host import EnvHost
from xuance_envs.remote.server.hosting.hosted_vec_env import HostedVecEnv
from xuance_envs.remote.server.hosting.session_process import SessionProcess
from xuance_envs.remote.server.http.messages import CreateEpisodes
from xuance_envs.remote.server.limits import Quota
from xuance_envs.remote.server.monitoring import Metrics
from xuance_envs.remote.settings import Catalogue, Limits, Settings
from xuance_envs.remote.wire.failures import RefusedError
from xuance_envs.remote.wire.formats import WireFormat


class SlowEnv(CountingEnv):
    """Environment that is slow to create."""

    def __init__(self) -> None:
        time.sleep(0.5)
        super().__init__()


def new_host(env_fn: Callable[[], Any], settings: Settings = SETTINGS) -> tuple[EnvHost, Quota]:
    quota = Quota("in this test")
    process = SessionProcess(60.0, quota, asyncio.Semaphore(1))
    message = CreateEpisodes(session_id="", auto_reset=True)
    return EnvHost(message, [env_fn], settings, Metrics(), process), quota


def test_a_host_that_nobody_waits_for_any_more_is_ended_once_it_is_there() -> None:
    settings = Settings(Catalogue({"Slow": SlowEnv}))

    async def give_up() -> None:
        host, _ = new_host(SlowEnv, settings)
        creating = asyncio.create_task(host.make())
        while not multiprocessing.active_children():
            await asyncio.sleep(0.01)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        assert multiprocessing.active_children(), "it was not under way"

    asyncio.run(give_up())
    wait_until(lambda: not multiprocessing.active_children())
    assert_nothing_is_left()


@pytest.mark.parametrize("cancelled", ["host", "request"])
def test_a_host_that_is_made_when_it_is_cancelled_leaves_nothing(cancelled: str) -> None:
    async def cancel() -> None:
        host, quota = new_host(CountingEnv)
        creating = asyncio.create_task(host.make())
        await asyncio.sleep(0)
        while not host.make_done:  # and the event loop does not know yet
            time.sleep(0.01)
        if cancelled == "host":
            await host.cancel()
            await creating
            assert quota._used["environments"] == 1
            await host.close()
        else:
            creating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await creating
        assert not quota._used.total()

    asyncio.run(cancel())
    wait_until(lambda: not multiprocessing.active_children())
    assert_nothing_is_left()


def test_a_saved_state_that_exceeds_a_limit_by_then_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def save() -> None:
        host, quota = new_host(CountingEnv)
        quota.limit(Limits(states=1))
        await host.make()
        await host.run(lambda vec_env: vec_env.reset()[0], WireFormat.MSGPACK)
        dropped: list[int] = []
        monkeypatch.setattr(host._vec_env, "drop_stored", dropped.extend)
        saving = asyncio.create_task(host.save_states([0], itertools.count(7), WireFormat.MSGPACK))
        await asyncio.sleep(0)
        quota.add(states=1)  # another request saves a state meanwhile
        with pytest.raises(RefusedError, match="environment states in this test to 1"):
            await saving
        assert dropped == [7]
        quota.add(states=-1)
        await host.close()
        assert not quota._used.total()

    asyncio.run(save())
    assert_nothing_is_left()


def test_an_id_is_not_taken_for_a_list_of_ids() -> None:
    for ids in ({"ids": "CartPole-v1"}, {"ids": [], "multi_agent": "mpe2:simple_spread_v3"}):
        with pytest.raises(TypeError, match=r"expected a list of ids, got '(CartPole|mpe2)"):
            Catalogue.of_ids(**ids)


def test_a_catalogue_keeps_its_own_permissions() -> None:
    allowed = {"speed": (1, 2)}
    catalogue = Catalogue({"Slow": SlowEnv}, allowed)
    allowed["secret"] = (3,)
    with pytest.raises(RefusedError, match="secret"):
        catalogue.functions("Slow", 1, {"secret": 3})


def test_an_error_closes_the_environments_and_leaves_the_worker_to_be_ended() -> None:
    envs = HostedVecEnv([MischievousEnv] * 2, None, SETTINGS)
    envs.reset()
    with pytest.raises(EnvError):
        envs.step([0, 1])
    assert envs.closed
    with pytest.raises(ClosedVecEnvError):
        envs.reset()
    (driver,) = envs.backend.workers
    assert driver.worker.pid in {child.pid for child in multiprocessing.active_children()}
    envs.end_workers()
    assert envs.backend.workers == []
    envs.end_workers()
    assert_nothing_is_left()
