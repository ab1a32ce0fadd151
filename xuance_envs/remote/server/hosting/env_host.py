"""Environments that one request created, and their commands."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.errors import EnvError, WorkerDiedError, WorkerTimeoutError
from xuance_envs.multi_agent.record_layout import ObservationRecord
from xuance_envs.remote.server.hosting import commands
from xuance_envs.remote.server.hosting.commands import ReplyEncoder, is_rgb_image
from xuance_envs.remote.server.hosting.hosted_vec_env import HostedVecEnv
from xuance_envs.remote.server.hosting.repeating_env import HostedFunction, has_objects
from xuance_envs.remote.server.hosting.session_process import SessionProcess, StoredState
from xuance_envs.remote.server.http import messages
from xuance_envs.remote.server.monitoring import Metrics
from xuance_envs.remote.server.settings import Settings
from xuance_envs.remote.wire.bounds import ObjectBudget, TooLargeError, payload_bytes
from xuance_envs.remote.wire.failures import RefusedError, envs_closed, no_state
from xuance_envs.remote.wire.formats import WireFormat
from xuance_envs.remote.wire.nodes import WireError
from xuance_envs.remote.wire.values import batch_from_wire, from_client, to_wire

T = TypeVar("T")

_MSGPACK = WireFormat.MSGPACK  # enum member lookup is slow

CLOSE_TIMEOUT = 5.0  # seconds for a running command to finish before its process is killed
SMALL_REPLY = 256 * 2**10  # larger observations are encoded in a thread
SMALL_INFOS = 16 * 2**10  # larger infos are read in a thread
BATCH = 16  # environments per call of render or get_attr, because results may be large


class EnvHost:
    """Environments that :meth:`make` creates for one request; they run one command at a time."""

    def __init__(
        self,
        message: messages.CreateEpisodes,
        functions: Sequence[Callable[..., Any]],
        settings: Settings,
        metrics: Metrics,
        process: SessionProcess,
    ) -> None:
        self.auto_reset = message.auto_reset
        self.num_envs = len(functions)
        self.process = process
        self.frame: NDArray[np.uint8] | None = None
        self.steps = 0
        self._needs_reset = set(range(self.num_envs))
        self._settings, self._limits = settings, settings.limits
        self._seed, self._functions = message.seed, functions
        self._metrics = metrics
        process.quota.add(environments=self.num_envs)
        process.environments += self.num_envs
        self._closing = False
        self._make_future: Future[None] | None = None

    async def make(self) -> None:
        process = self.process
        future = self._make_future = process.thread.submit(self._make)
        try:
            with process:
                await asyncio.wrap_future(future)
        except BaseException:
            if not future.done():
                process.kill()
            process.thread.submit(partial(self._end_abandoned, future))
            process.count()
            process.quota.add(environments=-self.num_envs)
            process.remove_envs(self.num_envs)
            raise

    def _make(self) -> None:
        limits, repeating = self._limits, not self.auto_reset
        infos = self._settings.permissions.infos_of(repeating)
        shared_backend = self.process.running_backend
        num_workers = self.process.num_workers if shared_backend is None else 1
        objects = ObjectBudget(limits.reply, num_workers)
        functions = [
            HostedFunction(function, index, repeating, limits.memory, infos, objects)
            for index, function in enumerate(self._functions)
        ]
        add = self.process.add_backend
        self._vec_env = HostedVecEnv(
            functions, self._seed, self._settings, add, shared_backend, num_workers
        )
        try:
            if repeating and isinstance(self._vec_env.observation_space, ObservationRecord):
                raise WireError(
                    "multi-agent environments are reset automatically: create them with "
                    "auto_reset=true, as RemoteVecEnv does"
                )
            self.description = commands.describe(self._vec_env)
        except WireError as error:
            self.end()
            text = f"the environments cannot be hosted: {error}"
            raise RefusedError(409, "space", text) from None
        self.replies = ReplyEncoder(self._vec_env.observation_space, limits.reply)
        self._has_large_frames = self.replies.max_bytes(self.num_envs, _MSGPACK) > SMALL_REPLY
        self._has_objects = has_objects(SpaceLayout(self._vec_env.observation_space))

    @property
    def closed(self) -> bool:
        return self._vec_env.closed

    @property
    def make_done(self) -> bool:
        return self._make_future is not None and self._make_future.done()

    async def cancel(self) -> None:
        """Kill the process that creates the environments, and wait until :meth:`make` has ended."""
        self.process.closing = True
        while not self.make_done:
            self.process.kill()  # repeated, because the process may not have started yet
            await asyncio.sleep(0.02)

    def _end_abandoned(self, future: Future[None]) -> None:
        if not future.cancelled() and future.exception() is None:
            self.end()

    async def close(self) -> None:
        """Close the environments, and end their process unless it has other environments."""
        if self._closing:
            return
        process = self.process
        self._closing = process.closing = True
        process.quota.add(environments=-self.num_envs)
        await process.wait_idle(CLOSE_TIMEOUT)
        if process.is_running or self._vec_env.waiting:
            process.kill()
        await process.wait_idle(self._limits.request)  # a running step needs its descriptors
        process.remove_readers()
        await asyncio.wrap_future(process.thread.submit(self.end))
        process.remove_envs(self.num_envs)

    def end(self) -> None:
        """Close the environments and end their workers; block the calling thread meanwhile."""
        self._vec_env.close()
        self._vec_env.end_workers()

    def times(self) -> dict[str, Any]:
        if self._vec_env.closed:
            raise envs_closed()
        return {name: to_wire(value) for name, value in vars(self._vec_env.times).items()}

    async def run(
        self,
        act: Callable[[HostedVecEnv], Any],
        wire_format: WireFormat,
        reset_envs: Sequence[int] = (),
    ) -> bytes:
        """Call ``act`` in the process's thread, and encode its result."""

        def run() -> bytes:
            self._vec_env.collect_infos()  # before other commands change the arrays
            answer = act(self._vec_env)
            self._needs_reset.difference_update(reset_envs)
            return self.replies.encode(answer, wire_format)

        return await self._run_command(run)

    def check_ready(self, envs: Sequence[int]) -> None:
        """Raise if an environment without autoreset needs a reset."""
        if not self.auto_reset and (unready := self._needs_reset.intersection(envs)):
            reason = "has no running episode, or its last step request failed"
            text = f"call reset first: environment {min(unready)} {reason}"
            raise RefusedError(409, "reset", text)

    async def step(self, message: messages.Step, wire_format: WireFormat, large: bool) -> bytes:
        vec_env, actions = self._vec_env, message.actions
        layout = message.layout if wire_format is _MSGPACK else None

        def decode() -> Any:
            return batch_from_wire(vec_env.action_space, actions, self.num_envs, from_client)

        def encode() -> bytes:
            return self.replies.encode(commands.step(vec_env, layout), wire_format)

        process = self.process
        with self._command():
            batch = await self._run_in_thread(decode) if large else decode()
            await process.acquire_slot()
            start = perf_counter()
            try:
                vec_env.step_async(batch)
                received = await process.wait_for_replies(vec_env.receivers, vec_env.watched_fds)
            finally:
                process.release_slot()
            self._record_steps(self.num_envs, perf_counter() - start)
            # Reading and encoding large replies in the event loop would delay other clients.
            fast = wire_format is _MSGPACK and not self._has_large_frames
            if received is None or received > SMALL_INFOS or not fast:
                return await self._run_in_thread(encode)
            try:
                return encode()
            except Exception:
                await self._run_in_thread(lambda: None)  # ends the workers if the error closed them
                raise

    async def repeat(
        self, envs: Sequence[int], message: messages.Step, wire_format: WireFormat
    ) -> bytes:
        self.check_ready(envs)

        def act() -> tuple[bytes, int, float]:
            start = perf_counter()
            try:
                answer, steps = commands.repeat(self._vec_env, envs, message)
            except EnvError as error:
                cause = error.__cause__
                self._needs_reset.update(envs)  # the results of the others are lost
                if isinstance(cause, TooLargeError):
                    text = f"{cause}; reset the environments of this request first"
                    raise RefusedError(413, "reply", text) from None
                index, reason = error.env_index, error.reason
                raise EnvError(index, "step", reason, error.env_traceback) from cause
            except (WorkerDiedError, WorkerTimeoutError) as error:
                error.command = "step"  # the client's command, which the worker runs as a call
                raise
            seconds = perf_counter() - start
            return self.replies.encode(answer, wire_format), steps, seconds

        body, steps, seconds = await self._run_command(act)
        self._record_steps(steps, seconds)
        return body

    async def save_states(
        self, envs: Sequence[int], numbers: Iterator[int], wire_format: WireFormat
    ) -> bytes:
        """Save states in the process; refuse if they exceed a limit."""
        self.check_ready(envs)
        kept, quota = list(itertools.islice(numbers, len(envs))), self.process.quota
        quota.check(states=len(envs))
        objects = await self._run_command(partial(self._object_sizes, envs))
        exceeded = True
        while exceeded:  # try again if other requests dropped states meanwhile
            room = quota.room("state_bytes")
            sizes = await self._run_command(partial(self._vec_env.store_states, envs, kept, room))
            exceeded = sum(sizes) > room
            try:
                quota.check(states=len(envs), state_bytes=sum(sizes))
            except RefusedError:
                if not exceeded:  # other requests saved states meanwhile
                    await self.drop_states(kept)
                raise
        # No await since the check, so that no other request is admitted in between.
        stored = map(StoredState, sizes, objects)
        self.process.add_states(dict(zip(kept, stored, strict=True)))
        return self.replies.encode({"states": kept, "bytes": sizes}, wire_format)

    def state_loader(
        self, envs: Sequence[int], numbers: Sequence[int], holders: Mapping[EnvHost, Sequence[int]]
    ) -> Callable[[HostedVecEnv], tuple[Any, Any]]:
        """Return a command that loads states; ``holders`` has state numbers by host."""
        others = [host for host in holders if host.process is not self.process]
        for host in others:
            host.process.remove_readers()

        def load(vec_env: HostedVecEnv) -> tuple[Any, Any]:
            states = {n: host.process.states[n] for host in holders for n in holders[host]}
            self.replies.check(sum(states[n].object_size for n in numbers))
            sizes = {n: state.size for n, state in states.items()}
            copies = [n for host in others for n in holders[host]]
            with vec_env.dropping(copies):
                for host in others:
                    copied = {n: sizes[n] for n in holders[host]}
                    copy = partial(vec_env.copy_states, host._vec_env, copied)
                    try:
                        host.process.thread.submit(copy).result()
                    except (WorkerDiedError, WorkerTimeoutError):
                        if host._vec_env.keeps_states:  # a worker of these environments has failed
                            raise
                        raise no_state(min(copied)) from None
                return vec_env.load_stored(numbers, envs, sizes)

        return load

    def clone(
        self, sources: Sequence[int], envs: Sequence[int], fork_rng: bool, vec_env: HostedVecEnv
    ) -> tuple[Any, Any]:
        self.replies.check(sum(self._object_sizes(sources)) * len(envs) // len(sources))
        return vec_env.clone_state(sources, envs, fork_rng=fork_rng)

    def _object_sizes(self, envs: Sequence[int]) -> list[int]:
        """Return the size of each environment's last result, without parts of fixed shapes."""
        if not self._has_objects:
            return [0] * len(envs)
        distinct = list({*envs})
        found = zip(distinct, self._vec_env.call("object_bytes", env_ids=distinct), strict=True)
        return list(map(dict(found).__getitem__, envs))

    async def drop_states(self, numbers: Sequence[int]) -> None:
        self.process.drop_states(numbers)
        with self.process, suppress(WorkerDiedError, WorkerTimeoutError):  # the next command raises
            await self._run_in_thread(partial(self._vec_env.drop_stored, numbers))

    async def invoke(
        self, envs: Sequence[int], message: messages.Call, wire_format: WireFormat
    ) -> bytes:
        def act() -> bytes:
            batch_size = len(envs) if message.operation in ("call", "set_attr") else BATCH
            answer: dict[str, list[Any]] = {"results": []}
            size = 0
            for first in range(0, len(envs), batch_size):
                some_envs = envs[first : first + batch_size]
                part, results = commands.invoke(self._vec_env, some_envs, message)
                answer["results"] += part["results"]
                size += sum(map(payload_bytes, part["results"]))
                self.replies.check(size)
                if message.operation == "render":
                    self.frame = next(filter(is_rgb_image, results), self.frame)
            return self.replies.encode(answer, wire_format)

        return await self._run_command(act)

    def _record_steps(self, steps: int, seconds: float) -> None:
        self.steps += steps
        self._metrics.count_steps(steps, seconds)
        for quota in self.process.quota.chain:
            quota.steps.record(steps)

    def _command(self) -> SessionProcess:
        """Return the process, in whose context commands run; raise if it has ended."""
        process = self.process
        if process.exit_message is not None and not self._vec_env.closed:
            shared = "worker process, which they shared with other environments of the session"
            text = f"these environments are closed because their {shared}, has ended"
            raise RefusedError(409, "closed", f"{text}: {process.exit_message}")
        return process

    async def _run_command(self, act: Callable[[], T]) -> T:
        with self._command():
            return await self._run_in_thread(act)

    async def _run_in_thread(self, act: Callable[[], T]) -> T:
        def act_and_end() -> T:
            try:
                return act()
            finally:
                if self._vec_env.closed:  # after an error
                    self._vec_env.end_workers()

        return await self.process.run(act_and_end)
