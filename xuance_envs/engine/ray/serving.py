"""An actor's end of a connection to its caller: it answers what comes by it until it is closed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from xuance_envs.engine.process.doorbell import PeerGoneError
from xuance_envs.engine.ray.actor import GroupsActor
from xuance_envs.engine.ray.connection import Door, Incoming, send_message

__all__ = ["ServedActor"]


class ServedActor(GroupsActor):
    """An actor that may be asked by a connection, too."""

    def listen_at(self, host: str) -> tuple[str, int, bytes]:
        """Begins to listen for its caller.

        Returns:
            The host and the port, and a key that only the caller is to be told.

        Raises:
            OSError: the address is not one of this machine.
        """
        self._door = Door(host)
        return *self._door.address, self._door.key

    def serve(self, seconds: float) -> None:
        """Answers what its caller asks by a connection, in this thread, until that is closed.

        Args:
            seconds: how long to wait for the caller; then, and once it is there, nobody else can
                connect.
        """
        try:
            connection = self._door.admit(seconds)
        except TimeoutError:
            return
        with connection:
            _Service(self, connection).run()


class _Service:
    """Requests by a connection, and their answers.

    A request that is for all groups is answered where it was read, for until then there is no
    other. One for some of them may not keep others waiting, so it has a thread.

    Args:
        actor: who answers them.
        connection: the connection.
    """

    def __init__(self, actor: GroupsActor, connection: socket.socket) -> None:
        self._actor = actor
        self._connection = connection
        self._replying = threading.Lock()
        self._failures: Sequence[BaseException] = ()

    def run(self) -> None:
        """Answers until the connection is closed.

        Raises:
            BaseException: what answering raised, which nobody but the caller can be told.
        """
        incoming = Incoming(self._connection)
        with ThreadPoolExecutor(self._actor.num_groups) as pool, suppress(PeerGoneError):
            while True:
                while (message := incoming.first()) is None:
                    incoming.read()
                number, request = message[0], bytes(message[1])
                incoming.clear()
                if self._actor.is_for_all(request):
                    self._answer(number, request)
                else:
                    pool.submit(self._answer_apart, number, request)
        if self._failures:
            raise self._failures[0]

    def _answer(self, number: int, request: bytes) -> None:
        parts = self._actor.parts_of_answer(request)
        with self._replying:
            send_message(self._connection, number, parts)

    def _answer_apart(self, number: int, request: bytes) -> None:
        try:
            self._answer(number, request)
        except PeerGoneError:
            pass  # which is noticed where requests are read
        except BaseException as error:
            self._failures = (*self._failures, error)
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
