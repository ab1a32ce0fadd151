"""Vectorized environment whose sub-environments run on an HTTP server."""

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
from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.data.space_rows import ALL_ENVS, Index, SpaceRows
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.outcome import Outcome, OutcomeBuilder, Reset
from xuance_envs.engine.group.single_env import EnvDescription
from xuance_envs.engine.group.step_clock import StepTimes
from xuance_envs.engine.groups import Groups
from xuance_envs.remote.client_session import (
    ApiClient,
    RemoteSession,
    checked_count,
    checked_reply,
    checked_seeds,
)
from xuance_envs.remote.server_states import ServerSaver
from xuance_envs.remote.transport import Verify
from xuance_envs.remote.wire.arrays import array_from_wire
from xuance_envs.remote.wire.batches import batch_from_wire, batch_to_wire
from xuance_envs.remote.wire.infos import info_table_from_wire, infos_from_wire
from xuance_envs.remote.wire.nodes import WireError
from xuance_envs.remote.wire.spaces import reward_space_from_wire, space_from_wire
from xuance_envs.remote.wire.values import from_wire, to_wire
from xuance_envs.vector_envs.arguments import checked_seed
from xuance_envs.vector_envs.grouped import GroupedVecEnv
from xuance_envs.vector_envs.vector_env import StepResult

__all__ = ["RemoteDriver", "RemoteVecEnv"]

logger = logging.getLogger("xuance_envs")

_FLOAT = np.dtype(np.float64)
_BOOL = np.dtype(np.bool_)


