"""Actor side of a direct connection to the main process."""

from __future__ import annotations

import socket
import threading
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from xuance_envs.engine.process.channel import PeerGoneError
from xuance_envs.engine.ray.actor import BaseGroupActor
from xuance_envs.engine.ray.authenticated_connection import Listener, MessageReader, send_message
from xuance_envs.engine.system.current import system

END_POLL_INTERVAL = 1.0
"""Seconds between checks for the end of a connection that delivers no requests."""


class ConnectableActor(BaseGroupActor):
    """Actor that answers requests from Ray calls and from a direct connection."""

    @abstractmethod
    def is_ended(self, key: bytes) -> bool:
        """Return True if the main process has ended the connection with this key."""

    def listen_at(self, host: str) -> tuple[str, int, bytes]:
        self._listener = Listener(host)
        return *self._listener.address, self._listener.key

    def serve(self, seconds: float) -> None:
        """Accept the main process, and answer its requests until the connection ends."""
        listener = self._listener
        try:
            connection = listener.accept(seconds)
        except TimeoutError:
            return
        with connection:
            _ConnectionHandler(self, connection, listener.key).run()


class _ConnectionHandler:
    """Executes the requests that a connection delivers.

    The reading thread executes a request to all groups, because no other request can then be
    pending. A thread pool executes requests to some of the groups.
    """

    def __init__(self, actor: ConnectableActor, connection: socket.socket, key: bytes) -> None:
        self._actor = actor
        self._connection = connection
        self._key = key
        self._closed = threading.Event()
        self._number = 0
        self._reply_lock = threading.Lock()
        self._failures: Sequence[BaseException] = ()

    def run(self) -> None:
        with ThreadPoolExecutor(self._actor.num_groups + 1) as pool:
            pool.submit(self._watch)
            try:
                self._answer_requests(pool)
            except PeerGoneError:
                pass
            finally:
                self._closed.set()
                self._shut_down()  # a thread may be waiting to send
        if self._failures:
            raise self._failures[0]

    def _answer_requests(self, pool: ThreadPoolExecutor) -> None:
        incoming = MessageReader(self._connection)
        while True:
            while (message := incoming.first()) is None:
                incoming.read()
            self._number, request = message[0], bytes(message[1])
            incoming.clear()
            if self._actor.addresses_all_groups(request):
                self._answer(self._number, request)
            else:
                pool.submit(self._answer_in_thread, self._number, request)

    def _watch(self) -> None:
        """Shut the connection down if it has ended, which wakes threads that read or send."""
        number = -1
        while not self._closed.wait(END_POLL_INTERVAL):
            if number == self._number and (
                self._is_closed_by_peer() or self._actor.is_ended(self._key)
            ):
                self._shut_down()
            number = self._number

    def _is_closed_by_peer(self) -> bool:
        return system.is_closed_by_peer(self._connection)

    def _answer(self, number: int, request: bytes) -> None:
        parts = self._actor.answer_buffers(number, request)
        with self._reply_lock:
            send_message(self._connection, number, parts)

    def _answer_in_thread(self, number: int, request: bytes) -> None:
        try:
            self._answer(number, request)
        except BaseException as error:
            if not isinstance(error, PeerGoneError):
                self._failures = (*self._failures, error)
            self._shut_down()

    def _shut_down(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
