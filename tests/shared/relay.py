"""A TCP proxy between a main process and an actor that can break the connection on either side."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from xuance_envs.engine.ray import actor_client

HANDSHAKE = 64
"""Bytes that each side sends before its first message."""

INSTANTS = ("before", "request half sent", "stepping", "reply half sent", "after")


class Relay:
    """Forwards bytes in both directions until it breaks the connection to one side.

    The connection to the other side stays open and receives nothing.
    """

    def __init__(self, address: Any) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = self._server.getsockname()[:2]
        self._target = address
        self._ends: dict[str, socket.socket] = {}
        self._passed = {"main": 0, "actor": 0}
        self._armed: tuple[str, Callable[[], bool]] | None = None
        self.fired = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def break_at(self, instant: str, does: Callable[[], bool]) -> None:
        """Does something at an instant of the next step; and passes nothing on if it is True."""
        self._armed = instant, does
        if instant == "before":
            assert self.fired.wait(20.0)

    def fin(self, side: str) -> bool:
        self._ends[side].close()
        return True

    def rst(self, side: str) -> bool:
        self._ends[side].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return self.fin(side)

    def half_close(self, side: str) -> bool:
        self._ends[side].shutdown(socket.SHUT_WR)
        return True

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for end in (self._server, *self._ends.values()):
            end.close()

    def _run(self) -> None:
        main, _ = self._server.accept()
        actor = socket.create_connection(self._target)
        self._ends = {"main": main, "actor": actor}
        for end in self._ends.values():
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            while not self._over.is_set():
                ready = select.select([*self._ends.values()], [], [], 1e-3)[0]
                if self._reaches("before"):
                    return
                for source, half, whole in (
                    ("main", "request half sent", "stepping"),
                    ("actor", "reply half sent", "after"),
                ):
                    if self._ends[source] in ready and self._pass_on(source, half, whole):
                        return

    def _pass_on(self, source: str, half: str, whole: str) -> bool:
        """Passes on what has come from one end; True if nothing more is to be."""
        data = self._ends[source].recv(1 << 16)
        there = self._ends["actor" if source == "main" else "main"]
        is_message = self._passed[source] >= HANDSHAKE
        self._passed[source] += len(data)
        if not data:
            there.shutdown(socket.SHUT_WR)
            return True
        middle = len(data) // 2
        there.sendall(data[:middle])
        if is_message and self._reaches(half):
            return True
        there.sendall(data[middle:])
        return is_message and self._reaches(whole)

    def _reaches(self, instant: str) -> bool:
        if self.fired.is_set() or self._armed is None or self._armed[0] != instant:
            return False
        stops = self._armed[1]()
        self.fired.set()
        return stops


@contextlib.contextmanager
def relayed() -> Iterator[list[Relay]]:
    """Has connections to actors lead through relays, for as long as this lasts."""
    relays: list[Relay] = []
    connect = actor_client.connect_authenticated

    def connecting(address: Any, *given: Any) -> Any:
        relays.append(Relay(address))
        return connect(relays[-1].address, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actor_client, "connect_authenticated", connecting)
        try:
            yield relays
        finally:
            for relay in relays:
                relay.close()
