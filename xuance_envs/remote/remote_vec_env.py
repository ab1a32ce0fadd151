"""Environments on a server as a vector environment: the contract of section "step" over HTTP."""

from __future__ import annotations

import logging
import socket
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
from gymnasium import Space

from xuance_envs._override import override
from xuance_envs.engine.data.info_writer import InfoWriter
from xuance_envs.engine.data.space_rows import ALL_ENVS, Index, SpaceRows
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.outcome import Outcome, OutcomeBuilder, Reset
from xuance_envs.engine.group.single_env import EnvDescription
from xuance_envs.engine.group.step_clock import StepTimes
from xuance_envs.engine.groups import Groups
from xuance_envs.remote import server_states
from xuance_envs.remote.client_session import (
    ApiClient,
    RemoteSession,
    Verify,
    checked_count,
    checked_reply,
    checked_seeds,
)
from xuance_envs.remote.wire.arrays import array_from_wire
from xuance_envs.remote.wire.batches import batch_from_wire, batch_to_wire
from xuance_envs.remote.wire.infos import info_table_from_wire, infos_from_wire
from xuance_envs.remote.wire.nodes import WireError
from xuance_envs.remote.wire.spaces import space_from_wire
from xuance_envs.remote.wire.values import from_wire, to_wire
from xuance_envs.vector_envs.arguments import checked_seed
from xuance_envs.vector_envs.grouped import GroupedVecEnv
from xuance_envs.vector_envs.vector_env import StepResult

__all__ = ["RemoteDriver", "RemoteVecEnv"]

logger = logging.getLogger("xuance_envs")

_FLOAT = np.dtype(np.float64)
_BOOL = np.dtype(np.bool_)


class RemoteVecEnv(GroupedVecEnv):
    """Many environments on a server, stepped as one.

    It does what every vector environment of this package does, with one request per step, and
    with values that can travel: any of Gymnasium's spaces, and infos, arguments and results of
    numbers, strings, arrays and collections of them. ``call``, ``get_attr`` and ``set_attr`` reach
    the names that the server's operator allows. Of the exceptions environments raise only
    Python's own can travel: for any other an :class:`~xuance_envs.errors.EnvError` has its text
    and no ``__cause__``. What ``save_state`` returns is kept by the server, within limits, until
    nobody holds it any more: it can be loaded by this object only, and has no bytes.

    The session on the server is freed by
    :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.close`, or when this object is forgotten.

    Args:
        base_url: the server's address, as ``"http://127.0.0.1:8001"``.
        env_id: which of its environments; None for the only one it has.
        num_envs: how many.
        user_token: what the server knows its user by; None where it wants no token.
        seed: environment i is made with the seed ``seed + i``; None for no seed.
        env_kwargs: keyword arguments for each environment, as far as the operator allows them.
        copy: whether the arrays returned belong to the caller; otherwise they are read-only
            views that the next step overwrites.
        check_actions: whether every action is checked to be in its space; it is in any case where
            the server does so.
        timeout: seconds within which the server has to answer a request.
        share_frames: whether the server's status page may show what is rendered.
        verify: how the certificate of an ``https`` server is checked: by the authorities everybody
            trusts, by those in a file or folder of certificates or an SSL context, or not at all.

    Raises:
        ValueError: ``num_envs`` is below 1, or the address is none.
        TypeError: a keyword argument cannot travel.
        EnvError: an environment could not be made.
        RemoteAuthenticationError: the server does not know the token.
        RemoteForbiddenError: its operator does not allow a keyword argument.
        RemoteNotFoundError: it has no such environment.
        RemoteLimitError: it allows no more sessions or environments.
        RemoteVersionError: it speaks another version of the protocol.
        RemoteUnreachableError: it does not answer.
        ImportError: httpx, httptools or msgpack is not installed.

    Example:
        >>> from xuance_envs import RemoteVecEnv
        >>> from xuance_envs.remote.server import Server
        >>> from xuance_envs.remote.settings import Catalogue, Settings
        >>> with Server(Settings(Catalogue.of_ids(["CartPole-v1"])), port=0) as server:
        ...     with RemoteVecEnv(server.url, "CartPole-v1", 3, seed=0) as envs:
        ...         _ = envs.reset()
        ...         obs, rewards, terminated, truncated, infos = envs.step([0, 1, 0])
        >>> obs.shape, rewards
        ((3, 4), array([1., 1., 1.], dtype=float32))
    """

    def __init__(
        self,
        base_url: str,
        env_id: str | None,
        num_envs: int,
        *,
        user_token: str | None = None,
        seed: int | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        copy: bool = True,
        check_actions: bool = False,
        timeout: float = 120.0,
        share_frames: bool = False,
        verify: Verify = True,
    ) -> None:
        num_envs = checked_count("num_envs", num_envs)
        request = {
            "env_id": env_id,
            "num_envs": num_envs,
            "seed": None if seed is None else checked_seeds([checked_seed("seed", seed)])[0],
            "kwargs": _sendable("construct", dict(env_kwargs or {})),
            "auto_reset": True,
        }
        connection = ApiClient(base_url, user_token, timeout, verify)
        try:
            connection.check_version()
            session = RemoteSession(connection, share_frames, type(self).__name__)
        except BaseException:
            connection.close()
            raise
        self._session = session
        try:
            created = session.request("create", request, _CreatedEnvs.of)
            description = created.description
            arrays = StepArrays.allocate(
                description.observation_space, description.action_space, num_envs
            )
            driver = RemoteDriver(session, created, arrays)
            self._driver = driver
            groups = RemoteGroups(session, driver, description, arrays)
            check_actions = check_actions or created.checks_actions
            super().__init__(groups, copy=copy, check_actions=check_actions)
        except BaseException:
            session.close()
            raise
        logger.info("%d environments at %s", self.num_envs, session.server)

    _state_operations = server_states

    @override
    def step(self, actions: Any) -> StepResult:
        self._driver.blocking = True
        try:
            return super().step(actions)
        finally:
            self._driver.blocking = False


