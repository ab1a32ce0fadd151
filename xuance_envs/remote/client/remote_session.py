"""Client side of a session: numbered requests, which are repeated after an interrupt."""

from __future__ import annotations

import os
import secrets
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.group.single_env import EnvDescription
from xuance_envs.engine.system.forks import WrongProcessProxy, close_after_fork
from xuance_envs.errors import RemoteError, RemoteUnreachableError, StateError
from xuance_envs.remote.client.api_client import ApiClient
from xuance_envs.remote.wire.constants import API_PREFIX, MAX_SEED
from xuance_envs.remote.wire.formats import WireFormat, dumps
from xuance_envs.remote.wire.spaces import reward_space_from_wire, space_from_wire
from xuance_envs.remote.wire.values import from_wire
from xuance_envs.state.env_states import EnvStates
from xuance_envs.state.file_format import SavedEnv

T = TypeVar("T")

# Seconds per attempt to close a session; the server kills a busy worker after five seconds.
CLOSE_TIMEOUTS = (6.0, 2.0)
MAX_DROPPED = 10_000  # states per drop request
# Statuses of errors that a repetition of the request would get again; None if the reply cannot be
# decoded.
_FINAL_STATUSES = (409, 413, 422, 500, None)


class _PendingRequest(NamedTuple):
    path: str
    content: bytes
    parse: Callable[[Any], Any]


class CreatedEnvs(NamedTuple):
    episode_ids: list[str]
    description: EnvDescription
    checks_actions: bool

    @classmethod
    def of(cls, answer: Any) -> CreatedEnvs:
        observations = space_from_wire(answer["observation_space"])
        actions = space_from_wire(answer["action_space"])
        description = EnvDescription(
            StepSpaces(observations, actions, reward_space_from_wire(answer)),
            dict(from_wire(answer["metadata"])),
            from_wire(answer["render_mode"]),
            int(answer["max_episode_steps"]),
        )
        episode_ids = list(map(str, answer["episode_ids"]))
        return cls(episode_ids, description, bool(answer["checks_actions"]))

    def ids_of(self, envs: Sequence[int]) -> list[str] | None:
        """Return the ids of some environments' episodes; None for all of them."""
        is_all = list(envs) == list(range(len(self.episode_ids)))
        return None if is_all else [self.episode_ids[env] for env in envs]


@dataclass(eq=False)
class _StateHandle:
    """Handle on a state; garbage collection releases the state on the server."""

    number: int
    size: int
    released: deque[int]

    def __del__(self) -> None:
        with suppress(AttributeError):  # interrupted during its creation
            self.released.append(self.number)


@dataclass(frozen=True, kw_only=True)
class RemoteSavedEnv(SavedEnv):
    handle: _StateHandle

    elsewhere: ClassVar[str] = (
        "states saved on a server cannot leave the server: load them into environments of the same "
        "session, before it is closed"
    )

    @property
    def nbytes(self) -> int:
        """Bytes on the server and in this process together."""
        return super().nbytes + self.handle.size


