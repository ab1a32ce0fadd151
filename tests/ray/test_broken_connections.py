"""Connections that break on either side, in each way and at each instant of a step."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same
from fake_cluster import PretendedActor, pretended_machines
from gymnasium import spaces
from interrupts import Instant
from relay import INSTANTS, Relay, relayed

from xuance_envs import DummyVecEnv, RayVecEnv_Gym
from xuance_envs.engine.ray import (
    actor,
    actor_client,
    connection,
    driver,
    exchange,
)
from xuance_envs.engine.ray.authenticated_connection import Listener

N = 5
WAYS = {
    "FIN": lambda relay, side, _: relay.fin(side),
    "RST": lambda relay, side, _: relay.rst(side),
    "half closed": lambda relay, side, _: relay.half_close(side),
    "SHUT_RD": lambda _, side, ends: ends[side].shutdown(socket.SHUT_RD),
    "SHUT_WR": lambda _, side, ends: ends[side].shutdown(socket.SHUT_WR),
}


class Counting(gymnasium.Env[Any, Any]):
    """Observes how often it has been stepped, and with what; a step takes a while."""

    action_space = spaces.Discrete(9)

    def __init__(self, number: int, size: int = 2, seconds: float = 0.003) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.seen = np.full(size, float(number))
        self.seconds = seconds
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.seen.copy(), {}

    def step(self, action: int) -> Any:
        time.sleep(self.seconds)
        self.count += 1
        self.seen = 3.0 * self.seen % 1009.0 + action
        return self.seen.copy(), float(self.count), self.count % 4 == 0, False, {"at": self.count}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has everything that is looked at from time to time looked at often."""
    monkeypatch.setattr(connection, "END_POLL_INTERVAL", 0.02)
    monkeypatch.setattr(exchange, "POLL_INTERVAL", 0.02)
    monkeypatch.setattr(driver, "CHECK_INTERVAL", 0.02)


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """The actors' ends of connections."""
    found: list[socket.socket] = []

    class Noting(Listener):
        def accept(self, seconds: float) -> socket.socket:
            found.append(super().accept(seconds))
            return found[-1]

    monkeypatch.setattr(actor, "Listener", Noting)
    return found


def stepped(envs: Any, actions: list[int]) -> Any:
    *results, infos = envs.step(actions)
    return *results, list(infos)


def received(envs: Any, actions: list[int]) -> Any:
    envs.send(actions, range(len(actions)))
    batch = envs.recv(min_envs=len(actions))
    return batch.obs, batch.rewards, batch.terminated, batch.truncated, list(batch.infos)


def connections(envs: Any) -> list[Any]:
    return [actor.connection for actor in envs._groups.backend.actors]


def compare(
    functions: list[Any],
    actors: str,
    instant: str,
    way: str,
    side: str,
    accepted: list[socket.socket],
    step: Callable[..., Any] = stepped,
) -> None:
    """Breaks the first connection in the second of some steps, which are as without it."""
    with (
        pretended_machines(here=2, there=2),
        relayed() as relays,
        RayVecEnv_Gym(functions, 2, actors=actors) as envs,
        DummyVecEnv(functions) as whole,
    ):
        assert all(connections(envs))
        assert_same(envs.reset(seed=1)[0], whole.reset(seed=1)[0])
        for t in range(5):
            actions = [(t + k) % 9 for k in range(len(functions))]
            if t == 1:
                ends = {"main": connections(envs)[0]._socket, "actor": accepted[0]}
                relays[0].break_at(instant, partial(WAYS[way], relays[0], side, ends))
            assert_same(step(envs, actions), stepped(whole, actions), f"step {t}")
        assert relays[0].fired.is_set()
        deadline = time.monotonic() + 10  # the break may be noticed later than the last step
        while None not in connections(envs) and time.monotonic() < deadline:
            assert_same(step(envs, actions), stepped(whole, actions))
        broken = [k for k, each in enumerate(connections(envs)) if each is None]
        assert len(broken) == 1
        assert broken == [0] or side == "actor"  # actors may accept in any order
        assert not PretendedActor.ended