class RemoteGroups(Groups):
    """All environments of a session.

    Args:
        session: on the server.
        driver: of the environments.
        description: of the first one.
        arrays: what the answers are written into.
    """

    def __init__(
        self,
        session: RemoteSession,
        driver: RemoteDriver,
        description: EnvDescription,
        arrays: StepArrays,
    ) -> None:
        super().__init__([driver], description, arrays)
        self._session = session
        self._driver = driver

    @override
    def end(self, close_timeout: float | None = None) -> None:
        self._session.close()
        self._driver.close()


@dataclass(frozen=True)
class _CreatedEnvs:
    """The environments a server has made."""

    episode_ids: list[str]
    description: EnvDescription
    checks_actions: bool

    @classmethod
    def of(cls, answer: Any) -> _CreatedEnvs:
        """As an answer has it."""
        return cls(
            list(map(str, answer["episode_ids"])),
            EnvDescription(
                space_from_wire(answer["observation_space"]),
                space_from_wire(answer["action_space"]),
                dict(from_wire(answer["metadata"])),
                from_wire(answer["render_mode"]),
                int(answer["max_episode_steps"]),
            ),
            bool(answer["checks_actions"]),
        )


def _sendable(command: str, value: Any) -> Any:
    try:
        if isinstance(value, dict):  # of the request's own
            return {str(name): to_wire(item) for name, item in value.items()}
        return [to_wire(item) for item in value]
    except WireError as error:
        raise TypeError(
            f"what {command!r} was given cannot be sent to the server: {error}"
        ) from None


