"""Environments that a client created together: their worker process, and how it is waited for.

What it guarantees:

- The event loop is never blocked: what may take long is done in a thread, and a step is waited
  for as any other descriptor is.
- A command ends within its bound. Where the environments do not, their process is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.errors import WorkerDiedError
from xuance_envs.remote import commands
from xuance_envs.remote.failures import RefusedError, no_session
from xuance_envs.remote.hosted_vec_env import HostedVecEnv
from xuance_envs.remote.metrics import Metrics
from xuance_envs.remote.repeating_env import HostedFunction
from xuance_envs.remote.settings import Settings
from xuance_envs.remote.wire.batches import batch_from_wire
from xuance_envs.remote.wire.forms import Form, dumps
from xuance_envs.remote.wire.nodes import WireError
from xuance_envs.remote.wire.values import to_wire

__all__ = ["Host", "Wanted"]

T = TypeVar("T")

PATIENCE = 5.0
"""Seconds that a command has to end when the environments are to be closed."""

QUICK = 256 * 2**10
"""Bytes of observations up to which a step's answer is written without a thread."""


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
    """Environments of one session that were created together, as :meth:`create` makes them.

    One command is run at a time; the session sees to that.

    Args:
        wanted: the environments.
        settings: the server's.
        metrics: where steps are counted.
        thread: of its own; it is in this one, because its worker takes long to start.

    Attributes:
        auto_reset: whether they are stepped together, and reset by themselves.
        num_envs: how many they are.
        description: their spaces and other properties, as part of a message.
        frame: the last picture rendered of one of them; None where there is none.
    """

    def __init__(
        self, wanted: Wanted, settings: Settings, metrics: Metrics, thread: ThreadPoolExecutor
    ) -> None:
        self.auto_reset = wanted.auto_reset
        self.num_envs = len(wanted.functions)
        self.frame: NDArray[np.uint8] | None = None
        self._limits = limits = settings.limits
        self._metrics = metrics
        self._thread = thread
        self._running: Future[Any] | None = None
        self._current: asyncio.Future[None] | None = None
        self._closing = False
        functions = [
            HostedFunction(function, index, not wanted.auto_reset, limits.memory)
            for index, function in enumerate(wanted.functions)
        ]
        self._vec_env = HostedVecEnv(
            functions,
            wanted.seed,
            settings.context,
            step_timeout=limits.request,
            start_timeout=limits.start,
        )
        try:
            self.description = commands.describe(self._vec_env)
        except WireError as error:
            self.end()
            raise RefusedError(409, "space", f"these cannot be hosted: {error}") from None
        self._observation_bytes = sum(
            int(np.prod(leaf.shape, dtype=np.int64)) * leaf.dtype.itemsize
            for leaf in SpaceLayout(self._vec_env.observation_space).leaves
            if leaf.dtype is not None
        )

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
        thread = ThreadPoolExecutor(1, "xuance_envs-host")
        created = thread.submit(cls, wanted, settings, metrics, thread)
        try:
            return await asyncio.shield(asyncio.wrap_future(created))
        except BaseException:
            thread.submit(_end_unwanted, created)
            thread.shutdown(wait=False)
            raise

    async def close(self) -> None:
        """Closes the environments and ends their process; again, it does nothing."""
        if self._closing:
            return
        self._closing = True
        if self._current is not None:
            await asyncio.wait({self._current}, timeout=PATIENCE)
        running = self._running is not None and not self._running.done()
        if running or self._vec_env.waiting:
            self._kill()  # also where nobody waits for it any more
        if self._current is not None:  # descriptors must not be closed while they are waited for
            await asyncio.wait({self._current}, timeout=self._limits.request)
        await asyncio.get_running_loop().run_in_executor(self._thread, self.end)
        self._thread.shutdown(wait=False)

    def end(self) -> None:
        """Ends the environments and their process; in its thread, because that takes a while."""
        self._vec_env.close()
        self._vec_env.end_worker()

    def times(self) -> dict[str, Any]:
        """How long steps take, as part of a message.

        Raises:
            RefusedError: the environments are closed.
        """
        if self._vec_env.closed:
            raise RefusedError(409, "closed", "these environments failed before, and are closed")
        return {name: to_wire(value) for name, value in vars(self._vec_env.times).items()}

    # -- commands ---------------------------------------------------------------------

    async def reset(
        self,
        envs: Sequence[int],
        seed: int | Sequence[int | None] | None,
        options: dict[str, Any] | None,
        form: Form,
    ) -> bytes:
        """Resets some environments; the answer as it is sent."""
        return await self._in_thread(
            lambda: dumps(commands.reset(self._vec_env, envs, seed, options), form)
        )

    async def step(self, actions: Any, form: Form) -> bytes:
        """Steps every environment once; the answer as it is sent."""
        vec_env = self._vec_env

        def written() -> bytes:
            result = vec_env.step_wait()
            space, rewards = vec_env.observation_space, vec_env.full_rewards
            answer = commands.step_answer(space, result, rewards, vec_env.first_observations)
            return dumps(answer | commands.masks_of(vec_env), form)

        batch = batch_from_wire(vec_env.action_space, actions, self.num_envs)
        start = perf_counter()
        with self._current_command():
            vec_env.step_async(batch)
            answered = await self._woken()
            self._metrics.count_steps(self.num_envs, perf_counter() - start)
            quick = self.observation_bytes(self.num_envs) <= QUICK and form is Form.MSGPACK
            if not answered or not quick:
                return await self._by_thread(written)
            try:
                return written()
            except Exception:
                await self._by_thread(self._end_if_closed)
                raise

    async def repeat(self, envs: Sequence[int], actions: Any, times: int, form: Form) -> bytes:
        """Has some environments repeat their actions; the answer as it is sent."""

        def act() -> bytes:
            start = perf_counter()
            answer, steps = commands.repeat(self._vec_env, envs, actions, times)
            self._metrics.count_steps(steps, perf_counter() - start)
            return dumps(answer, form)

        return await self._in_thread(act)

    async def reach(self, envs: Sequence[int], form: Form, **request: Any) -> bytes:
        """Calls, reads, sets or renders some environments; the answer as it is sent."""

        def act() -> bytes:
            answer, results = commands.reach(self._vec_env, envs, **request)
            if request["operation"] == "render":
                self.frame = next(filter(_is_picture, results), self.frame)
            return dumps(answer, form)

        return await self._in_thread(act)

    def observation_bytes(self, count: int) -> int:
        """How large so many observations are, objects among them aside."""
        return self._observation_bytes * count

    # -- waiting ----------------------------------------------------------------------

    async def _in_thread(self, act: Callable[[], T]) -> T:
        with self._current_command():
            return await self._by_thread(act)

    async def _by_thread(self, act: Callable[[], T]) -> T:
        def act_and_end() -> T:
            try:
                return act()
            finally:
                self._end_if_closed()

        running = self._thread.submit(act_and_end)
        self._running = running
        return await asyncio.wrap_future(running)

    def _end_if_closed(self) -> None:
        if self._vec_env.closed:  # after an error
            self._vec_env.end_worker()

    async def _woken(self) -> bool:
        """Waits until the worker has answered, or has ended, or should have by now."""
        loop = asyncio.get_running_loop()
        woken = loop.create_future()

        def wake(answered: bool) -> None:
            if not woken.done():
                woken.set_result(answered)

        wakers = self._vec_env.wakers
        late = loop.call_later(self._limits.request, wake, False)
        for fd in wakers:
            loop.add_reader(fd, wake, True)
        try:
            return bool(await woken)
        finally:
            late.cancel()
            for fd in wakers:
                loop.remove_reader(fd)

    @contextmanager
    def _current_command(self) -> Iterator[None]:
        """Lets :meth:`close` wait for the end of what is being done."""
        done = self._current = asyncio.get_running_loop().create_future()
        try:
            yield
        except WorkerDiedError:
            if self._closing:
                raise no_session() from None
            raise
        finally:
            done.set_result(None)
            self._current = None

    def _kill(self) -> None:
        # The process is ours: whoever waits for its answer is who will notice its end.
        if (pid := self._vec_env.pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _end_unwanted(created: Future[Host]) -> None:
    """Ends a host that nobody waits for any more, now that it is there, if it ever came to be."""
    if created.exception() is None:
        created.result().end()


def _is_picture(frame: Any) -> bool:
    return (
        isinstance(frame, np.ndarray)
        and frame.dtype == np.uint8
        and frame.ndim == 3
        and frame.shape[2] == 3
        and 0 < frame.size <= 4 * 2**20
    )
