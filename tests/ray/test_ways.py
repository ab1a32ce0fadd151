"""How requests get to machines: by connections, by Ray's calls, and from the one to the other."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from concurrent import futures
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from comparing import assert_same
from fake_cluster import pretended_machines
from interrupts import Instant
from leftovers import wait_until
from masked_envs import MaskedEnv
from ray_actors import counted_messages
from stateful_envs import Heavy

import xuance_envs
from xuance_envs import DummyVecEnv, RayVecEnv_Gym, WorkerDiedError, WorkerTimeoutError
from xuance_envs.engine.ray import actor as actor_module
from xuance_envs.engine.ray import actor_client
from xuance_envs.engine.ray.authenticated_connection import Listener
from xuance_envs.engine.ray.cluster import ActorLostError, RayCluster

PACKAGE = Path(xuance_envs.__file__).parent
N = 7


@pytest.fixture(autouse=True)
def machines() -> Iterator[None]:
    """Two machines with room for two workers each."""
    with pretended_machines(here=2, there=2):
        yield


def on_machines(kind: Any, **options: Any) -> RayVecEnv_Gym:
    return RayVecEnv_Gym([partial(kind, k) for k in range(N)], 2, actors="machine", **options)


def actors_of(envs: Any) -> list[Any]:
    return list(envs._groups.backend.actors)


def connect_authenticated(envs: Any) -> list[bool]:
    return [actor.connection is not None for actor in actors_of(envs)]


def cut(envs: Any, which: int = 0) -> None:
    """Breaks a connection, and leaves the actor as it is."""
    actors_of(envs)[which].connection._socket.shutdown(socket.SHUT_RDWR)


def step(envs: Any, t: int) -> Any:
    *results, infos = envs.step([t % 2] * N)
    return *results, list(infos)


def received(envs: Any, count: int) -> dict[int, Any]:
    """What each environment saw in so many steps that were received first ready."""
    seen: dict[int, Any] = {env: [] for env in range(N)}
    envs.async_reset()
    while min(map(len, seen.values())) < count:
        batch = envs.recv()
        for env, obs in zip(batch.env_ids.tolist(), batch.obs, strict=True):
            seen[env].append(obs.copy())
        envs.send([1] * len(batch.env_ids), batch.env_ids)
    envs.recv(min_envs=int(envs._groups.ledger.in_flight.envs.sum()))
    return {env: each[:count] for env, each in seen.items()}


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch) -> list[Listener]:
    """Where actors have listened."""
    found: list[Listener] = []

    def listener(host: str) -> Listener:
        found.append(Listener(host))
        return found[-1]

    monkeypatch.setattr(actor_module, "Listener", listener)
    return found


def is_shut(listener: Listener) -> bool:
    with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection(listener.address, 5.0).close()
        return False
    return True


def test_machines_are_connected_to_and_nothing_listens_any_more(doors: list[Listener]) -> None:
    with on_machines(MaskedEnv) as envs, counted_messages() as counted:
        assert connect_authenticated(envs) == [True, True]
        assert all(map(is_shut, doors))
        sockets = [actor.connection._socket for actor in actors_of(envs)]
        assert all(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in sockets)
        envs.reset()
        envs.step([0] * N)
        assert len(counted.requests) == len(counted.replies) == 2 * 2
    assert len(doors) == 2
    assert all(each.fileno() == -1 for each in sockets)


@pytest.mark.parametrize("steps", [step, lambda envs, t: received(envs, 3)], ids=["step", "recv"])
def test_a_connection_that_breaks_loses_nothing(
    steps: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with on_machines(MaskedEnv) as envs, on_machines(MaskedEnv) as whole:
        envs.reset(seed=1), whole.reset(seed=1)
        assert_same(steps(envs, 0), steps(whole, 0))
        cut(envs)
        t, deadline = 0, time.monotonic() + 60
        while t < 3 or (not caplog.records and time.monotonic() < deadline):
            t += 1
            assert_same(steps(envs, t), steps(whole, t))
        assert connect_authenticated(envs) == [False, True]
        assert "no connection to the actor on node" in caplog.text
        assert len(caplog.records) == 1


def test_one_that_cannot_be_reached_is_asked_by_rays_calls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, doors: list[Listener]
) -> None:
    reach = actor_client.connect_authenticated
    tried: list[int] = []

    def reaching(address: Any, *given: Any) -> Any:
        tried.append(1)
        if len(tried) == 2:
            raise OSError("a wall")
        return reach(address, *given)

    monkeypatch.setattr(actor_client, "connect_authenticated", reaching)
    with (
        on_machines(MaskedEnv) as envs,
        DummyVecEnv([partial(MaskedEnv, k) for k in range(N)]) as h,
    ):
        assert connect_authenticated(envs) == [True, False]
        assert "OSError: a wall; using Ray calls for 1 of 2 actors" in caplog.text
        envs.reset(seed=1), h.reset(seed=1)
        for t in range(4):
            assert_same(step(envs, t), step(h, t))
        assert_same(received(envs, 3), received(envs, 3))
        assert len(tried) == 2
        assert len(doors) == 2
        assert wait_until(lambda: all(map(is_shut, doors)))


def test_what_is_lent_goes_by_rays_calls_and_then_there_is_a_connection_again() -> None:
    with on_machines(Heavy) as envs:
        envs.reset(seed=1)
        state = envs.save_state()
        expected = step(envs, 1)
        for _ in range(2):
            before = {actor.connection for actor in actors_of(envs)}
            envs.load_state(state)
            assert_same(step(envs, 1), expected)
            assert all(connect_authenticated(envs))
            assert not before & {actor.connection for actor in actors_of(envs)}


# A socket that nobody has been given yet is closed by being collected, of which Python warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_while_it_is_connected_to_again_loses_nothing() -> None:
    with on_machines(Heavy) as envs:
        envs.reset(seed=1)
        state = envs.save_state()
        expected = step(envs, 1)
        came, number = True, 0
        while came:
            with Instant(number, [str(PACKAGE / "engine" / "ray")]) as instant:
                envs.load_state(state)
            came, number = instant.came, number + 101
            envs.load_state(state)
            assert_same(step(envs, 1), expected, instant.place)
        assert number > 200


def test_an_interrupt_while_steps_are_received_loses_nothing() -> None:
    with (
        on_machines(MaskedEnv) as envs,
        DummyVecEnv([partial(MaskedEnv, k) for k in range(N)]) as h,
    ):
        envs.reset(seed=1), h.reset(seed=1)
        came, number = True, 0
        while came:
            envs.send([1] * N, range(N))
            batch = None
            with Instant(number, [str(PACKAGE / "engine" / "ray")]) as instant:
                batch = envs.recv(min_envs=N)
            came, number = instant.came, number + 3
            batch = envs.recv(min_envs=N) if batch is None else batch
            assert batch.env_ids.tolist() == list(range(N))
            assert_same(batch.obs, h.step([1] * N)[0], instant.place)
        assert number > 100


class Dying(MaskedEnv):
    """Ends its process, or takes for ever, when it is told to."""

    def step(self, action: Any) -> Any:
        if action == 5:
            os._exit(3)
        if action == 6:
            time.sleep(60)
        return super().step(action)


@pytest.mark.parametrize(
    ("action", "error", "direct_connection_obstacle"),
    [(5, WorkerDiedError, None), (6, WorkerTimeoutError, None), (5, WorkerDiedError, "as told")],
)
def test_a_worker_that_is_lost_is_named(
    action: int, error: Any, direct_connection_obstacle: str | None
) -> None:
    with pretended_machines(direct_connection_obstacle, here=2, there=2):
        envs = on_machines(Dying, step_timeout=1.5)
        envs.reset()
        with pytest.raises(error) as caught:
            envs.step([0, 0, 0, 0, action, 0, 0])
        assert caught.value.env_indices == (4, 5)
        assert envs.closed


def test_a_worker_that_was_idle_when_its_actor_was_lost_moves_to_the_new_one_later() -> None:
    with on_machines(MaskedEnv, on_worker_failure="restart") as envs:
        envs.async_reset()
        envs.recv(min_envs=N)
        actors_of(envs)[0].mark_lost("as told")
        for ids in ([0, 1], [2, 3]):
            envs.send([0, 0], ids)
            batch = envs.recv(min_envs=2)
            assert batch.env_ids.tolist() == ids
            assert all(info["worker_restarted"] for info in batch.infos)
        assert not actors_of(envs)[0].lost


@pytest.mark.parametrize("first_ready", [False, True])
def test_a_silent_machine_is_noticed_by_what_ray_says(
    first_ready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stays as it is, as when a network is gone; and others go on answering."""
    mark_lost = actor_client.ActorClient.mark_lost
    with contextlib.ExitStack() as stack:
        envs = stack.enter_context(on_machines(MaskedEnv, on_worker_failure="restart"))
        envs.reset()
        actor = actors_of(envs)[1]
        lost = actor.connection
        with futures.ThreadPoolExecutor() as killed:
            actor._handle.answer = SimpleNamespace(of=killed, does=None)
        silent, _ = map(stack.enter_context, socket.socketpair())
        silent.setblocking(False)
        before = stack.enter_context(lost._socket)
        lost._socket, lost.fd = silent, silent.fileno()
        lost._poll = lambda milliseconds: time.sleep(min(milliseconds, 50) / 1e3)
        lost.serve_ref = futures.Future()
        lost.serve_ref.set_exception(ActorLostError("as told"))

        def losing(actor: Any, told: str) -> None:
            assert told == "it was killed"
            before.close()  # which a killed actor would not wait for
            mark_lost(actor, told)

        monkeypatch.setattr(actor_client.ActorClient, "mark_lost", losing)
        if first_ready:
            restarted: set[int] = set()
            envs.send([0] * N, range(N))
            while len(restarted) < 3:
                batch = envs.recv()
                infos = zip(batch.env_ids.tolist(), batch.infos, strict=True)
                restarted |= {env for env, info in infos if info.get("worker_restarted")}
                envs.send([0] * len(batch.env_ids), batch.env_ids)
            envs.recv(min_envs=N)
        else:
            infos = envs.step([0] * N)[4]
            restarted = {env for env in range(N) if infos[env].get("worker_restarted")}
        assert restarted == {4, 5, 6}


@pytest.mark.parametrize(
    ("variables", "client", "told"),
    [
        ({}, False, None),
        ({"RAY_USE_TLS": "0"}, False, None),
        ({"RAY_USE_TLS": "1"}, False, "RAY_USE_TLS"),
        ({"RAY_USE_TLS": "True"}, False, "RAY_USE_TLS"),
        ({}, True, "ray://"),
    ],
)
def test_a_proxy_and_encryption_leave_it_to_ray(
    variables: dict[str, str], client: bool, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ray.util.client.ray, "is_connected", lambda: client)
    cluster = RayCluster.__new__(RayCluster)
    cluster._ray = ray
    direct_connection_obstacle = cluster.direct_connection_obstacle
    assert (
        direct_connection_obstacle is None
        if told is None
        else told in str(direct_connection_obstacle)
    )