class RemoteDriver(Driver):
    """A group of environments on a server; see :class:`~xuance_envs.engine.driver.Driver`.

    Requests are sent from a thread of its own, so that the caller is free between asking and
    waiting. A step whose result is waited for ``blocking`` does without the thread: should an
    interrupt hit it, it is sent again with its number, and the server does it once.

    Args:
        session: in which the environments are.
        made: the environments.
        arrays: what the answers are written into.

    Attributes:
        blocking: whether the next step is waited for at once.
        fds: of a socket that turns readable when an answer has come.
    """

    tag = 0
    fds: tuple[int, ...] = ()

    def __init__(self, session: RemoteSession, created: _CreatedEnvs, arrays: StepArrays) -> None:
        super().__init__(0, len(created.episode_ids))
        self._session = session
        self._episodes = created.episode_ids
        self._space: Space[Any] = created.description.observation_space
        self._arrays = arrays
        self._infos = InfoWriter(arrays.infos, lambda value: value)
        self._reset_infos = InfoWriter(arrays.reset_infos, lambda value: value)
        self._outcomes = OutcomeBuilder(self._infos, self._reset_infos)
        self._thread = ThreadPoolExecutor(1, "xuance_envs-remote")
        self.blocking = False
        # Says when an answer has come, to whoever waits for several drivers.
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._close_wake = weakref.finalize(
            self, _close_sockets, self._wake_reader, self._wake_writer
        )
        self.fds = (self._wake_reader.fileno(),)
        self._wait_reply: Callable[[float | None], Any] | None = None
        self._parse: Callable[[Any], Any] = lambda answer: answer
        self._result: Any = None
        self._failed = False

    # -- asking -----------------------------------------------------------------------

    @override
    def pack_actions(self, actions: list[list[Any]]) -> Any:
        return self._actions()

    @override
    def submit_step(self, tag: int, actions: Any) -> None:
        message = {"actions": self._actions() if actions is None else actions}
        self._send(tag, "vectorized_step", message, self._parse_step)

    @override
    def pack(self, command: str, *arguments: Any) -> Any:
        if command == "reset":
            return self._pack_reset(*arguments)
        places, *rest = arguments
        message: dict[str, Any]
        if command == "save_states":
            message = {"operation": "save", "episode_ids": self._episode_ids_of(places)}
            return "states", message, self._session.states.parse_handles
        if command == "load_states":
            numbers = self._session.states.numbers(rest[0])
            return self._pack_load(places, {"operation": "load", "states": numbers})
        if command == "clone_states":
            sources = {"sources": self._episode_ids_of(rest[0]), "fork_rng": rest[1]}
            return self._pack_load(places, {"operation": "clone", **sources})
        message = {"operation": command, "episode_ids": self._episode_ids_of(places)}
        if command == "watch_masks":
            message["operation"] = "action_masks"
        elif command == "render":
            message["mode"] = rest[0]
        else:
            message["name"] = rest[0]
        if command == "call":
            message["args"] = _sendable(command, list(rest[1]))
            message["kwargs"] = _sendable(command, dict(rest[2]))
        elif command == "set_attr":
            message["values"] = _sendable(command, list(rest[1]))
        return "call", message, _parse_results

    def _pack_reset(self, resets: Sequence[Reset]) -> Any:
        places = [place for place, *_ in resets]
        options = resets[0][2]
        message = {
            "episode_ids": self._episode_ids_of(places),
            "seed": checked_seeds([seed for _, seed, _ in resets]),
            "options": None if options is None else _sendable("reset", options),
        }
        return "vectorized_reset", message, lambda answer: self._parse_reset(places, answer)

    def _pack_load(self, places: Sequence[int], operation: Mapping[str, Any]) -> Any:
        message = {"episode_ids": self._episode_ids_of(places), **operation}
        return "states", message, lambda answer: self._parse_reset(places, answer)

    def _episode_ids_of(self, places: Sequence[int]) -> list[str] | None:
        """The episodes at some places; None for all of them."""
        everything = list(places) == list(range(self.hi))
        return None if everything else [self._episodes[place] for place in places]

    @override
    def submit(self, tag: int, packed: Any) -> None:
        self._send(tag, *packed)

    def _send(
        self, tag: int, path: str, message: Mapping[str, Any], parse: Callable[[Any], Any]
    ) -> None:
        self.discard()
        send = partial(self._session.send, path, self._session.next_request(message))

        def resend(timeout: float | None) -> Any:
            return send() if blocking else self._thread.submit(send).result(timeout)

        blocking = self.blocking
        # No call in between, so that an interrupt finds either all of it or nothing.
        self._parse, self._wait_reply, self._result, self.tag = parse, resend, None, tag
        self._failed = False
        if not blocking:
            answer = self._thread.submit(send)
            answer.add_done_callback(self._wake)
            self._wait_reply = answer.result

    def _actions(self) -> Any:
        actions = self._arrays.actions
        return batch_to_wire(actions.layout.space, actions.view())

    def _wake(self, _: Future[Any]) -> None:
        with suppress(OSError):  # closed meanwhile
            self._wake_writer.send(b"!")

    # -- answers ----------------------------------------------------------------------

    @override
    def result(self, deadline: float | None = None) -> Any:
        if self._wait_reply is not None:
            timeout = None if deadline is None else max(0.0, deadline - monotonic())
            try:
                answer = self._wait_reply(timeout)
            except FutureTimeoutError:
                raise TimeoutError from None
            except Exception:
                self._failed = True
                raise
            finally:
                with suppress(OSError):  # nothing there, most often
                    self._wake_reader.recv(64)
            with checked_reply(self._session.server):
                self._result = self._parse(answer)
            self._wait_reply = None
        return self._result

    @override
    def discard(self) -> Any:
        # An error that is raised once more would hold on to all who call now, and what they have.
        return None if self._failed else super().discard()

    @override
    def times(self) -> StepTimes:
        return StepTimes(**self._session.step_times())

    def close(self) -> None:
        """Ends the thread, once it has its answer."""
        self._thread.shutdown(wait=False)
        self._close_wake()

    def _parse_step(self, answer: Any) -> Outcome:
        arrays, shape = self._arrays, (self.hi,)
        self._outcomes.begin()
        self._write_observations(arrays.observations, answer["observations"], ALL_ENVS, self.hi)
        arrays.rewards[:] = array_from_wire(answer["rewards"], _FLOAT, shape)
        arrays.terminated[:] = array_from_wire(answer["terminated"], _BOOL, shape)
        arrays.truncated[:] = array_from_wire(answer["truncated"], _BOOL, shape)
        self._write_infos(self._infos, range(self.hi), answer["infos"])
        resets = answer["resets"]
        ended = resets["environments"]
        if ended != (arrays.terminated | arrays.truncated).nonzero()[0].tolist():
            raise WireError("resets of other episodes than those that ended")
        self._parse_masks(answer)
        if ended:
            at = np.array(ended)
            self._write_observations(
                arrays.reset_observations, resets["observations"], at, len(ended)
            )
            self._write_infos(self._reset_infos, ended, resets["infos"])
        return self._outcomes.outcome(bool(ended))

    def _parse_reset(self, places: Sequence[int], answer: Any) -> Outcome:
        self._outcomes.begin()
        at = np.array(places)
        self._write_observations(self._arrays.observations, answer["observations"], at, len(places))
        self._write_infos(self._infos, places, answer["infos"])
        self._parse_masks(answer)
        return self._outcomes.outcome(ended=False)

    def _parse_masks(self, answer: Any) -> None:
        masks = self._arrays.masks
        if masks is None or "masks" not in answer:
            return
        parts = answer["masks"]
        if not isinstance(parts, list) or len(parts) != len(masks.parts):
            raise WireError(f"expected masks of actions in {len(masks.parts)} parts")
        for mine, part in zip(masks.parts, parts, strict=True):
            mine[:] = array_from_wire(part, _BOOL, mine.shape)

    def _write_observations(self, rows: SpaceRows, node: Any, at: Index, count: int) -> None:
        rows.put(batch_from_wire(self._space, node, count), at, count)

    def _write_infos(self, writer: InfoWriter, places: Sequence[int], node: Any) -> None:
        table = info_table_from_wire(node, len(places))
        if table is not None:
            writer.write_columns(places, table.columns)
            return
        for place, info in zip(places, infos_from_wire(node, len(places)), strict=True):
            writer.write(place, info)


def _close_sockets(*sockets: socket.socket) -> None:
    for each in sockets:
        each.close()


def _parse_results(answer: Any) -> list[Any]:
    return [from_wire(result) for result in answer["results"]]
