"""Environments that a client created together: their worker process, and how it is waited for.

What it guarantees:

- The event loop is never blocked: what may take long is done in a thread, and a step is waited
  for as any other descriptor is.
- A command ends within its bound. Where the environments do not, their process is killed.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.process.processes import Processes
from xuance_envs.errors import EnvError, WorkerDiedError, WorkerTimeoutError
from xuance_envs.multi_agent.record import ObservationRecord
from xuance_envs.remote import commands
from xuance_envs.remote.failures import RefusedError, no_session
from xuance_envs.remote.hosted_vec_env import HostedVecEnv, Wanted
from xuance_envs.remote.metrics import Metrics
from xuance_envs.remote.repeating_env import HostedFunction
from xuance_envs.remote.serving.admission import Tally
from xuance_envs.remote.serving.sizes import is_picture, sizes_of
from xuance_envs.remote.serving.turnstile import Turnstile
from xuance_envs.remote.serving.usage import Usage
from xuance_envs.remote.settings import Settings
from xuance_envs.remote.wire.batches import batch_from_wire
from xuance_envs.remote.wire.bounds import TooLargeError, size_of
from xuance_envs.remote.wire.forms import Form, dumps
from xuance_envs.remote.wire.nodes import WireError
from xuance_envs.remote.wire.values import from_client, to_wire

__all__ = ["Host"]

T = TypeVar("T")

LOOK = 0.005
"""Seconds between two looks whether a command has been done, when the environments are closed."""

PATIENCE = 5.0
"""Seconds that a command has to end when the environments are to be closed."""

QUICK = 256 * 2**10
"""Bytes of observations up to which a step's answer is written without a thread."""

QUICK_READ = 16 * 2**10
"""Bytes of infos up to which it is also read without one."""

LONG = 0.01
"""Seconds after which a step counts as one that takes long."""

FEW = 16
"""Environments that are rendered, or read from, at a time: what comes may be large."""


