"""Actor side of a direct connection to the main process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from xuance_envs.engine.process.channel import PeerGoneError
from xuance_envs.engine.ray.actor import BaseGroupActor
from xuance_envs.engine.ray.authenticated_connection import Listener, MessageReader, send_message


class ConnectableActor(BaseGroupActor):
    """Actor that also answers requests from a direct connection."""

    def listen_at(self, host: str) -> tuple[str, int, bytes]:
        self._listener = Listener(host)
        return *self._listener.address, self._listener.key

    def serve(self, seconds: float) -> None:
        """Accept the main process, and answer its requests until the connection closes."""
        try:
            connection = self._listener.accept(seconds)
        except TimeoutError:
            return
        with connection:
            _ConnectionHandler(self, connection).run()


class _ConnectionHandler:
    """Handler of a connection's requests.

    A request to all groups is executed in the reading thread, since no other can be pending. Others
    run in a thread pool.
    """

    def __init__(self, actor: BaseGroupActor, connection: socket.socket) -> None:
        self._actor = actor
        self._connection = connection
        self._reply_lock = threading.Lock()
        self._failures: Sequence[BaseException] = ()

    def run(self) -> None:
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
        with self._reply_lock:
            send_message(self._connection, number, parts)

    def _answer_in_thread(self, number: int, request: bytes) -> None:
        try:
            self._answer(number, request)
        except PeerGoneError:
            pass  # the reading thread notices
        except BaseException as error:
            self._failures = (*self._failures, error)
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
