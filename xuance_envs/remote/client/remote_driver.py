"""Driver whose group is a session on an HTTP server."""

from __future__ import annotations

import socket
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from time import monotonic
from typing import Any

import numpy as np

from xuance_envs._override import override
from xuance_envs.engine.data.info_writer import InfoWriter
from xuance_envs.engine.data.space_rows import ALL_ENVS, Index, SpaceRows, identity
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.outcome import (
    EPISODE_ENDED,
    OK,
    Outcome,
    OutcomeBuilder,
    Reset,
    StepExtras,
)
from xuance_envs.engine.group.step_clock import StepTimes
from xuance_envs.engine.system.doorbell import Doorbell
from xuance_envs.remote.client.remote_session import (
    CreatedEnvs,
    RemoteSession,
    checked_seeds,
    parse_results,
)
from xuance_envs.remote.wire.nodes import WireError, array_from_wire, checked_list, shortened
from xuance_envs.remote.wire.step_frames import StepFrameReader
from xuance_envs.remote.wire.values import batch_from_wire, batch_to_wire, infos_from_wire, to_wire

_FLOAT = np.dtype(np.float64)
_BOOL = np.dtype(np.bool_)

_Reply = tuple[Any, BaseException | None]  # value and error

# Longest wait in seconds for a lock, which Ctrl-C does not interrupt on Windows.
_POLL_INTERVAL = 0.1


def sendable(command: str, value: Any) -> Any:
    try:
        if isinstance(value, dict):  # named arguments, not a value
            for name in value:
                if not isinstance(name, str):
                    raise WireError(f"expected strings as names, got {shortened(name)}")
            return {to_wire(name): to_wire(item) for name, item in value.items()}
        return [to_wire(item) for item in value]
    except WireError as error:
        text = f"an argument of {command!r} cannot be sent to the server: {error}"
        raise TypeError(text) from None


class _Sender:
    """Thread that sends one request at a time.

    Ringing its doorbell twice is harmless, so an interrupt may arrive between any two bytecodes. An
    interrupted call of an executor could leave a lock locked.
    """

    def __init__(self, wake: Callable[[], Any]) -> None:
        self.request: Callable[[], Any] | None = None  # until the thread takes it
        self.reply: _Reply | None = None
        self._wake = wake
        self._is_ending = False
        self.doorbell, self._replied = Doorbell(), Doorbell()
        threading.Thread(target=self._serve, name="xuance_envs-remote", daemon=True).start()

    def wait(self, deadline: float | None) -> _Reply:
        """Return the reply; raise TimeoutError after the deadline."""
        while self.reply is None:
            if self.request is not None:  # an interrupt may have prevented the first ring
                self.doorbell.ring()
            left = _POLL_INTERVAL if deadline is None else deadline - monotonic()
            if not self._replied.wait(min(max(0.0, left), _POLL_INTERVAL)) and left <= 0:
                raise TimeoutError
        return self.reply

    def end(self) -> None:
        """Make the thread end after its request."""
        self._is_ending = True
        self.doorbell.ring()

    def _serve(self) -> None:
        while True:
            while (request := self.request) is None:
                if self._is_ending:
                    return
                self.doorbell.wait()
            self.request = None
            value, failure = None, None
            try:
                value = request()
            except BaseException as error:
                failure = error
            self.reply = value, failure
            # While the thread waits, its frame must not keep the session and the reply alive.
            del request, value, failure
            self._replied.ring()
            with suppress(OSError):  # closed in the meantime
                self._wake()


