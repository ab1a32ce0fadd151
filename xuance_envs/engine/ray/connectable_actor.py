"""An actor's end of a connection to its caller: it answers what comes by it until it is closed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from xuance_envs.engine.process.channel import PeerGoneError
from xuance_envs.engine.ray.actor import BaseGroupActor
from xuance_envs.engine.ray.authenticated_connection import Listener, MessageReader, send_message

__all__ = ["ConnectableActor"]


class ConnectableActor(BaseGroupActor):
    """An actor that may be asked by a connection, too."""

    def listen_at(self, host: str) -> tuple[str, int, bytes]:
        """Begins to listen for its caller."""
        self._listener = Listener(host)
        return *self._listener.address, self._listener.key

    def serve(self, seconds: float) -> None:
        """Answers what its caller asks by a connection, in this thread, until that is closed."""
        try:
            connection = self._listener.accept(seconds)
        except TimeoutError:
            return
        with connection:
            _ConnectionHandler(self, connection).run()


class _ConnectionHandler:
    """Requests by a connection, and their answers.

    A request that is for all groups is answered where it was read, for until then there is no
    other. One for some of them may not keep others waiting, so it has a thread.
    """

    def __init__(self, actor: BaseGroupActor, connection: socket.socket) -> None:
        self._actor = actor
        self._connection = connection
        self._replying = threading.Lock()
        self._failures: Sequence[BaseException] = ()

    def run(self) -> None:
        """Answers until the connection is closed."""
        incoming = MessageReader(self._connection)
        with ThreadPoolExecutor(self._actor.num_groups) as pool, suppress(PeerGoneError):
            while True:
                while (message := incoming.first()) is None:
                    incoming.read()
                number, request = message[0], bytes(message[1])
                incoming.clear()
                if self._actor.addresses_all_groups(request):
                    self._answer(number, request)
                else:
                    pool.submit(self._answer_in_thread, number, request)
        if self._failures:
            raise self._failures[0]

    def _answer(self, number: int, request: bytes) -> None:
        parts = self._actor.answer_buffers(request)
        with self._replying:
            send_message(self._connection, number, parts)

    def _answer_in_thread(self, number: int, request: bytes) -> None:
        try:
            self._answer(number, request)
        except PeerGoneError:
            pass  # which is noticed where requests are read
        except BaseException as error:
            self._failures = (*self._failures, error)
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
