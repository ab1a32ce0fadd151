"""Vectorized environment on the server, in worker processes of its session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

from xuance_envs.engine.data.step_arrays import as_float32
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.group.group_states import packed_registry
from xuance_envs.engine.group.step_clock import StepTimes
from xuance_envs.engine.groups import WorkerGroups
from xuance_envs.engine.info_collector import Outcomes
from xuance_envs.engine.ledger import state_unknown_after, values_of
from xuance_envs.engine.process.driver import ProcessDriver
from xuance_envs.engine.process.process_backend import ProcessBackend, SharedProcessBackend
from xuance_envs.engine.saving import warn_of_doubts
from xuance_envs.errors import WorkerDiedError, WorkerTimeoutError
from xuance_envs.remote.server.settings import Settings
from xuance_envs.remote.wire.step_frames import StepFrameWriter
from xuance_envs.vector_envs.arguments import checked_recipe
from xuance_envs.vector_envs.grouped import GroupedVecEnv
from xuance_envs.vector_envs.last_results import LastResults
from xuance_envs.vector_envs.subproc_vec_env import start_processes
from xuance_envs.vector_envs.worker_settings import ProcessSettings

# Seconds that a worker spins before it blocks: a client on the same machine sends the next step
# within about a millisecond.
SPIN = 2e-3


class HostedVecEnv(GroupedVecEnv):
    """Vec env for :class:`EnvHost`; its first worker keeps the stored states."""

    _outcomes: Outcomes | None = None  # of the last step, until its infos are collected

    def __init__(
        self,
        functions: Sequence[Callable[..., Any]],
        env_seed: int | None,
        settings: Settings,
        on_backend_created: Callable[[ProcessBackend], None] | None = None,
        shared_backend: ProcessBackend | None = None,
        num_workers: int = 1,
    ) -> None:
        recipe = checked_recipe(functions, env_seed)
        if shared_backend is None:
            workers = ProcessSettings(
                num_workers=num_workers,
                context=settings.context,
                step_timeout=settings.limits.request,
                start_timeout=settings.limits.start,
                pin_workers=False,
            )
            groups = start_processes(
                recipe,
                workers,
                spin=SPIN,
                event_loop_waits=True,  # spinning would block other sessions
                on_backend_created=on_backend_created,
                guarded=True,
            )
        else:
            shared_backend = SharedProcessBackend(shared_backend, recipe)
            if on_backend_created is not None:
                on_backend_created(shared_backend)
            groups = WorkerGroups(shared_backend)
        self.backend = groups.backend
        super().__init__(groups, copy=False, check_actions=not settings.permissions.any_action)
        # No copy for frames, which are written from the arrays before another command runs.
        self._last = LastResults(self._arrays, copies_lazily=True)
        self._saver = groups.saver
        self._drivers: list[ProcessDriver] = list(groups.backend.workers)
        channels = [driver.channel for driver in self._drivers]
        # Descriptors of replies, with functions that read them.
        self.receivers = {channel.replies: channel.receive_available for channel in channels}
        # These descriptors, and those that become readable when a worker ends.
        self.watched_fds = [*self.receivers, *(driver.worker.peer for driver in self._drivers)]
        leaves = self._arrays.observations.layout.leaves
        native = all([leaf.dtype is not None and leaf.dtype.isnative for leaf in leaves])
        self._step_frames = StepFrameWriter(self._arrays) if native else None
        resets = self._arrays.reset_observations
        self.take_reset_observations = resets.take_flat or resets.copy

    @property
    def times(self) -> StepTimes:
        """Step times of the slowest worker."""
        times = {driver.lo: driver.times() for driver in self._drivers}
        lo = max(times, key=lambda lo: times[lo].p50)
        slowest = times[lo].slowest
        return replace(times[lo], slowest=None if slowest is None else lo + slowest)

    @property
    def keeps_states(self) -> bool:
        """False if the worker that keeps the stored states has failed."""
        return not self._drivers[0].worker.failed

    def finish_step(self, layout: int | None) -> dict[str, Any] | None:
        """Finish a step like ``step_wait``; return its results if they fit into a frame."""
        self._ledger.check_stepping()
        arrays, outcomes = self._arrays, self._ledger.finish_step(self.close)
        self.buf_rews = as_float32(arrays.rewards)
        self.buf_dones, self.buf_truncations = arrays.terminated, arrays.truncated
        self._outcomes = outcomes
        rests = [outcome.rest for _, outcome in outcomes if outcome.rest is not None]
        if rests:
            self.collect_infos()  # also stores observations without a fixed shape
        self._last.mark_all_new(None)
        self._ledger.settle()
        if (
            layout is None
            or self._step_frames is None
            or any([rest.infos or rest.reset_infos for rest in rests])
        ):
            return None
        layouts_of = self._groups.info_collector.layouts
        layouts, *others = [layouts_of(k) for k in range(len(self._drivers))]
        if any([other != layouts for other in others]):
            return None
        return self._step_frames.frame(layouts, bool(self.watched_masks), layout)

    def collect_infos(self) -> None:
        """Copy the infos of the last step, unless this has happened already."""
        if self._outcomes is not None:
            outcomes, self._outcomes = self._outcomes, None
            self._infos = self._groups.info_collector.infos(outcomes)

    @property
    def buf_infos(self) -> Any:
        """Infos of the last step; they are copied only if something reads them."""
        self.collect_infos()
        return self._infos

    @buf_infos.setter
    def buf_infos(self, infos: Any) -> None:
        self._outcomes, self._infos = None, infos

    def watch_masks(self, envs: Sequence[int]) -> list[Any]:
        """Return action masks (None if there are none); later steps collect masks, too."""
        self._groups.check_idle("action_masks")
        if self._arrays.masks is None:
            return [None] * len(envs)
        return self._groups.masks.watch(envs, self._groups.command)

    @property
    def watched_masks(self) -> list[Any] | None:
        """Action masks of all environments, valid until the next step; None if not requested."""
        rows = self._groups.masks.watched_rows
        return None if rows is None else rows.parts

    def store_states(self, envs: Sequence[int], numbers: Sequence[int], room: float) -> list[int]:
        """Save states and return their sizes; keep none if they exceed ``room`` together."""
        self._groups.check_idle("save_state")
        number_of = dict(zip(envs, numbers, strict=True))

        def save() -> list[int]:
            sizes: dict[int, int] = {}
            with ExitStack() as stored:
                stored.enter_context(self.dropping(numbers))
                for k, driver, group_envs in self._ledger.split_by_group(envs):
                    kept = [number_of[env] for env in group_envs]
                    rest = packed_registry(), room - sum(sizes.values())
                    places = driver.places_of(group_envs)
                    found = self._run("store_states", places, kept, *rest, worker=k)
                    sizes.update(zip(kept, found, strict=False))
                    if sum(sizes.values()) > room:
                        return list(sizes.values())
                    if k:
                        with self.dropping(kept, k):
                            self.copy_states(self, {n: sizes[n] for n in kept}, source_worker=k)
                stored.pop_all()
            return [sizes[number] for number in numbers]

        return self._close_on_error(state_unknown_after, save)

    def load_stored(
        self, numbers: Sequence[int], envs: Sequence[int], sizes: Mapping[int, int]
    ) -> tuple[Any, StepInfos]:
        """Load states that the first worker keeps; ``sizes`` has their sizes by number."""
        self._groups.check_idle("load_state")
        number_of = dict(zip(envs, numbers, strict=True))

        def load() -> StepInfos:
            prepares, loads = dict[int, Any](), dict[int, Any]()
            with ExitStack() as copies:
                for k, driver, group_envs in self._ledger.split_by_group(envs):
                    found = [number_of[env] for env in group_envs]
                    places = driver.places_of(group_envs)
                    if k:
                        copies.enter_context(self.dropping(found, k))
                        self.copy_states(self, {n: sizes[n] for n in found}, worker=k)
                    prepares[k] = driver.pack("prepare_stored", places, found, packed_registry())
                    loads[k] = driver.pack("load_states", places)
                with self._saver.transferring():
                    warn_of_doubts(self._ledger.command(prepares, values_of))
                    return self._saver.run_load(loads, envs)

        return self._load_and_restore(envs, None, load)

    def copy_states(
        self,
        source: HostedVecEnv,
        sizes: Mapping[int, int],
        source_worker: int = 0,
        worker: int = 0,
    ) -> None:
        """Copy states from a worker of ``source``; ``sizes`` has their sizes by number."""
        source._groups.check_idle("load_state")
        self._groups.check_idle("load_state")
        ours, theirs = self._saver, source._saver
        with theirs.transferring(), ours.transferring():
            originals = theirs.transfer.allocate(list(sizes.values()))
            facts = source._run("copy_stored", list(sizes), buffers=originals, worker=source_worker)
            copies = ours.transfer.allocate(list(sizes.values()))
            for copy, original in zip(copies, originals, strict=True):
                copy.copy_from(original)
            self._run("import_stored", list(sizes), facts, buffers=copies, worker=worker)

    def drop_stored(self, numbers: Sequence[int]) -> None:
        self._groups.check_idle("load_state")
        self._run("drop_stored", numbers)

    @contextmanager
    def dropping(self, numbers: Sequence[int], worker: int = 0) -> Iterator[None]:
        """Drop states from a worker when the context ends, unless the worker has ended."""
        if not numbers:
            yield
            return
        try:
            yield
        except Exception:
            with suppress(WorkerDiedError, WorkerTimeoutError):  # the first error is the cause
                self._run("drop_stored", numbers, worker=worker)
            raise
        self._run("drop_stored", numbers, worker=worker)

    def _run(
        self, command: str, *arguments: Any, buffers: Sequence[Any] = (), worker: int = 0
    ) -> Any:
        driver = self._drivers[worker]
        packed = driver.pack(command, *arguments)
        packed = driver.with_buffers(packed, buffers) if buffers else packed
        ((_, reply),) = self._ledger.command({worker: packed}, list)
        return reply

    def close_extras(self) -> None:
        """Reject further commands, without waiting for workers: the event loop may call this."""
        self._groups.mark_closed()

    def end_workers(self) -> None:
        assert self.closed
        self._groups.end()
