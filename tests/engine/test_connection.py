"""The connection of a caller and an actor, without a cluster: who gets it, and what goes by it."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from interrupts import Instant

from xuance_envs.engine import stream
from xuance_envs.engine.ray import connection as connection_module
from xuance_envs.engine.ray import exchange
from xuance_envs.engine.ray.actor import GroupActor
from xuance_envs.engine.ray.actor_client import CONNECT_TIMEOUT, ActorCall
from xuance_envs.engine.ray.authenticated_connection import (
    AuthenticationError,
    Listener,
    connect_authenticated,
)
from xuance_envs.engine.ray.connection import HEADER, DirectConnection, MessageReader, send_message
from xuance_envs.engine.ray.exchange import Exchange
from xuance_envs.engine.stream import PeerGoneError

LIVENESS = 20.0
"""Seconds within which it has to go on: this is about whether it does."""

HERE = "127.0.0.1"
CODE = [str(Path(connection_module.__file__).parent), stream.__file__]


def soon() -> float:
    return time.monotonic() + LIVENESS


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


@contextlib.contextmanager
def both_ends(pool: ThreadPoolExecutor, host: str = HERE) -> Iterator[tuple[Any, Any]]:
    """A caller's end of a connection, and an actor's."""
    listener = Listener(host)
    admitted = pool.submit(listener.accept, LIVENESS)
    mine = connect_authenticated(listener.address, listener.key, soon(), lambda: None)
    with mine, admitted.result() as theirs:
        yield mine, theirs


def nobody_listens_at(address: tuple[str, int]) -> bool:
    with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection(address, LIVENESS).close()
        return False
    return True


# --- who gets it --------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [HERE, "::1"])
def test_who_knows_the_key_is_admitted_and_then_nobody_else(
    pool: ThreadPoolExecutor, host: str
) -> None:
    try:
        listener = Listener(host)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    called: list[int] = []
    admitted = pool.submit(listener.accept, LIVENESS)
    mine = connect_authenticated(listener.address, listener.key, soon(), lambda: called.append(1))
    with mine, admitted.result() as theirs:
        assert called == [1]
        assert nobody_listens_at(listener.address)
        mine.sendall(b"there")
        assert theirs.recv(9) == b"there"


def test_a_door_is_shut_when_nobody_comes() -> None:
    listener = Listener(HERE)
    with pytest.raises(TimeoutError):
        listener.accept(0.0)
    assert nobody_listens_at(listener.address)


def guessing(address: tuple[str, int]) -> None:
    with pytest.raises(AuthenticationError):
        connect_authenticated(address, b"x" * 32, soon(), lambda: None)


def unpickled(address: tuple[str, int]) -> None:
    with socket.create_connection(address, LIVENESS) as peer:
        peer.sendall(pickle.dumps(Mark()) * 9)
        while peer.recv(99):
            pass


def echoing(address: tuple[str, int]) -> None:
    with socket.create_connection(address, LIVENESS) as peer, contextlib.suppress(OSError):
        peer.sendall(peer.recv(32) * 2)
        while peer.recv(99):
            pass


def leaving(address: tuple[str, int]) -> None:
    socket.create_connection(address, LIVENESS).close()


def silent(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, LIVENESS)


class Mark:
    """Tells when it is unpickled."""

    made = 0

    def __reduce__(self) -> Any:
        return marked, ()


def marked() -> None:
    Mark.made += 1


@pytest.mark.parametrize("stranger", [guessing, unpickled, echoing, leaving, silent])
def test_a_stranger_is_refused_and_keeps_nobody_out(
    pool: ThreadPoolExecutor, stranger: Callable[[Any], Any]
) -> None:
    listener = Listener(HERE)
    admitted = pool.submit(listener.accept, LIVENESS)
    try:
        held = stranger(listener.address)
    except ConnectionResetError:  # what it had sent was not even read
        held = None
    mine = connect_authenticated(listener.address, listener.key, soon(), lambda: None)
    with mine, admitted.result() as theirs:
        theirs.sendall(b"there")
        assert mine.recv(9) == b"there"
    assert not Mark.made
    if held is not None:
        held.close()


@pytest.mark.parametrize(("before", "during"), [(20, 0), (0, 20), (0, 300)])
def test_strangers_that_say_nothing_or_half_of_it_delay_nobody(
    before: int, during: int, pool: ThreadPoolExecutor
) -> None:
    listener = Listener(HERE)
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(silent(listener.address)) for _ in range(before)]
        admitted = pool.submit(listener.accept, CONNECT_TIMEOUT)
        strangers += [stack.enter_context(silent(listener.address)) for _ in range(during)]
        for stranger in strangers[::2]:
            with contextlib.suppress(ConnectionError):  # more have come than are waited for
                stranger.sendall(bytes(40))
        deadline = time.monotonic() + CONNECT_TIMEOUT
        mine = connect_authenticated(listener.address, listener.key, deadline, lambda: None)
        with mine, admitted.result() as theirs:
            theirs.sendall(b"there")
            assert mine.recv(9) == b"there"
        for stranger in strangers:
            stranger.settimeout(LIVENESS)
            with contextlib.suppress(ConnectionError):
                while stranger.recv(99):
                    pass


def test_an_actor_that_does_not_know_the_key_is_refused(pool: ThreadPoolExecutor) -> None:
    listener = Listener(HERE)
    listener.key, key = b"x" * 32, listener.key
    admitted = pool.submit(listener.accept, 0.5)
    with pytest.raises(AuthenticationError):
        connect_authenticated(listener.address, key, soon(), lambda: None)
    with pytest.raises(TimeoutError):
        admitted.result()


@pytest.mark.parametrize("proof", [lambda proof: bytes(32), lambda proof: proof])
def test_who_is_not_the_actor_is_refused_though_it_admits_anybody(
    proof: Callable[[bytes], bytes], pool: ThreadPoolExecutor
) -> None:
    with socket.create_server((HERE, 0)) as false:

        def accept() -> None:
            peer, _ = false.accept()
            with peer:
                peer.sendall(bytes(32))
                asked = b""
                while len(asked) < 64:
                    asked += peer.recv(64)
                peer.sendall(proof(asked[32:]))

        admitted = pool.submit(accept)
        with pytest.raises(AuthenticationError):
            connect_authenticated(false.getsockname(), b"k" * 32, soon(), lambda: None)
        admitted.result(LIVENESS)


def test_nobody_waits_for_ever_for_a_proof() -> None:
    with socket.create_server((HERE, 0)) as mute, pytest.raises(TimeoutError):
        connect_authenticated(mute.getsockname(), b"x" * 32, time.monotonic() + 0.2, lambda: None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_has_no_end_of_it(pool: ThreadPoolExecutor) -> None:
    with both_ends(pool) as (mine, theirs):
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            os.close(writes)
            os.read(reads, 1)
            os._exit(0)
        try:
            mine.close()  # of which the other end would not hear if the child had it
            theirs.settimeout(LIVENESS)
            assert theirs.recv(1) == b""
        finally:
            os.close(writes)
            os.waitpid(child, 0)
            os.close(reads)


# --- messages -----------------------------------------------------------------------------------


def as_bytes(number: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return HEADER.pack(number, len(body)) + body


def all_of(incoming: MessageReader) -> list[tuple[int, bytes]]:
    """What has come; leaves nothing."""
    found = []
    while (message := incoming.first()) is not None:
        found.append((message[0], bytes(message[1])))
        incoming.clear()
    return found


SENT = [(1, b"a"), (2, b""), (7, b"b" * 100), (8, b"c" * 40), (9, b"")]


DATA = b"".join(as_bytes(*message) for message in SENT)


def take(incoming: MessageReader, found: dict[int, bytes]) -> None:
    """Takes in what has come, as those do who may be interrupted."""
    while True:
        while (message := incoming.first()) is not None:
            found[message[0]] = bytes(message[1])
            incoming.clear()
        if not incoming.read():
            return


@contextlib.contextmanager
def one_way(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, MessageReader]]:
    """Where to send, and what comes of it, with little room."""
    monkeypatch.setattr(stream, "BUFFER_BYTES", 64)
    mine, theirs = socket.socketpair()
    theirs.setblocking(False)
    with mine, theirs:
        yield mine, MessageReader(theirs)


@pytest.mark.parametrize("size", [1, 3, 17, 50, 1000])
def test_messages_arrive_in_whatever_pieces(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with one_way(monkeypatch) as (mine, incoming):
        found: dict[int, bytes] = {}
        for start in range(0, len(DATA), size):
            mine.sendall(DATA[start : start + size])
            take(incoming, found)
        assert list(found.items()) == SENT
        assert incoming.num_unread == 0


def test_an_interrupt_while_messages_are_read_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces = [DATA[start : start + 90] for start in range(0, len(DATA), 90)]
    interrupted = 0
    for k in range(len(pieces)):
        for number in itertools.count():
            found: dict[int, bytes] = {}
            with one_way(monkeypatch) as (mine, incoming):
                for piece in pieces[:k]:
                    mine.sendall(piece)
                    take(incoming, found)
                mine.sendall(pieces[k])
                with Instant(number, CODE) as instant:
                    take(incoming, found)
                mine.sendall(b"".join(pieces[k + 1 :]))
                take(incoming, found)
            assert list(found.items()) == SENT, instant.place
            if not instant.came:
                break
            interrupted += 1
    assert interrupted > 50


def test_room_for_a_large_message_is_not_kept(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_MAX_KEPT_BYTES", 1 << 18)
    with both_ends(pool) as (mine, theirs):
        incoming = MessageReader(theirs)
        for number, size in enumerate([1 << 17, 1 << 19, 10]):
            body = os.urandom(size)
            sending = pool.submit(send_message, mine, number, [body])
            while (message := incoming.first()) is None:
                incoming.read()
            assert message == (number, body)
            room = len(message[1].obj)  # type: ignore[arg-type]
            incoming.clear()
            sending.result()
        assert room == 1 << 16


def test_a_message_is_the_buffers_it_consists_of(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [np.arange(3.0), b"", np.zeros((0, 4)), np.ones((2, 2), bool), b"end", np.int8(5)[None]]
    expected = b"".join(parts)  # type: ignore[arg-type]
    with both_ends(pool) as (mine, theirs):
        incoming = MessageReader(mine)
        for most in (512, 2):
            monkeypatch.setattr(connection_module, "_MAX_PARTS", most)
            send_message(theirs, 3, parts)
            while not (found := all_of(incoming)):
                incoming.read()
            assert found == [(3, expected)]


def test_the_end_of_it_is_told() -> None:
    mine, theirs = socket.socketpair()
    incoming = MessageReader(theirs)
    mine.sendall(as_bytes(1, b"whole") + as_bytes(2, b"half")[:-1])
    mine.close()
    incoming.read()
    assert all_of(incoming) == [(1, b"whole")]
    for _ in range(2):
        with pytest.raises(PeerGoneError):
            incoming.read()
    theirs.close()
    with pytest.raises(PeerGoneError):
        send_message(theirs, 1, [b"nobody"])


# --- the caller's end ---------------------------------------------------------------------------


class Told:
    """What Ray says of an actor: that it serves the connection, until it does not."""

    alive = True
    serves = True

    def wait(self, refs: Any, count: int, seconds: float) -> Any:
        return [] if self.serves else refs


class Way:
    """A connection whose replies are taken by an exchange, as by an actor's client."""

    lost = None

    def __init__(self, peer: socket.socket, cluster: Any) -> None:
        self.connection = DirectConnection(peer, b"key", "served")
        self.close = self.connection.close
        self.exchange = Exchange(cluster, [])
        self.exchange.actors.append(self)  # type: ignore[arg-type]
        self.calls: dict[int, ActorCall] = {}
        self.taken: dict[ActorCall, bytes] = {}

    def ask(self, call: ActorCall) -> bool:
        self.calls[call.number] = call
        return self.connection.send(call.number, call.request)

    @property
    def broken(self) -> str | None:
        return self.connection.broken

    def send(self) -> bool:
        return True

    def read(self) -> bool:
        self.connection.read()
        for number, reply in self.connection.replies():
            if (call := self.calls.get(number)) is not None:
                assert self.taken.get(call, reply) == reply
                self.taken[call] = bytes(reply)
                call.replies = {}
        return self.broken is None

    def receive(self, call: ActorCall, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while self.pending_call(call.number) is not None and self.broken is None:
            left = max(ends - time.monotonic(), 0.0)
            worker = SimpleNamespace(actor=self, group=call.number)
            self.exchange.receive([worker], min(left, exchange.POLL_INTERVAL))  # as drivers do
            if not left and self.pending_call(call.number) is not None and self.broken is None:
                raise TimeoutError

    def call_of(self, number: int) -> ActorCall:
        return self.calls[number]

    def pending_call(self, number: int) -> ActorCall | None:
        return None if self.calls[number] in self.taken else self.calls[number]


def connection_to(peer: socket.socket, cluster: Any) -> tuple[Way, dict[ActorCall, bytes]]:
    """A connection, and what its calls have been answered."""
    way = Way(peer, cluster)
    return way, way.taken


class Peer(threading.Thread):
    """Answers each request with what it was, said twice, in pieces; and notes it."""

    def __init__(self, peer: socket.socket) -> None:
        super().__init__(daemon=True)
        self.requests: list[bytes] = []
        self._peer = peer
        self.start()

    def run(self) -> None:
        incoming = MessageReader(self._peer)
        with contextlib.suppress(PeerGoneError, OSError):
            while True:
                while (message := incoming.first()) is None:
                    incoming.read()
                number, request = message[0], bytes(message[1])
                self.requests.append(request)
                incoming.clear()
                reply = as_bytes(number, request, request)
                for start in range(0, len(reply), len(reply) // 3 + 1):
                    self._peer.sendall(reply[start : start + len(reply) // 3 + 1])
                    time.sleep(1e-4)


@pytest.mark.parametrize("size", [30, 300_000], ids=["small", "more than a socket holds"])
def test_an_interrupt_leaves_nothing_half_sent_or_sent_twice(size: int) -> None:
    mine, theirs = socket.socketpair()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    peer = Peer(theirs)
    way, taken = connection_to(mine, Told())
    came, number, calls = True, 0, []
    while came:
        call = ActorCall(number + 1, [0], number.to_bytes(8, "little") + bytes(size), ())
        calls.append(call)
        with Instant(number, CODE) as instant:
            way.ask(call)
            way.receive(call, LIVENESS)
        came, number = instant.came, number + 1 + number // (20 if size > 30 else 10**9)
        while not way.ask(call):
            pass
        way.receive(call, LIVENESS)
        assert taken[call] == call.request * 2, instant.place
    assert len(calls) > 30
    assert peer.requests == [call.request for call in calls]
    way.close()
    peer.join(LIVENESS)
    theirs.close()


def test_answers_may_come_in_another_order_and_forgotten_ones_are_let_go() -> None:
    mine, theirs = socket.socketpair()
    way, taken = connection_to(mine, Told())
    calls = [ActorCall(k + 1, [k], b"%d" % k, ()) for k in range(3)]
    for call in calls:
        assert way.ask(call)
    theirs.sendall(as_bytes(77, b"nobody's") + as_bytes(3, b"c") + as_bytes(1, b"a"))
    way.receive(calls[0], LIVENESS)
    assert taken == {calls[0]: b"a", calls[2]: b"c"}
    with pytest.raises(TimeoutError):
        way.receive(calls[1], 0.0)
    assert way.connection.num_unread == 0
    theirs.sendall(as_bytes(2, b"b")[:-1])
    with pytest.raises(TimeoutError):
        way.receive(calls[1], 0.0)
    assert way.connection.num_unread == len(as_bytes(2, b"b")) - 1
    theirs.sendall(b"b")
    way.receive(calls[1], LIVENESS)
    way.close(), theirs.close()


def test_one_that_does_not_read_is_not_waited_for_when_it_is_sent_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "SEND_TIMEOUT", 0.05)
    mine, theirs = socket.socketpair()
    way, _ = connection_to(mine, Told())
    call = ActorCall(1, [0], bytes(10_000_000), ())
    assert not way.ask(call)
    peer = Peer(theirs)
    while not way.ask(call):
        pass
    way.receive(call, LIVENESS)
    assert peer.requests == [call.request]
    way.close()
    peer.join(LIVENESS)
    theirs.close()


@pytest.mark.parametrize("silent", [False, True], ids=["it broke", "its actor does not serve it"])
def test_that_it_broke_is_told_at_once(silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "POLL_INTERVAL", 0.02)
    mine, theirs = socket.socketpair()
    cluster = Told()
    way, _ = connection_to(mine, cluster)
    call = ActorCall(1, [0], b"anything", ())
    assert way.ask(call)
    with pytest.raises(TimeoutError):
        way.receive(call, 0.05)
    assert way.broken is None
    if silent:
        cluster.serves = False
        way.receive(call, LIVENESS)
        assert way.broken == "the actor no longer serves the connection"
    else:
        theirs.close()
        way.receive(call, LIVENESS)
        assert way.broken
    assert call not in way.taken
    assert way.ask(ActorCall(2, [0], b"more", ()))
    way.close(), way.close()
    theirs.close()


# --- the actor's end ----------------------------------------------------------------------------


class Answering(GroupActor):
    """Answers with what it was asked; asked for some of its three groups, it may wait, or fail."""

    def __init__(self) -> None:
        self._hosting = SimpleNamespace(groups=range(3))  # type: ignore[assignment]
        self.go_on = threading.Event()
        self.ended: set[bytes] = set()
        self.threads: list[threading.Thread] = []

    def is_ended(self, key: bytes) -> bool:
        return key in self.ended

    def answer_buffers(self, number: int, request: bytes, *states: bytes) -> list[Any]:
        self.threads.append(threading.current_thread())
        if b"wait" in request:
            assert self.go_on.wait(LIVENESS)
        if b"fail" in request:
            raise ZeroDivisionError("as told")
        return [request]


def asking(count: int, what: bytes = b"") -> bytes:
    return count.to_bytes(2, "little") + what


@contextlib.contextmanager
def served(actor: Answering, pool: ThreadPoolExecutor) -> Iterator[tuple[Any, Any]]:
    """A connection to an actor, and what serving it came to."""
    *address, key = actor.listen_at(HERE)
    serving = pool.submit(actor.serve, LIVENESS)
    with connect_authenticated((address[0], address[1]), key, soon(), lambda: None) as mine:
        yield mine, serving
    with contextlib.suppress(ZeroDivisionError):
        serving.result(LIVENESS)


def next_of(incoming: MessageReader) -> tuple[int, bytes]:
    while (message := incoming.first()) is None:
        incoming.read()
    found = message[0], bytes(message[1])
    incoming.clear()
    return found


def test_some_groups_do_not_wait_for_others_and_all_are_asked_in_one_thread(
    pool: ThreadPoolExecutor,
) -> None:
    actor = Answering()
    with served(actor, pool) as (mine, serving):
        incoming = MessageReader(mine)
        for number in range(3):
            send_message(mine, number, [asking(3)])
            assert next_of(incoming) == (number, asking(3))
        assert len({*actor.threads}) == 1
        send_message(mine, 5, [asking(1, b"wait")])
        send_message(mine, 6, [asking(2)])
        assert next_of(incoming) == (6, asking(2))
        actor.go_on.set()
        assert next_of(incoming) == (5, asking(1, b"wait"))
        assert not serving.done()
    assert serving.result() is None


@pytest.mark.parametrize("count", [1, 3])
def test_what_answering_raises_ends_it_and_is_raised(count: int, pool: ThreadPoolExecutor) -> None:
    with served(Answering(), pool) as (mine, serving):
        send_message(mine, 1, [asking(count, b"fail")])
        with pytest.raises(PeerGoneError):
            next_of(MessageReader(mine))
        with pytest.raises(ZeroDivisionError, match="as told"):
            serving.result(LIVENESS)


@pytest.mark.parametrize(
    "leave", [socket.socket.close, lambda mine: mine.shutdown(socket.SHUT_WR)], ids=["all", "half"]
)
def test_a_caller_that_leaves_without_its_answer_ends_it(
    leave: Callable[[socket.socket], Any], pool: ThreadPoolExecutor
) -> None:
    actor = Answering()
    with served(actor, pool) as (mine, serving):
        send_message(mine, 1, [asking(1, b"wait" + bytes(20_000_000))])
        leave(mine)
        actor.go_on.set()
        assert serving.result(LIVENESS) is None


def test_an_actor_that_nobody_connects_to_listens_no_longer() -> None:
    actor = Answering()
    *address, _ = actor.listen_at(HERE)
    assert actor.serve(0.0) is None
    assert nobody_listens_at((address[0], address[1]))
