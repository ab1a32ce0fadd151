"""Actor's side of a direct connection to the main process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from xuance_envs.engine.ray.connection import MessageReader, send_message
from xuance_envs.engine.ray.messages import num_requests
from xuance_envs.engine.stream import PeerGoneError
from xuance_envs.engine.system.current import system

END_POLL_INTERVAL = 1.0  # seconds between checks for the end of an idle connection


class ConnectionServer:
    def __init__(
        self,
        connection: socket.socket,
        answer: Callable[[int, bytes], Sequence[Any]],
        num_groups: int,
        is_ended: Callable[[], bool],
    ) -> None:
        self._connection = connection
        self._answer = answer
        self._num_groups = num_groups
        self._is_ended = is_ended
        self._closed = threading.Event()
        self._number = 0
        self._reply_lock = threading.Lock()
        self._failures: Sequence[BaseException] = ()

    def run(self) -> None:
        """Answer requests until the connection ends."""
        with ThreadPoolExecutor(self._num_groups + 1) as pool:
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
            if num_requests(request) == self._num_groups:  # no other request can be pending
                self._reply(self._number, request)
            else:
                pool.submit(self._reply_in_thread, self._number, request)

    def _watch(self) -> None:
        """Shut the connection down if it has ended, which wakes threads that read or send."""
        number = -1
        while not self._closed.wait(END_POLL_INTERVAL):
            if number == self._number and (
                system.is_closed_by_peer(self._connection) or self._is_ended()
            ):
                self._shut_down()
            number = self._number

    def _reply(self, number: int, request: bytes) -> None:
        parts = self._answer(number, request)
        with self._reply_lock:
            send_message(self._connection, number, parts)

    def _reply_in_thread(self, number: int, request: bytes) -> None:
        try:
            self._reply(number, request)
        except BaseException as error:
            if not isinstance(error, PeerGoneError):
                self._failures = (*self._failures, error)
            self._shut_down()

    def _shut_down(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
