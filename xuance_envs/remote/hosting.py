"""The environments of one request to create some: a worker process, and the thread that drives it.

What it guarantees:

- The event loop waits for nothing: the worker is started, asked and closed in the thread.
- A command ends within its bound. Where the environments do not, their process is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.space_layout import SpaceLayout
from xuance_envs.engine.space_rows import EVERY, SpaceRows
from xuance_envs.errors import EnvError, WorkerDiedError, WorkerTimeoutError
from xuance_envs.remote.failures import RefusedError
from xuance_envs.remote.hosted_env import HostedFunction
from xuance_envs.remote.metrics import Metrics
from xuance_envs.remote.settings import Settings
from xuance_envs.remote.wire import WireError, from_wire, to_wire
from xuance_envs.remote.wire_spaces import batch_from_wire, batch_to_wire, space_to_wire, stack
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv

__all__ = ["Host", "Wanted"]

T = TypeVar("T")


class _HostedVecEnv(SubprocVecEnv):
    """Environments in one worker, with what only their host asks for."""

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._workers[0].pid

    @property
    def full_rewards(self) -> NDArray[np.float64]:
        """The last step's rewards as the environments gave them; valid until the next step."""
        return self._arrays.rewards


@dataclass(frozen=True)
class Wanted:
    """The environments a client asks for.

    Attributes:
        functions: what makes them.
        seed: the first one's ``env_seed``, the others' being counted up; None for none.
        auto_reset: whether they are stepped together, as a vector environment steps them;
            otherwise each repeats its action, and is reset when the client says so.
    """

    functions: Sequence[Callable[..., Any]]
    seed: int | None
    auto_reset: bool