@pytest.mark.parametrize("instant", INSTANTS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("side", ["main", "actor"])
def test_no_step_is_lost_or_made_twice(
    side: str, way: str, instant: str, accepted: list[socket.socket]
) -> None:
    functions = [partial(Counting, k) for k in range(N)]
    compare(functions, "core", instant, way, side, accepted)


@pytest.mark.parametrize("instant", INSTANTS)
@pytest.mark.parametrize("side", ["main", "actor"])
def test_no_step_that_is_received_is_lost_or_made_twice(
    side: str, instant: str, accepted: list[socket.socket]
) -> None:
    functions = [partial(Counting, k) for k in range(N)]
    compare(functions, "core", instant, "RST", side, accepted, received)


@pytest.mark.parametrize("instant", INSTANTS)
def test_no_step_of_a_machine_is_lost_or_made_twice(
    instant: str, accepted: list[socket.socket]
) -> None:
    functions = [partial(Counting, k) for k in range(N)]
    compare(functions, "machine", instant, "RST", "main", accepted)


@pytest.mark.parametrize("actors", ["core", "machine"])
@pytest.mark.parametrize(("side", "way"), [("main", "RST"), ("actor", "half closed")])
def test_an_actor_does_not_wait_until_its_reply_is_read(
    side: str, way: str, actors: str, accepted: list[socket.socket]
) -> None:
    functions = [partial(Counting, k, size=1 << 19, seconds=0.0) for k in range(3)]
    compare(functions, actors, "reply half sent", way, side, accepted)


def test_an_interrupt_while_a_connection_is_given_up_loses_nothing() -> None:
    functions = [partial(Counting, k, seconds=0.0) for k in range(3)]
    with (
        pretended_machines(here=2, there=2),
        RayVecEnv_Gym(functions, 2, actors="core") as envs,
        DummyVecEnv(functions) as whole,
    ):
        envs.reset(seed=1), whole.reset(seed=1)
        came, number = True, 0
        while came:
            for actor in envs._groups.backend.actors:
                actor._may_connect = True
            assert_same(received(envs, [1] * 3), stepped(whole, [1] * 3))
            assert all(connections(envs))
            connections(envs)[0]._socket.shutdown(socket.SHUT_RDWR)
            envs.send([2] * 3, range(3))
            batch = None
            with Instant(number, [str(Path(actor_client.__file__).parent)]) as instant:
                batch = envs.recv(min_envs=3)
            came, number = instant.came, number + 3
            batch = envs.recv(min_envs=3) if batch is None else batch
            assert_same(batch.obs, whole.step([2] * 3)[0], instant.place)
        assert number > 50
    assert not PretendedActor.ended


def test_a_reply_that_is_still_arriving_at_the_time_limit_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pass_on_slowly(relay: Relay, source: str, half: str, whole: str) -> bool:
        data = relay._ends[source].recv(1 << 16)
        time.sleep(0.08 if len(data) == 1 << 16 else 0.0)
        relay._ends["actor" if source == "main" else "main"].sendall(data)
        return not data

    functions = [partial(Counting, 1, size=1 << 17, seconds=0.0)]
    with (
        pretended_machines(here=1),
        relayed(),
        RayVecEnv_Gym(functions, 1, actors="core", step_timeout=1.0) as envs,
        DummyVecEnv(functions) as whole,
    ):
        assert_same(envs.reset(seed=1)[0], whole.reset(seed=1)[0])
        monkeypatch.setattr(Relay, "_pass_on", pass_on_slowly)
        began = time.monotonic()
        assert_same(stepped(envs, [2]), stepped(whole, [2]))
        assert time.monotonic() - began > 1.0


@pytest.mark.parametrize("actors", ["core", "machine"])
def test_an_actor_that_takes_itself_for_connected_is_asked_by_rays_calls(
    actors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = actor_client.connect_authenticated
    kept: list[socket.socket] = []

    def losing_the_last_proof(*given: Any) -> socket.socket:
        kept.append(connect(*given))
        raise TimeoutError("timed out")

    monkeypatch.setattr(actor_client, "connect_authenticated", losing_the_last_proof)
    functions = [partial(Counting, k) for k in range(3)]
    with (
        pretended_machines(here=2, there=2),
        RayVecEnv_Gym(functions, 2, actors=actors) as envs,
        DummyVecEnv(functions) as whole,
    ):
        assert not any(connections(envs))
        assert_same(envs.reset(seed=1)[0], whole.reset(seed=1)[0])
        for action in range(3):
            assert_same(stepped(envs, [action] * 3), stepped(whole, [action] * 3))
    assert kept
    for each in kept:
        each.close()
    assert not PretendedActor.ended
