"""Environments that a client created together, and what they are asked to do.

A command ends within its bound. Where the environments do not, their process is killed.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
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
from xuance_envs.remote.serving.process import SessionProcess
from xuance_envs.remote.serving.sizes import is_picture, sizes_of
from xuance_envs.remote.settings import Settings
from xuance_envs.remote.wire.batches import batch_from_wire
from xuance_envs.remote.wire.bounds import TooLargeError, size_of
from xuance_envs.remote.wire.forms import Form, dumps
from xuance_envs.remote.wire.nodes import WireError
from xuance_envs.remote.wire.values import from_client, to_wire

__all__ = ["Host"]

T = TypeVar("T")

_MSGPACK = Form.MSGPACK  # to ask an enumeration's class for it takes a while

PATIENCE = 5.0
"""Seconds that a command has to end when the environments are to be closed."""

QUICK = 256 * 2**10
"""Bytes of observations up to which a step's answer is written without a thread."""

QUICK_READ = 16 * 2**10
"""Bytes of infos up to which it is also read without one."""

FEW = 16
"""Environments that are rendered, or read from, at a time: what comes may be large."""


class Host:
    """Environments of one session that were created together, as :meth:`make` makes them.

    One command is run at a time; the session sees to that.

    Args:
        wanted: the environments.
        settings: the server's.
        metrics: where steps are counted.
        process: where they are to live.
        tallies: where they count from now on until they are closed.

    Attributes:
        process: see above.
        auto_reset: whether they are stepped together, and reset by themselves.
        num_envs: how many they are.
        description: their spaces and other properties, as part of a message.
        frame: the last picture rendered of one of them; None where there is none.
        steps: how many environment steps they have made.
    """

    description: dict[str, Any]

    def __init__(
        self,
        wanted: Wanted,
        settings: Settings,
        metrics: Metrics,
        process: SessionProcess,
        tallies: Sequence[Tally] = (),
    ) -> None:
        self.auto_reset = wanted.auto_reset
        self.num_envs = len(wanted.functions)
        self.process = process
        self.frame: NDArray[np.uint8] | None = None
        self.steps = 0
        self._checks_actions = not settings.permissions.any_action
        self._unready = set(range(self.num_envs))
        self._limits = settings.limits
        self._settings = settings
        self._wanted = wanted
        self._metrics = metrics
        self._tallies = tallies
        self._rates = [tally.steps for tally in tallies if tally.steps.is_limited]
        self._counted = 0
        self._count(self.num_envs)
        process.enter(self.num_envs)
        self._closing = False
        self._making: Future[None] | None = None
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
        process = self.process
        making = self._making = process.submit(self._make)
        try:
            with process:
                await asyncio.shield(asyncio.wrap_future(making))
        except BaseException:
            if not making.done():  # nobody waits for it any more
                process.kill()
                process.submit(partial(self._end_unwanted, making))
            self._count(0)
            process.leave(self.num_envs)
            process.count()
            raise

    def _make(self) -> None:
        limits, wanted = self._limits, self._wanted
        repeating = not wanted.auto_reset
        infos = self._settings.permissions.infos_of(repeating)
        beside = self.process.beside
        functions = [
            HostedFunction(function, index, repeating, limits.memory, infos, beside is None)
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
            beside=beside,
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
        self.process.prepare(backend)
        if self._closing:
            raise no_session()

    @property
    def is_made(self) -> bool:
        """Whether the environments have been made, or cannot be."""
        return self._making is not None and self._making.done()

    async def give_up(self) -> None:
        """Ends the process while it makes the environments, and waits for its end."""
        self._closing = True
        while not self.is_made:
            self.process.kill()  # again, because it may have been about to start
            await asyncio.sleep(0.02)

    def _end_unwanted(self, making: Future[None]) -> None:
        """Ends what nobody waits for any more, now that it is there, if it ever came to be."""
        if making.exception() is None:
            self.end()

    def _count(self, environments: int) -> None:
        """Has that many environments of it be counted, and no more."""
        before, self._counted = self._counted, environments
        for tally in self._tallies:
            tally.add(environments - before, 0)

    async def close(self) -> None:
        """Closes the environments, and ends their process with the last; again, it does nothing."""
        if self._closing:
            return
        process = self.process
        self._closing = process.closing = True
        self._count(0)
        await process.idle(PATIENCE)
        if process.is_running or self._vec_env.waiting:
            process.kill()  # also where nobody waits for it any more
        await process.idle(self._limits.request)  # its descriptors are still waited for
        process.stop_listening()
        await asyncio.wrap_future(process.submit(self.end))
        process.leave(self.num_envs)

    def end(self) -> None:
        """Ends the environments; in their process's thread, because that takes a while."""
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

    async def run(
        self, act: Callable[[HostedVecEnv], Any], form: Form, begins: Sequence[int] = ()
    ) -> bytes:
        """Does something with the environments in their thread; the answer as it is sent.

        Args:
            act: does it; returns the answer.
            form: of the answer.
            begins: the environments that are in an episode thereafter.
        """

        def run() -> bytes:
            answer = act(self._vec_env)
            self._unready.difference_update(begins)
            return self._written(answer, form)

        return await self._in_thread(run)

    def check_ready(self, envs: Sequence[int]) -> None:
        """Raises where environments that repeat their actions are in no episode.

        Raises:
            RefusedError: one has not been reset, since it was made or since it failed.
        """
        if not self.auto_reset and (unready := sorted(self._unready.intersection(envs))):
            raise RefusedError(
                409, "reset", f"call reset first: environment {unready[0]} is in no episode"
            )

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
            return self._written(commands.step(vec_env), form)

        process = self.process
        with self._command():
            batch = await self._by_thread(decoded) if large else decoded()
            if not process.admit_at_once():
                await process.admit()
            start = perf_counter()
            try:
                vec_env.step_async(batch)
                answered = await process.answered(vec_env.wakers)
            finally:
                process.dismiss()
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
        self.check_ready(envs)

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
        for rate in self._rates:
            rate.charge(steps)

    # -- waiting ----------------------------------------------------------------------

    def _is_large(self, form: Form) -> bool:
        """Whether it takes a while to read the worker's answer, and to write it."""
        if form is not _MSGPACK or self._sizes[form] * self.num_envs > QUICK:
            return True
        fcntl.ioctl(self._vec_env.wakers[0], termios.FIONREAD, waiting := bytearray(4))
        return int.from_bytes(waiting, sys.byteorder) > QUICK_READ

    def _command(self) -> SessionProcess:
        """The process, as the context in which a command is done.

        Raises:
            RefusedError: it has ended, and not with these environments.
        """
        if not self._vec_env.closed:
            self.process.check()
        return self.process

    async def _in_thread(self, act: Callable[[], T]) -> T:
        with self._command():
            return await self._by_thread(act)

    async def _by_thread(self, act: Callable[[], T]) -> T:
        def act_and_end() -> T:
            try:
                return act()
            finally:
                self._end_if_closed()

        return await self.process.run(act_and_end)

    def _end_if_closed(self) -> None:
        if self._vec_env.closed:  # after an error
            self._vec_env.end_worker()
