"""The pipes between a caller and a worker, without any environment."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from xuance_envs.engine.group.protocol import ReplyType, RequestType
from xuance_envs.engine.process.channel import Channel, Inbox, frame, write_all
from xuance_envs.engine.stream import PeerGoneError


class Pipes:
    """Both sides of a worker's pipes, in one process; a third pipe stands for its pidfd."""

    def __init__(self) -> None:
        self.requests, requests = os.pipe()
        replies, self.replies = os.pipe()
        peer, self.life = os.pipe()
        self.channel = Channel(requests, replies, peer, spin=0.0)
        self.inbox = Inbox(self.requests)
        self.peer = peer

    def die(self) -> None:
        """What shows when a worker ends."""
        os.close(self.life)
        self.life = -1

    def close(self) -> None:
        self.channel.close()
        for fd in (self.requests, self.replies, self.peer, self.life):
            if fd >= 0:
                os.close(fd)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    pipes = Pipes()
    yield pipes
    pipes.close()


def soon() -> float:
    return time.monotonic() + 0.05


def test_a_ring_is_one_byte_each_way(pipes: Pipes) -> None:
    pipes.channel.send(frame(RequestType.STEP), 1)
    assert pipes.inbox.receive() == (RequestType.STEP, b"")
    assert pipes.inbox.counts == [1]
    write_all(pipes.replies, frame(ReplyType.EPISODE_ENDED))
    assert pipes.channel.wait_reply() == (ReplyType.EPISODE_ENDED, b"")


@pytest.mark.parametrize("size", [0, 1, 9, 65_536, 3_000_000])
def test_a_payload_of_any_size_arrives(pipes: Pipes, size: int) -> None:
    payload = os.urandom(size)
    sender = threading.Thread(target=pipes.channel.send, args=(frame(RequestType.CALL, payload), 1))
    sender.start()
    assert pipes.inbox.receive() == (RequestType.CALL, payload)
    sender.join()
    sender = threading.Thread(
        target=write_all, args=(pipes.replies, frame(ReplyType.OUTCOME, payload))
    )
    sender.start()
    assert pipes.channel.wait_reply() == (ReplyType.OUTCOME, payload)
    sender.join()


def test_a_message_stays_until_it_is_cleared(pipes: Pipes) -> None:
    write_all(pipes.replies, frame(ReplyType.OUTCOME, b"kept"))
    pipes.channel.send(frame(RequestType.STEP), 1)
    assert [pipes.channel.wait_reply() for _ in range(3)] == [(ReplyType.OUTCOME, b"kept")] * 3


def test_an_old_answer_is_not_taken_for_the_next(pipes: Pipes) -> None:
    write_all(pipes.replies, frame(ReplyType.OK))
    pipes.channel.send(frame(RequestType.STEP), 1)
    pipes.channel.wait_reply()
    pipes.channel.send(frame(RequestType.STEP), 2)
    assert pipes.channel.tag == 2
    with pytest.raises(TimeoutError):
        pipes.channel.wait_reply(soon())


@pytest.mark.parametrize("first", [frame(RequestType.STEP), frame(RequestType.CALL, b"payload")])
def test_what_comes_right_behind_a_message_is_not_lost(pipes: Pipes, first: bytes) -> None:
    pipes.channel.send(first, 1)
    pipes.channel.request_close()
    assert pipes.inbox.receive()[0] == first[0]
    pipes.inbox.clear()
    assert pipes.inbox.receive(soon()) == (RequestType.CLOSE, b"")


def test_a_message_that_comes_in_pieces_is_put_together(pipes: Pipes) -> None:
    message = frame(ReplyType.OUTCOME, b"in pieces")
    pipes.channel.send(frame(RequestType.STEP), 1)
    for start in range(len(message)):
        with pytest.raises(TimeoutError):
            pipes.channel.wait_reply(time.monotonic() + 0.001)
        write_all(pipes.replies, message[start : start + 1])
    assert pipes.channel.wait_reply() == (ReplyType.OUTCOME, b"in pieces")


def test_a_request_that_does_not_fit_the_pipe_is_given_up_at_the_deadline_and_taken_up_again(
    pipes: Pipes,
) -> None:
    payload = os.urandom(1_000_000)
    with pytest.raises(TimeoutError):
        pipes.channel.send(frame(RequestType.CALL, payload), 1, soon())
    received: list[tuple[int, bytes]] = []

    def work() -> None:
        received.append(pipes.inbox.receive())
        write_all(pipes.replies, frame(ReplyType.OK))

    worker = threading.Thread(target=work)
    worker.start()
    assert pipes.channel.wait_reply() == (ReplyType.OK, b"")
    worker.join()
    assert received == [(RequestType.CALL, payload)]


def test_the_end_of_the_worker_ends_the_wait_though_the_pipe_stays_open(pipes: Pipes) -> None:
    pipes.channel.send(frame(RequestType.STEP), 1)
    pipes.die()
    with pytest.raises(PeerGoneError):
        pipes.channel.wait_reply()


def test_the_end_of_the_worker_ends_a_wait_for_room(pipes: Pipes) -> None:
    pipes.die()
    with pytest.raises(PeerGoneError):
        pipes.channel.send(frame(RequestType.CALL, bytes(1_000_000)), 1)


def test_what_a_worker_said_before_it_ended_is_heard(pipes: Pipes) -> None:
    pipes.channel.send(frame(RequestType.STEP), 1)
    write_all(pipes.replies, frame(ReplyType.OK))
    pipes.die()
    assert pipes.channel.wait_reply() == (ReplyType.OK, b"")


def test_the_end_of_the_caller_is_the_end_of_the_pipe(pipes: Pipes) -> None:
    pipes.channel.close()
    with pytest.raises(PeerGoneError):
        pipes.inbox.receive()
    with pytest.raises(PeerGoneError):
        write_all(pipes.replies, frame(ReplyType.OK))
    pipes.channel = Channel(*os.pipe()[::-1], peer=pipes.peer, spin=0.0)


def test_spinning_stops_when_the_gaps_are_longer_than_the_bound() -> None:
    read, write = os.pipe()
    inbox = Inbox(read, spin=0.001)
    try:
        for _ in range(30):
            timer = threading.Timer(0.004, os.write, (write, b"s"))
            timer.start()
            inbox.receive()
            inbox.clear()
            timer.join()
        assert inbox._spin == 0.0
        for _ in range(60):
            os.write(write, b"s")
            inbox.receive()
            inbox.clear()
        assert inbox._spin == 0.001
    finally:
        os.close(read)
        os.close(write)