class RemoteSession:
    """Session on a server; it ends on ``close``, on garbage collection or with the process."""

    def __init__(self, connection: ApiClient, share_frames: bool, name: str) -> None:
        """Check the server's version and open a session; close the connection on errors."""
        self._connection: ApiClient | WrongProcessProxy = connection
        self.server = connection.server
        self.name = name
        self.users: dict[int, bool] = {}  # threads in a request, for `exclusive`
        # Numbers of states whose handle no longer exists. Finalizers append to it at any time.
        self.released: deque[int] = deque()
        self._handles = weakref.WeakValueDictionary[int, _StateHandle]()
        self._sequence = 0
        self._pending: _PendingRequest | None = None
        self._was_sent = False  # True if an attempt to send the pending request was interrupted
        try:
            connection.check_version()
            self._id = self._open(connection, share_frames)
        except BaseException:
            connection.close()
            raise
        self.close = weakref.finalize(self, _delete_session, connection, self._id, os.getpid())
        close_after_fork(self)

    def _open(self, connection: ApiClient, share_frames: bool) -> str:
        path = f"{API_PREFIX}/session/create"
        # If the request is repeated with the same nonce, the server returns the open session.
        message = {"share_frames": share_frames, "nonce": secrets.token_urlsafe(24)}
        open_session = partial(connection.request, "POST", path, message, repeatable=True)
        try:
            answer = open_session()
        except Exception:
            raise
        except BaseException:  # an interrupt: the session may have been opened
            with suppress(RemoteError, LookupError, TypeError):
                answer = open_session(timeout=sum(CLOSE_TIMEOUTS))
                _delete_session(connection, str(answer["session_id"]), os.getpid())
            raise
        with self.parsing():
            return str(answer["session_id"])

    def close_in_child(self, owner: int) -> None:
        """Make later requests raise; a forked child calls this."""
        self._connection = WrongProcessProxy(self.name, owner)

    def request(self, path: str, message: Mapping[str, Any], parse: Callable[[Any], T]) -> T:
        """Finish a pending request, then send this one; the server executes it at most once."""
        if not self.is_pending(path, message):  # otherwise the pending request is the same
            if self._pending is not None:
                self.finish_pending()
            new = _PendingRequest(path, self.next_request(message), parse), False
            self._pending, self._was_sent = new
        return cast(T, self.finish_pending())

    def is_pending(self, path: str, message: Mapping[str, Any] | None = None) -> bool:
        """Return whether a request to this path, with this message if given, is pending."""
        if self._pending is None or self._pending.path != path:
            return False
        return message is None or self._pending.content == self._encoded(message)

    def finish_pending(self) -> Any:
        assert self._pending is not None
        was_sent, self._was_sent = self._was_sent, True
        try:
            # The reply to a repeated request may contain numbers that are in self.released.
            send = self._post if was_sent else self.send
            answer = send(self._pending.path, self._pending.content)
            with self.parsing():
                parsed = self._pending.parse(answer)
        except RemoteUnreachableError:
            raise  # still pending: the server may have executed it
        except Exception as error:
            # The server may have executed an earlier attempt, whose error is the cause of this one.
            may_be_executed = was_sent or error.__cause__ is not None
            is_final = not isinstance(error, RemoteError) or error.status in _FINAL_STATUSES
            if is_final or not may_be_executed:
                self._pending = None
            raise
        self._pending = None
        return parsed

    def next_request(self, message: Mapping[str, Any]) -> bytes:
        """Encode the session's next request with a sequence number, which makes it repeatable."""
        self._sequence += 1
        return self._encoded(message)

    def _encoded(self, message: Mapping[str, Any]) -> bytes:
        about = {"session_id": self._id, "sequence": self._sequence}
        return dumps({**about, **message}, WireFormat.MSGPACK)

    def send(self, path: str, next_request: bytes) -> Any:
        """Send a numbered request; for a repeated request, the server repeats its reply."""
        if self.released:
            self._drop_states()
        return self._post(path, next_request)

    def _post(self, path: str, message: Mapping[str, Any] | bytes) -> Any:
        path = f"{API_PREFIX}/episode/{path}"
        return self._connection.request("POST", path, message, repeatable=True)

    def _drop_states(self) -> None:
        """Delete released states on the server; if that fails, the next request tries again."""
        numbers: list[int] = []
        try:
            # In C, so that no interrupt can separate removing a number from storing it.
            with suppress(IndexError):
                numbers.extend(map(deque.popleft, repeat(self.released, MAX_DROPPED)))
            self._post("states", {"session_id": self._id, "operation": "drop", "states": numbers})
        except BaseException as error:
            self.released.extend(numbers)
            if isinstance(error, RemoteUnreachableError) or not isinstance(error, RemoteError):
                raise

    def parse_handles(self, answer: Any) -> list[RemoteSavedEnv]:
        sizes = zip(map(int, answer["states"]), map(int, answer["bytes"]), strict=True)
        return [RemoteSavedEnv(b"", b"", handle=self._handle(*each)) for each in sizes]

    def _handle(self, number: int, size: int) -> _StateHandle:
        """Return the only handle on a state, even if a reply is parsed again after an interrupt."""
        handle = self._handles.get(number)
        if handle is None:
            with suppress(ValueError):
                self.released.remove(number)
            handle = self._handles[number] = _StateHandle(number, size, self.released)
        return handle

    def state_numbers(self, state: EnvStates) -> list[int]:
        """Return the numbers of states that this session has saved."""
        handles = [one.handle for one in state.envs if isinstance(one, RemoteSavedEnv)]
        numbers = [each.number for each in handles if each.released is self.released]
        if len(numbers) < len(state):
            reason = (
                "a server loads only states that it keeps for the same session; states from the "
                "client or from another session cannot be loaded"
            )
            raise StateError(-1, "load_state", reason)
        return numbers

    def step_times(self) -> dict[str, Any]:
        answer = self._post("statistics", {"session_id": self._id})
        with self.parsing():
            return dict(from_wire(answer["times"]))

    @contextmanager
    def parsing(self) -> Iterator[None]:
        """Convert the errors of malformed replies to RemoteError."""
        try:
            yield
        except (LookupError, TypeError, ValueError) as error:
            text = f"the server's reply is malformed: {error}"
            raise RemoteError(text, self.server) from error


def checked_seeds(seeds: Sequence[int | None]) -> list[int | None]:
    for seed in seeds:
        if seed is not None and seed >= MAX_SEED:
            raise ValueError(f"seed: expected ints below 2**64, got {seed}")
    return list(seeds)


def parse_results(answer: Any) -> list[Any]:
    return [from_wire(result) for result in answer["results"]]


def _delete_session(connection: ApiClient, session_id: str, owner: int) -> None:
    if os.getpid() != owner:  # a forked process must not close its parent's session
        return
    path = f"{API_PREFIX}/session/{session_id}"
    # A RemoteError usually means that the session is closed, as when an earlier reply was lost.
    with closing(connection), suppress(RemoteError):
        for timeout in CLOSE_TIMEOUTS:
            with suppress(RemoteUnreachableError):  # the server closes idle sessions anyway
                connection.request("DELETE", path, repeatable=True, timeout=timeout)
                break