class Host:
    """Environments of one session that were created together. Made by :meth:`create`.

    Commands are run one after the other, by the one who made it.

    Attributes:
        auto_reset: whether they are stepped together, and reset by themselves.
        num_envs: how many they are.
        description: their spaces and other properties, as part of a message.
        frame: the last picture rendered of one of them; None where there is none.
    """

    def __init__(self, wanted: Wanted, settings: Settings, metrics: Metrics) -> None:
        self.auto_reset = wanted.auto_reset
        self.num_envs = len(wanted.functions)
        self.description: dict[str, Any] = {}
        self.frame: NDArray[np.uint8] | None = None
        self._limits = settings.limits
        self._context = settings.context
        self._metrics = metrics
        self._vec_env: _HostedVecEnv | None = None
        self._busy = False
        self._overdue = False
        self._thread = ThreadPoolExecutor(1, "xuance_envs-host")

    @classmethod
    async def create(cls, wanted: Wanted, settings: Settings, metrics: Metrics) -> Host:
        """Starts the worker, and has it make the environments.

        Raises:
            EnvError: an environment could not be made.
            WorkerDiedError: the worker ended while it made them.
            WorkerTimeoutError: it took too long.
            RuntimeError: their spaces differ.
            RefusedError: their spaces cannot travel.
        """
        host = cls(wanted, settings, metrics)
        loop = asyncio.get_running_loop()
        started = loop.run_in_executor(host._thread, host._start, wanted)
        try:
            await asyncio.shield(started)
        except asyncio.CancelledError:
            started.add_done_callback(lambda _: host._thread.submit(host._close))
            raise
        except BaseException:
            await host.close()
            raise
        return host

    def _start(self, wanted: Wanted) -> None:
        functions = [
            HostedFunction(function, index, not wanted.auto_reset, self._limits.memory)
            for index, function in enumerate(wanted.functions)
        ]
        vec_env = self._vec_env = _HostedVecEnv(
            functions,
            env_seed=wanted.seed,
            in_series=len(functions),
            context=self._context,
            copy=False,
            start_timeout=self._limits.start,
            pin_workers=False,
        )
        try:
            spaces = space_to_wire(vec_env.observation_space), space_to_wire(vec_env.action_space)
        except WireError as error:
            raise RefusedError(
                409, "space", f"these environments cannot be hosted: {error}"
            ) from None
        self._layout = SpaceLayout(vec_env.observation_space)
        self.description = {
            "observation_space": spaces[0],
            "action_space": spaces[1],
            "metadata": to_wire(_what_travels(vec_env.metadata)),
            "render_mode": to_wire(vec_env.render_mode),
            "max_episode_steps": int(vec_env.max_episode_steps),
        }

    async def run(self, command: Callable[[_HostedVecEnv], T], name: str) -> T:
        """Runs something in the environments' thread, within the bound for a request.

        Args:
            command: what to do with the environments.
            name: what it is called in an error.

        Raises:
            WorkerTimeoutError: it took too long; the environments' process is gone then.
        """
        vec_env = self._vec_env
        assert vec_env is not None
        loop = asyncio.get_running_loop()
        watch = loop.call_later(
            self._limits.request, self._kill, vec_env.pid if not vec_env.closed else 0
        )
        self._busy = True
        try:
            return await loop.run_in_executor(self._thread, command, vec_env)
        except WorkerDiedError as error:
            if not self._overdue:
                raise
            raise WorkerTimeoutError(
                error.env_indices, error.pid, self._limits.request, name
            ) from None
        finally:
            self._busy = False
            watch.cancel()

    def _kill(self, pid: int) -> None:
        # The process is nobody else's: it is waited for by the thread that is waiting for it now.
        if pid and self._busy:
            self._overdue = True
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def close(self) -> None:
        """Closes the environments and ends their process; again, it does nothing."""
        if self._busy and self._vec_env is not None and not self._vec_env.closed:
            self._kill(self._vec_env.pid)
        with suppress(RuntimeError):  # the thread has been told to end already
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        if self._vec_env is not None:
            self._vec_env.close()

    # -- commands, run in the thread --------------------------------------------------

    def reset(
        self,
        vec_env: SubprocVecEnv,
        envs: Sequence[int],
        seed: int | Sequence[int | None] | None,
        options: dict[str, Any] | None,
    ) -> dict[str, Any]:
        """Resets some environments; the answer to the request."""
        everything = list(envs) == list(range(self.num_envs))
        observations, infos = vec_env.reset(
            seed=seed, options=options, env_ids=None if everything else envs
        )
        return {
            "observations": batch_to_wire(vec_env.observation_space, observations),
            "infos": _infos_to_wire(envs, infos, "reset"),
        }

    def step(self, vec_env: _HostedVecEnv, actions: Any) -> dict[str, Any]:
        """Steps every environment once; the answer to the request."""
        batch = batch_from_wire(vec_env.action_space, actions, self.num_envs)
        start = perf_counter()
        observations, _, terminated, truncated, infos = vec_env.step(batch)
        self._metrics.count_steps(self.num_envs, perf_counter() - start)
        ended = (terminated | truncated).nonzero()[0].tolist()
        starts = [(infos[i].pop("reset_obs"), infos[i].pop("reset_info")) for i in ended]
        space = vec_env.observation_space
        return {
            "observations": batch_to_wire(space, observations),
            "rewards": vec_env.full_rewards,
            "terminated": terminated,
            "truncated": truncated,
            "infos": _infos_to_wire(range(self.num_envs), infos, "step"),
            "resets": {
                "episode_ids": ended,
                "observations": batch_to_wire(space, stack(space, [obs for obs, _ in starts]))
                if ended
                else None,
                "infos": _infos_to_wire(ended, [info for _, info in starts], "reset"),
            },
        }

    def repeat(
        self, vec_env: SubprocVecEnv, envs: Sequence[int], actions: Any, times: int
    ) -> dict[str, Any]:
        """Has some environments repeat their actions; the answer to the request."""
        batch = batch_from_wire(vec_env.action_space, actions, len(envs))
        action_of = dict(zip(envs, _single_actions(vec_env, batch, len(envs)), strict=True))
        start = perf_counter()
        results = vec_env.call("repeat", action_of, times, env_ids=envs)
        lengths = [result.steps for result in results]
        self._metrics.count_steps(sum(lengths), perf_counter() - start)
        space = vec_env.observation_space
        return {
            "observations": [batch_to_wire(space, result.observations) for result in results],
            "lengths": np.maximum(lengths, 1),
            "rewards": np.array([result.reward for result in results], np.float64),
            "terminated": np.array([result.terminated for result in results]),
            "truncated": np.array([result.truncated for result in results]),
            "infos": _infos_to_wire(envs, [result.info for result in results], "step"),
        }

    def reach(self, vec_env: SubprocVecEnv, envs: Sequence[int], request: Any) -> dict[str, Any]:
        """Calls, reads, sets or renders some environments; the answer to the request."""
        results: Sequence[Any]
        if request.operation == "render":
            results = vec_env.render(from_wire(request.mode), envs)
            self._keep_frame(results)
        elif request.operation == "get_attr":
            results = vec_env.get_attr(request.name, envs)
        elif request.operation == "set_attr":
            vec_env.set_attr(request.name, [from_wire(value) for value in request.values], envs)
            results = [None] * len(envs)
        else:
            args = [from_wire(argument) for argument in request.args]
            kwargs = {name: from_wire(value) for name, value in request.kwargs.items()}
            results = vec_env.call(request.name, *args, env_ids=envs, **kwargs)
        return {"results": _each_to_wire(envs, results, request.operation, "what it returned")}

    def reply_bytes(self, count: int) -> int:
        """About how large so many observations are in a reply, objects among them aside."""
        each = sum(
            int(np.prod(leaf.shape, dtype=np.int64)) * leaf.dtype.itemsize
            for leaf in self._layout.leaves
            if leaf.dtype is not None
        )
        return each * count

    def _keep_frame(self, frames: Sequence[Any]) -> None:
        for frame in frames:
            if (
                isinstance(frame, np.ndarray)
                and frame.dtype == np.uint8
                and frame.ndim == 3
                and frame.shape[2] == 3
                and 0 < frame.size <= 4 * 2**20
            ):
                self.frame = frame
                return


def _single_actions(vec_env: SubprocVecEnv, batch: Any, count: int) -> list[Any]:
    """The actions of a batch, in the form environments are given them."""
    layout = SpaceLayout(vec_env.action_space)
    rows = SpaceRows.allocate(layout, count)
    rows.put(batch, EVERY, count)
    return rows.reader()()


def _infos_to_wire(envs: Sequence[int], infos: Any, command: str) -> list[Any]:
    return _each_to_wire(envs, infos, command, "its info")


def _each_to_wire(envs: Sequence[int], values: Any, command: str, what: str) -> list[Any]:
    """One value per environment as part of a message, naming the environment whose cannot be."""
    nodes = []
    for env, value in zip(envs, values, strict=True):
        try:
            nodes.append(to_wire(value))
        except WireError as error:
            raise EnvError(env, command, f"{what} cannot be sent: {error}") from None
    return nodes


def _what_travels(metadata: Mapping[str, Any]) -> dict[str, Any]:
    travels = {}
    for key, value in metadata.items():
        with suppress(WireError):
            to_wire(value)
            travels[key] = value
    return travels