class Host:
    """Environments of one session that were created together, as :meth:`make` makes them.

    One command is run at a time; the session sees to that.

    Args:
        wanted: the environments.
        settings: the server's.
        metrics: where steps are counted.
        tallies: where they and their process count from now on until they are closed.
        turnstile: what each step goes through; None for nothing.

    Attributes:
        auto_reset: whether they are stepped together, and reset by themselves.
        num_envs: how many they are.
        description: their spaces and other properties, as part of a message.
        frame: the last picture rendered of one of them; None where there is none.
        usage: what their processes took when last looked at.
        busy: whether a command is being done.
        steps: how many environment steps they have made.
    """

    description: dict[str, Any]

    def __init__(
        self,
        wanted: Wanted,
        settings: Settings,
        metrics: Metrics,
        tallies: Sequence[Tally] = (),
        turnstile: Turnstile | None = None,
    ) -> None:
        self.auto_reset = wanted.auto_reset
        self.num_envs = len(wanted.functions)
        self.frame: NDArray[np.uint8] | None = None
        self.steps = 0
        self._checks_actions = not settings.permissions.any_action
        self._unready = set(range(self.num_envs))
        self._limits = settings.limits
        self._settings = settings
        self._wanted = wanted
        self._metrics = metrics
        self._tallies = tallies
        self._turnstile = turnstile
        self._inside: Turnstile | None = None
        self._late: asyncio.TimerHandle
        self._counted = self.num_envs, 1
        for tally in tallies:
            tally.add(*self._counted)
        self._thread = ThreadPoolExecutor(1, "xuance_envs-host")
        self._running: Future[Any] | None = None
        self.busy = False
        self._closing = False
        self._listening: tuple[int, ...] = ()
        self._reason: RefusedError | None = None
        self.usage = Usage(0.0, 0)
        self._woken: asyncio.Future[bool] | None = None
        self._making: Future[None] | None = None
        self._backend: Processes | None = None
        self._vec_env: HostedVecEnv

    async def make(self) -> None:
        """Starts the worker, and has it make the environments.

        Raises:
            EnvError: an environment could not be made.
            WorkerDiedError: the worker ended while it made them.
            WorkerTimeoutError: it took too long.
            RuntimeError: their spaces differ.
            RefusedError: their spaces cannot travel.
        """
        making = self._making = self._thread.submit(self._make)
        try:
            await asyncio.shield(asyncio.wrap_future(making))
        except BaseException:
            self._kill()
            self._thread.submit(self._end_unwanted, making)
            self._thread.shutdown(wait=False)
            self._count(0, 0)
            raise

    def _make(self) -> None:
        limits, wanted = self._limits, self._wanted
        repeating = not wanted.auto_reset
        infos = self._settings.permissions.infos_of(repeating)
        functions = [
            HostedFunction(function, index, repeating, limits.memory, infos)
            for index, function in enumerate(wanted.functions)
        ]
        self._vec_env = HostedVecEnv(
            functions,
            wanted.seed,
            self._settings.context,
            step_timeout=limits.request,
            start_timeout=limits.start,
            prepared=self._prepared,
            check_actions=self._checks_actions,
        )
        try:
            if repeating and isinstance(self._vec_env.observation_space, ObservationRecord):
                raise WireError("environments with many agents are stepped with auto_reset")
            self.description = {
                **commands.describe(self._vec_env),
                "checks_actions": self._checks_actions,
            }
        except WireError as error:
            self.end()
            raise RefusedError(409, "space", f"these cannot be hosted: {error}") from None
        self._sizes = sizes_of(self._vec_env.observation_space)

    def _prepared(self, backend: Processes) -> None:
        self._backend = backend
        if self._closing:
            raise no_session()

    @property
    def pid(self) -> int | None:
        """The id of the process that all others of theirs come from, as long as it is there."""
        workers = () if self._backend is None else self._backend.workers
        return next((driver.worker.pid for driver in workers), None)

    def end_for(self, reason: RefusedError) -> None:
        """Ends the process; what is being done in it fails for this reason."""
        self._reason = reason
        self._kill()

    @property
    def is_made(self) -> bool:
        """Whether the environments have been made, or cannot be."""
        return self._making is not None and self._making.done()

    async def give_up(self) -> None:
        """Ends the process while it makes the environments, and waits for its end."""
        self._closing = True
        while self._making is not None and not self._making.done():
            self._kill()  # again, because it may have been about to start
            await asyncio.sleep(0.02)

    def _end_unwanted(self, making: Future[None]) -> None:
        """Ends what nobody waits for any more, now that it is there, if it ever came to be."""
        if making.exception() is None:
            self.end()

    def _count(self, environments: int, processes: int) -> None:
        """Has that many environments and processes of it be counted, and no more."""
        before, self._counted = self._counted, (environments, processes)
        for tally in self._tallies:
            tally.add(environments - before[0], processes - before[1])

    async def close(self) -> None:
        """Closes the environments and ends their process; again, it does nothing."""
        if self._closing:
            return
        self._closing = True
        self._count(0, self._counted[1])
        await self._idle(PATIENCE)
        running = self._running is not None and not self._running.done()
        if running or self._vec_env.waiting:
            self._kill()  # also where nobody waits for it any more
        await self._idle(self._limits.request)  # its descriptors are still waited for
        self._stop_listening()
        await asyncio.get_running_loop().run_in_executor(self._thread, self.end)
        self._thread.shutdown(wait=False)
        self._count(0, 0)
        for tally in self._tallies:
            tally.cpu += self.usage.cpu
        self.usage = Usage(0.0, 0)

    async def _idle(self, seconds: float) -> None:
        """Waits until no command is being done, at most so long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self.busy and loop.time() < until:
            await asyncio.sleep(LOOK)

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

        def act() -> bytes:
            chosen = None if options is None else from_client(options)
            answer = commands.reset(self._vec_env, envs, seed, chosen)
            self._unready.difference_update(envs)
            return self._written(answer, form)

        return await self._in_thread(act)

    async def step(self, actions: Any, form: Form, large: bool = False) -> bytes:
        """Steps every environment once; the answer as it is sent.

        Args:
            actions: a batch of them, as a part of a message.
            form: of the answer.
            large: whether it may take long to decode them.
        """
        vec_env = self._vec_env

        def decoded() -> Any:
            return batch_from_wire(vec_env.action_space, actions, self.num_envs, from_client)

        def written() -> bytes:
            result = vec_env.step_wait()
            space, rewards = vec_env.observation_space, vec_env.full_rewards
            answer = commands.step_answer(space, result, rewards, vec_env.first_observations)
            return self._written(answer | commands.masks_of(vec_env), form)

        with _Current(self):
            batch = await self._by_thread(decoded) if large else decoded()
            if self._turnstile is not None and not self._turnstile.enter_at_once():
                await self._turnstile.enter()
            self._inside = self._turnstile
            start = perf_counter()
            try:
                vec_env.step_async(batch)
                answered = await self._answered()
            finally:
                self._leave()
            self._step_took(self.num_envs, perf_counter() - start)
            if not answered or self._is_large(form):
                return await self._by_thread(written)
            try:
                return written()
            except Exception:
                await self._by_thread(self._end_if_closed)
                raise

    async def repeat(self, envs: Sequence[int], actions: Any, times: int, form: Form) -> bytes:
        """Has some environments repeat their actions; the answer as it is sent.

        Raises:
            RefusedError: one has not been reset, since it was made or since it failed.
        """
        if unready := sorted(self._unready.intersection(envs)):
            raise RefusedError(
                409, "reset", f"call reset first: environment {unready[0]} is in no episode"
            )

        def act() -> tuple[bytes, int, float]:
            start = perf_counter()
            try:
                answer, steps = commands.repeat(
                    self._vec_env, envs, actions, times, self._checks_actions
                )
            except EnvError as error:
                self._unready.add(error.env_index)
                raise EnvError(
                    error.env_index, "step", error.reason, error.env_traceback
                ) from error.__cause__
            except (WorkerDiedError, WorkerTimeoutError) as error:
                error.command = "step"  # the worker knows it as a call
                raise
            seconds = perf_counter() - start
            return self._written(answer, form), steps, seconds

        body, steps, seconds = await self._in_thread(act)
        self._step_took(steps, seconds)
        return body

    async def reach(self, envs: Sequence[int], form: Form, **request: Any) -> bytes:
        """Calls, reads, sets or renders some environments; the answer as it is sent."""

        def act() -> bytes:
            at_a_time = len(envs) if request["operation"] in ("call", "set_attr") else FEW
            answer: dict[str, list[Any]] = {"results": []}
            size = 0
            for first in range(0, len(envs), at_a_time):
                some, results = commands.reach(
                    self._vec_env, envs[first : first + at_a_time], **request
                )
                answer["results"] += some["results"]
                size += sum(map(size_of, some["results"]))
                if size > self._limits.reply:
                    raise RefusedError(413, "reply", str(TooLargeError(self._limits.reply)))
                if request["operation"] == "render":
                    self.frame = next(filter(is_picture, results), self.frame)
            return self._written(answer, form)

        return await self._in_thread(act)

    def answer_bytes(self, count: int, form: Form) -> int:
        """How large so many observations can be in an answer, objects among them aside."""
        return self._sizes[form] * count

    def _written(self, answer: Any, form: Form) -> bytes:
        """An answer as it is sent.

        Raises:
            RefusedError: it is too large.
        """
        try:
            return dumps(answer, form, self._limits.reply)
        except TooLargeError as error:
            raise RefusedError(413, "reply", str(error)) from None

    def _step_took(self, steps: int, seconds: float) -> None:
        self.steps += steps
        self._metrics.count_steps(steps, seconds)
        for tally in self._tallies:
            tally.steps.charge(steps)

    # -- waiting ----------------------------------------------------------------------

    def _is_large(self, form: Form) -> bool:
        """Whether it takes a while to read the worker's answer, and to write it."""
        if form is not Form.MSGPACK or self._sizes[form] * self.num_envs > QUICK:
            return True
        fcntl.ioctl(self._vec_env.wakers[0], termios.FIONREAD, waiting := bytearray(4))
        return int.from_bytes(waiting, sys.byteorder) > QUICK_READ

    async def _in_thread(self, act: Callable[[], T]) -> T:
        with _Current(self):
            return await self._by_thread(act)

    async def _by_thread(self, act: Callable[[], T]) -> T:
        def act_and_end() -> T:
            try:
                return act()
            finally:
                self._end_if_closed()

        self._stop_listening()
        running = self._thread.submit(act_and_end)
        self._running = running
        try:
            return await asyncio.wrap_future(running)
        finally:
            if self._vec_env.closed and running.done():
                self._count(self._counted[0], 0)

    def _end_if_closed(self) -> None:
        if self._vec_env.closed:  # after an error
            self._vec_env.end_worker()

    async def _answered(self) -> bool:
        """Waits until the worker has answered, or has ended, or should have by now."""
        loop = asyncio.get_running_loop()
        woken = self._woken = loop.create_future()
        if not self._listening:
            self._listening = self._vec_env.wakers
            for fd in self._listening:
                loop.add_reader(fd, self._wake, True)
        self._late = loop.call_later(LONG, self._take_long)
        try:
            return bool(await woken)
        finally:
            self._late.cancel()
            self._woken = None

    def _take_long(self) -> None:
        """Whoever takes long may be waiting, and keeps nobody else from stepping."""
        self._leave()
        loop = asyncio.get_running_loop()
        self._late = loop.call_later(self._limits.request - LONG, self._wake, False)

    def _leave(self) -> None:
        inside, self._inside = self._inside, None
        if inside is not None:
            inside.leave()

    def _wake(self, answered: bool) -> None:
        woken = self._woken
        if woken is None:  # it has ended while nothing was asked of it
            self._stop_listening()
        elif not woken.done():
            woken.set_result(answered)

    def _stop_listening(self) -> None:
        """Leaves what the worker says to a thread, or to nobody."""
        loop = asyncio.get_running_loop()
        for fd in self._listening:
            loop.remove_reader(fd)
        self._listening = ()

    def explain(self) -> None:
        """Says why the worker died, where it was ended on purpose.

        Raises:
            RefusedError: that is so.
        """
        if self._reason is not None:
            raise self._reason from None
        if self._closing:
            raise no_session() from None

    def _kill(self) -> None:
        # The process is ours: whoever waits for its answer is who will notice its end.
        workers = () if self._backend is None else tuple(self._backend.workers)
        for driver in workers:
            driver.worker.kill()


class _Current:
    """The command that is being done."""

    __slots__ = ("_host",)

    def __init__(self, host: Host) -> None:
        self._host = host

    def __enter__(self) -> None:
        self._host.busy = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._host.busy = False
        if kind is not None and issubclass(kind, WorkerDiedError):
            self._host.explain()