class RemoteDriver(Driver):
    """Driver of a session. Its thread sends requests; if ``blocking``, the calling thread does."""

    tag = 0
    fds: tuple[int, ...] = ()  # a socket that becomes readable when a reply arrives

    def __init__(self, session: RemoteSession, created: CreatedEnvs, arrays: StepArrays) -> None:
        super().__init__(0, len(created.episode_ids))
        self._session = session
        self._ids_of = created.ids_of
        self._arrays = arrays
        self._infos = InfoWriter(arrays.infos, identity)
        self._reset_infos = InfoWriter(arrays.reset_infos, identity)
        self._outcomes = OutcomeBuilder(self._infos, self._reset_infos)
        self._step_frames = StepFrameReader(arrays)
        self._frame_was_last = self._after_frame = False
        self.blocking = False  # True if the calling thread sends the next step itself
        sockets = ExitStack()
        self._close_sockets = weakref.finalize(self, sockets.close)
        self._wake_reader, wake_writer = map(sockets.enter_context, socket.socketpair())
        self._wake_reader.setblocking(False)
        self.fds = (self._wake_reader.fileno(),)
        self._sender = _Sender(partial(wake_writer.send, b"!"))
        sockets.callback(self._sender.end)
        self._wait: Callable[[float | None], _Reply] | None = None
        self._reply: _Reply | None = None
        self._parse: Callable[[Any], Any] = identity
        self._result: Any = None
        self._failed = False

    @override
    def pack_actions(self, actions: list[list[Any]]) -> Any:
        rows = self._arrays.actions  # contains all actions, including those that are objects
        return batch_to_wire(rows.layout.space, rows.as_batch())

    @override
    def submit_step(self, tag: int, actions: Any) -> None:
        self.discard()  # a pending reply may change the layout number
        actions = self.pack_actions([]) if actions is None else actions
        message = {"actions": actions, "layout": self._step_frames.number}
        self._send(tag, "vectorized_step", message, self._parse_step)

    @override
    def pack(self, command: str, *arguments: Any) -> Any:
        if command == "reset":
            return self._pack_reset(*arguments)
        places, *rest = arguments
        operation = "action_masks" if command == "watch_masks" else command.removesuffix("_states")
        message: dict[str, Any] = {"operation": operation, "episode_ids": self._ids_of(places)}
        if operation == "save":
            return "states", message, self._session.parse_handles
        if operation == "load":
            message["states"] = self._session.state_numbers(rest[0])
        elif operation == "clone":
            message |= {"sources": self._ids_of(rest[0]), "fork_rng": rest[1]}
        elif rest:
            message["mode" if command == "render" else "name"] = rest[0]
        if command.endswith("_states"):
            return "states", message, partial(self._parse_reset, places, False)
        if command == "call":
            message["args"] = sendable(command, list(rest[1]))
            message["kwargs"] = sendable(command, dict(rest[2]))
        elif command == "set_attr":
            message["values"] = sendable(command, list(rest[1]))
        return "call", message, parse_results

    def _pack_reset(self, resets: Sequence[Reset]) -> Any:
        places = [place for place, *_ in resets]
        options = resets[0][2]
        message = {
            "episode_ids": self._ids_of(places),
            "seed": checked_seeds([seed for _, seed, _ in resets]),
            "options": None if options is None else sendable("reset", options),
        }
        return "vectorized_reset", message, partial(self._parse_reset, places, True)

    @override
    def submit(self, tag: int, packed: Any) -> None:
        self.discard()
        self._send(tag, *packed)

    def _send(
        self, tag: int, path: str, message: Mapping[str, Any], parse: Callable[[Any], Any]
    ) -> None:
        send = partial(self._session.send, path, self._session.next_request(message))
        sender = self._sender
        wait, request = (lambda _: (send(), None), None) if self.blocking else (sender.wait, send)
        # Statements without calls, so that an interrupt cannot come in between.
        self._parse, self._wait, self._reply, self._result = parse, wait, None, None
        self.tag, self._after_frame, self._failed = tag, self._frame_was_last, False
        sender.reply, sender.request = None, request
        if request is not None:
            sender.doorbell.ring()

    @override
    def result(self, deadline: float | None = None) -> Any:
        if self._wait is not None:
            try:
                if self._reply is None:
                    self._reply = self._wait(deadline)
                    self._sender.reply = None  # an error's traceback would keep this object alive
                answer, error = self._reply
                if error is not None:
                    raise error
            except TimeoutError:
                raise
            except Exception:
                self._failed = True
                raise
            finally:
                error = None  # its traceback refers to this frame
                if not self.blocking:
                    with suppress(OSError):  # may be empty
                        self._wake_reader.recv(64)
            with self._session.parsing():
                self._result = self._parse(answer)
            self._wait = self._reply = None
        return self._result

    @override
    def discard(self) -> Any:
        # Raising the error again would keep the current frames in memory, in its traceback.
        return None if self._failed else super().discard()

    @override
    def times(self) -> StepTimes:
        return StepTimes(**self._session.step_times())

    def close(self) -> None:
        """Close the session, and end the thread after its current request."""
        self._session.close()
        self._close_sockets()

    def _parse_step(self, answer: Any) -> Outcome:
        if "frame" in answer:
            return self._parse_frame(answer)
        arrays, shape = self._arrays, (self.hi,)
        self._parse_envs(range(self.hi), ALL_ENVS, answer)
        arrays.rewards[:] = array_from_wire(answer["rewards"], _FLOAT, arrays.rewards.shape)
        arrays.terminated[:] = array_from_wire(answer["terminated"], _BOOL, shape)
        arrays.truncated[:] = array_from_wire(answer["truncated"], _BOOL, shape)
        resets = answer["resets"]
        ended = resets["environments"]
        if ended != (arrays.terminated | arrays.truncated).nonzero()[0].tolist():
            raise WireError(
                f"resets: expected the environments whose episodes ended, got {shortened(ended)}"
            )
        if ended:
            rows = arrays.reset_observations, self._reset_infos
            self._write_rows(*rows, ended, np.array(ended), resets)
        return self._outcomes.outcome(bool(ended))

    def _parse_frame(self, answer: Any) -> Outcome:
        """Decode a step frame; the outcome omits the layout if it is the previous step's."""
        ended = self._step_frames.read(answer)
        self._frame_was_last = True
        if self._after_frame and "columns" not in answer:
            return EPISODE_ENDED if ended else OK
        return Outcome(ended, StepExtras(*self._step_frames.layouts))

    def _parse_reset(self, places: Sequence[int], clears_results: bool, answer: Any) -> Outcome:
        at = np.array(places)
        if clears_results:
            self._arrays.clear_results(at)
        self._parse_envs(places, at, answer)
        return self._outcomes.outcome(ended=False)

    def _parse_envs(self, places: Sequence[int], at: Index, answer: Any) -> None:
        """Decode observations, action masks and infos of a reply without a frame."""
        if self._after_frame:
            for writer in (self._infos, self._reset_infos):
                writer.forget()
            self._outcomes.resend_columns()
        self._frame_was_last = False
        self._outcomes.begin()
        self._write_rows(self._arrays.observations, self._infos, places, at, answer)
        if (masks := self._arrays.masks) is not None and "masks" in answer:
            parts = checked_list(answer["masks"], len(masks.parts), "action mask")
            for target, part in zip(masks.parts, parts, strict=True):
                target[:] = array_from_wire(part, _BOOL, target.shape)

    def _write_rows(
        self, rows: SpaceRows, infos: InfoWriter, places: Sequence[int], at: Index, answer: Any
    ) -> None:
        count = len(places)
        rows.put(batch_from_wire(rows.layout.space, answer["observations"], count), at, count)
        for place, info in zip(places, infos_from_wire(answer["infos"], count), strict=True):
            infos.write(place, info)