class RemoteVecEnv(GroupedVecEnv):
    """Vectorized environment on a server.

    It follows the contract of every vec env of this package and sends one request per step.

    All Gymnasium spaces are supported. Infos, arguments and results may contain numbers, strings,
    bytes, arrays and collections of these. ``call``, ``get_attr`` and ``set_attr`` accept only
    names that the server's operator allows. An :class:`~xuance_envs.errors.EnvError` contains the
    text of the environment's exception; only a builtin exception becomes its ``__cause__``.

    ``save_state`` returns handles: the server keeps a state until its handle is garbage-collected,
    or the session or the worker process ends. Only the object that saved a state can load it, and
    a handle cannot be converted to bytes.

    :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.close` or garbage collection closes the
    session on the server.

    Args:
        base_url: the server's address, such as ``"http://127.0.0.1:8001"``.
        env_id: id of the environment; None if the server offers only one.
        num_envs: number of environments.
        user_token: the user's token; None if the server requires none.
        seed: environment i is created with seed ``seed + i``; None for no seed.
        env_kwargs: keyword arguments for each environment; the operator must allow their names.
        copy: whether returned arrays are copies. Otherwise they are read-only views that the next
            step overwrites.
        check_actions: whether to check every action against the action space. False has no effect
            if the server requires this check.
        timeout: seconds to wait for the reply to a request.
        share_frames: whether the server's status page may show rendered frames.
        verify: how to check the certificate of an ``https`` server: True uses the system's
            certificate authorities, False skips the check. A path to a file or folder of CA
            certificates or an SSL context replaces the system's authorities.

    Raises:
        ValueError: ``num_envs`` is below 1, or the address is invalid.
        TypeError: a keyword argument cannot be sent.
        EnvError: an environment could not be created.
        RemoteAuthenticationError: the token is missing or wrong.
        RemoteForbiddenError: the operator does not allow a keyword argument.
        RemoteNotFoundError: the server does not offer ``env_id``.
        RemoteLimitError: a limit on sessions or environments is reached.
        RemoteVersionError: the server uses a different version of the protocol.
        RemoteUnreachableError: the server does not reply.
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
            arrays = StepArrays.allocate(description.spaces, num_envs)
            driver = RemoteDriver(session, created, arrays)
            self._driver = driver
            groups = RemoteGroups(session, driver, description, arrays)
            check_actions = check_actions or created.checks_actions
            super().__init__(groups, copy=copy, check_actions=check_actions)
        except BaseException:
            session.close()
            raise
        logger.info("%d environments at %s", self.num_envs, session.server)

    @override
    def step(self, actions: Any) -> StepResult:
        self._driver.blocking = True
        try:
            return super().step(actions)
        finally:
            self._driver.blocking = False


class RemoteGroups(Groups):
    """The environments of one session, as a single group."""

    def __init__(
        self,
        session: RemoteSession,
        driver: RemoteDriver,
        description: EnvDescription,
        arrays: StepArrays,
    ) -> None:
        super().__init__([driver], description, arrays)
        self.saver = ServerSaver(self.ledger, self.info_collector)
        self._session = session
        self._driver = driver

    @override
    def end(self, close_timeout: float | None = None) -> None:
        self._session.close()
        self._driver.close()


@dataclass(frozen=True)
class _CreatedEnvs:
    """Reply to a request that created environments."""

    episode_ids: list[str]
    description: EnvDescription
    checks_actions: bool

    @classmethod
    def of(cls, answer: Any) -> _CreatedEnvs:
        return cls(
            list(map(str, answer["episode_ids"])),
            EnvDescription(
                StepSpaces(
                    space_from_wire(answer["observation_space"]),
                    space_from_wire(answer["action_space"]),
                    reward_space_from_wire(answer),
                ),
                dict(from_wire(answer["metadata"])),
                from_wire(answer["render_mode"]),
                int(answer["max_episode_steps"]),
            ),
            bool(answer["checks_actions"]),
        )


def _sendable(command: str, value: Any) -> Any:
    try:
        if isinstance(value, dict):  # named arguments, not a value
            return {str(name): to_wire(item) for name, item in value.items()}
        return [to_wire(item) for item in value]
    except WireError as error:
        raise TypeError(
            f"an argument of {command!r} cannot be sent to the server: {error}"
        ) from None


class RemoteDriver(Driver):
    """Driver of environments on a server; see :class:`~xuance_envs.engine.driver.Driver`.

    A thread sends the requests, so that the main process is free between ``submit`` and ``result``.
    A ``blocking`` step does not use the thread. If the step is interrupted, the next call repeats
    the request with its sequence number, and the server executes the step only once.

    Args:
        session: session on the server.
        created: the created environments.
        arrays: arrays for the results of steps.

    Attributes:
        blocking: whether the next step is sent without the thread, because the main process waits
            for its result immediately.
        fds: descriptor of a socket that becomes readable when a reply arrives.
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
        # Signals a reply to code that waits for several drivers.
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

    # -- requests ---------------------------------------------------------------------

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

        def parse(answer: Any) -> Outcome:
            self._arrays.clear_results(places)
            return self._parse_reset(places, answer)

        return "vectorized_reset", message, parse

    def _pack_load(self, places: Sequence[int], operation: Mapping[str, Any]) -> Any:
        message = {"episode_ids": self._episode_ids_of(places), **operation}
        return "states", message, lambda answer: self._parse_reset(places, answer)

    def _episode_ids_of(self, places: Sequence[int]) -> list[str] | None:
        all_envs = list(places) == list(range(self.hi))
        return None if all_envs else [self._episodes[place] for place in places]

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
        # One statement without calls, so that an interrupt cannot split it.
        self._parse, self._wait_reply, self._result, self.tag = parse, resend, None, tag
        self._failed = False
        if not blocking:
            reply = self._thread.submit(send)
            reply.add_done_callback(self._wake)
            self._wait_reply = reply.result

    def _actions(self) -> Any:
        actions = self._arrays.actions
        return batch_to_wire(actions.layout.space, actions.view())

    def _wake(self, _: Future[Any]) -> None:
        with suppress(OSError):  # closed in the meantime
            self._wake_writer.send(b"!")

    # -- replies ----------------------------------------------------------------------

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
                with suppress(OSError):  # usually empty
                    self._wake_reader.recv(64)
            with checked_reply(self._session.server):
                self._result = self._parse(answer)
            self._wait_reply = None
        return self._result

    @override
    def discard(self) -> Any:
        # Raising the error again would add the current frames to its traceback, which keeps them
        # in memory.
        return None if self._failed else super().discard()

    @override
    def times(self) -> StepTimes:
        return StepTimes(**self._session.step_times())

    def close(self) -> None:
        """Shut down the thread after its current request."""
        self._thread.shutdown(wait=False)
        self._close_wake()

    def _parse_step(self, answer: Any) -> Outcome:
        arrays, shape = self._arrays, (self.hi,)
        self._outcomes.begin()
        self._write_observations(arrays.observations, answer["observations"], ALL_ENVS, self.hi)
        arrays.rewards[:] = array_from_wire(answer["rewards"], _FLOAT, arrays.rewards.shape)
        arrays.terminated[:] = array_from_wire(answer["terminated"], _BOOL, shape)
        arrays.truncated[:] = array_from_wire(answer["truncated"], _BOOL, shape)
        self._write_infos(self._infos, range(self.hi), answer["infos"])
        resets = answer["resets"]
        ended = resets["environments"]
        if ended != (arrays.terminated | arrays.truncated).nonzero()[0].tolist():
            raise WireError("the reply's resets do not match the episodes that ended")
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
            raise WireError(f"expected a list of {len(masks.parts)} arrays of action masks")
        for target, part in zip(masks.parts, parts, strict=True):
            target[:] = array_from_wire(part, _BOOL, target.shape)

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
