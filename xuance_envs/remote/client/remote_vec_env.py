"""Vectorized environment whose sub-environments run on an HTTP server."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.group.single_env import EnvDescription
from xuance_envs.engine.groups import Groups
from xuance_envs.engine.ledger import values_of
from xuance_envs.engine.saving import Ids, Saver
from xuance_envs.errors import StateError, counted
from xuance_envs.remote.client.api_client import ApiClient
from xuance_envs.remote.client.remote_driver import RemoteDriver, sendable
from xuance_envs.remote.client.remote_session import (
    CreatedEnvs,
    RemoteSession,
    checked_seeds,
)
from xuance_envs.remote.client.transport import Verify
from xuance_envs.state.env_states import EnvStates
from xuance_envs.vector_envs.arguments import checked_count, checked_seed
from xuance_envs.vector_envs.grouped import GroupedVecEnv
from xuance_envs.vector_envs.vector_env import StepResult

__all__ = ["RemoteVecEnv"]

logger = logging.getLogger("xuance_envs")


class RemoteVecEnv(GroupedVecEnv):
    """Vectorized environment on a server.

    It has the interface of :class:`~xuance_envs.vector_envs.vector_env.VecEnv` and sends one
    request per step. Infos, arguments and results may contain numbers, strings, bytes, arrays and
    collections of these. ``call``, ``get_attr`` and ``set_attr`` accept only names that the
    server's operator allows. The ``__cause__`` of an :class:`~xuance_envs.errors.EnvError` is set
    only if the environment raised a builtin exception.

    ``save_state`` returns handles: the server keeps a state until its handle is garbage-collected,
    or the session or the worker process ends. Only the object that saved a state can load it.

    :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.close` or garbage collection closes the
    session on the server.

    Args:
        base_url: the server's address, such as ``"http://127.0.0.1:8001"``.
        env_id: id of the environment; None if the server offers only one.
        num_envs: number of environments.
        user_token: the user's token; None if the server requires none.
        seed: environment i is created with seed ``seed + i``; None for no seed.
        env_kwargs: keyword arguments for each environment; the operator must allow their names.
        num_workers: worker processes on the server, which step the environments in parallel. The
            operator must allow more than one.
        copy: False to return read-only views, which the next step or reset overwrites.
        check_actions: True to check that every action is in its space. False has no effect if the
            server requires this check.
        timeout: seconds to wait for the reply to a request; may be infinite.
        share_frames: whether the server's status page may show rendered frames.
        verify: how to check the certificate of an ``https`` server: True uses the system's
            certificate authorities, False skips the check. For other authorities, give an SSL
            context, or the path to a file or folder of CA certificates.

    Raises:
        ValueError: ``num_envs`` is below 1, or the address, token, seed, ``timeout`` or ``verify``
            is invalid.
        TypeError: a keyword argument cannot be sent.
        EnvError: an environment could not be created.
        RemoteError: the server refuses a request or does not reply. Each cause has a derived class,
            such as :class:`~xuance_envs.errors.RemoteNotFoundError` for an unknown ``env_id``.
        ImportError: msgpack is not installed.

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
        num_workers: int = 1,
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
            "kwargs": sendable("construct", dict(env_kwargs or {})),
            "auto_reset": True,
        }
        if (workers := checked_count("num_workers", num_workers)) != 1:
            request["num_workers"] = workers  # which older servers refuse
        connection = ApiClient(base_url, user_token, timeout, verify)
        session = self._session = RemoteSession(connection, share_frames, type(self).__name__)
        try:
            created = session.request("create", request, CreatedEnvs.of)
            arrays = StepArrays.allocate(created.description.spaces, num_envs)
            driver = self._driver = RemoteDriver(session, created, arrays)
            groups = RemoteGroups(driver, created.description, arrays)
            check_actions = check_actions or created.checks_actions
            super().__init__(groups, copy=copy, check_actions=check_actions)
        except BaseException:
            session.close()
            raise
        logger.info("%s at %s", counted(self.num_envs, "environment"), session.server)

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
        self, driver: RemoteDriver, description: EnvDescription, arrays: StepArrays
    ) -> None:
        super().__init__([driver], description, arrays)
        self.saver = ServerSaver(self.ledger, self.info_collector)
        self._driver = driver

    @override
    def end(self, close_timeout: float | None = None) -> None:
        self._driver.close()


class ServerSaver(Saver):
    """Saver whose states stay on the server."""

    def _pack(self, command: str, ids: Ids, *arguments: Any) -> dict[int, Any]:
        return {0: self._ledger.drivers[0].pack(command, ids, *arguments)}

    @override
    def verify(self, ids: Ids) -> None:
        """Raise a StateError, because a server creates no environments for verification."""
        remedy = "call check_saving where the environments can be created"
        reason = f"verify=True is not supported for environments on a server: {remedy}"
        raise StateError(-1, "save_state", reason)

    @override
    def save(self, ids: Ids) -> EnvStates:
        return EnvStates(self._ledger.command(self._pack("save_states", ids), values_of), {})

    @override
    def load(self, state: EnvStates, ids: Ids, *, of_all: bool = False) -> StepInfos:
        return self.run_load(self._pack("load_states", ids, state), ids, of_all=of_all)

    @override
    def clone(
        self, sources: Ids, targets: Ids, fork_rng: bool, *, of_all: bool = False
    ) -> StepInfos:
        packed = self._pack("clone_states", targets, sources, fork_rng)
        return self.run_load(packed, targets, of_all=of_all)
