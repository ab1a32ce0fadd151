"""Vectorized environment on the server, in a worker process of its session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from xuance_envs.engine.data.step_arrays import as_float32
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.group.group_states import packed_registry
from xuance_envs.engine.group.step_clock import StepTimes
from xuance_envs.engine.groups import WorkerGroups
from xuance_envs.engine.info_collector import Outcomes
from xuance_envs.engine.ledger import state_unknown_after
from xuance_envs.engine.process.driver import ProcessDriver
from xuance_envs.engine.process.process_backend import ProcessBackend, SharedProcessBackend
from xuance_envs.engine.saving import warn_of_doubts
from xuance_envs.remote.wire.step_frames import StepFrameWriter
from xuance_envs.vector_envs.arguments import checked_recipe
from xuance_envs.vector_envs.grouped import GroupedVecEnv
from xuance_envs.vector_envs.last_results import LastResults
from xuance_envs.vector_envs.options import StartMethod
from xuance_envs.vector_envs.subproc_vec_env import start_processes
from xuance_envs.vector_envs.worker_settings import ProcessSettings

# Seconds that a worker spins before it blocks: a client on the same machine sends the next step
# within about a millisecond.
SPIN = 2e-3


@dataclass(frozen=True)
class HostedEnvConfig:
    functions: Sequence[Callable[..., Any]]
    seed: int | None
    auto_reset: bool


class HostedVecEnv(GroupedVecEnv):
    """Vec env with one worker, extended for :class:`EnvHost`.

    Only :meth:`end_worker` ends the worker. ``close`` does not, because an error may close the vec
    env in the event loop, which must not wait for a process to exit.
    """

    _outcomes: Outcomes | None = None  # of the last step, until its infos are collected

    def __init__(
        self,
        functions: Sequence[Callable[..., Any]],
        env_seed: int | None,
        context: StartMethod,
        step_timeout: float | None,
        start_timeout: float | None,
        check_actions: bool = False,
        on_backend_created: Callable[[ProcessBackend], None] | None = None,
        shared_backend: ProcessBackend | None = None,
    ) -> None:
        recipe = checked_recipe(functions, env_seed)
        if shared_backend is None:
            settings = ProcessSettings(
                num_workers=1,
                context=context,
                step_timeout=step_timeout,
                start_timeout=start_timeout,
                pin_workers=False,
            )
            groups = start_processes(
                recipe,
                settings,
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
        super().__init__(groups, copy=False, check_actions=check_actions)
        # No copy for frames, which are written from the arrays before another command runs.
        self._last = LastResults(self._arrays, copies_lazily=True)
        self._saver = groups.saver
        self._driver: ProcessDriver = groups.backend.workers[0]
        self.wake_fds = self._driver.fds
        self.receive_available = self._driver.worker.channel.receive_available
        leaves = self._arrays.observations.layout.leaves
        native = all([leaf.dtype is not None and leaf.dtype.isnative for leaf in leaves])
        self._step_frames = StepFrameWriter(self._arrays) if native else None
        resets = self._arrays.reset_observations
        self.take_reset_observations = resets.take_flat or resets.copy

    @property
    def pid(self) -> int | None:
        return next((driver.worker.pid for driver in self.backend.workers), None)

    @property
    def times(self) -> StepTimes:
        return self._driver.times()

    def finish_step(self, layout: int | None) -> dict[str, Any] | None:
        """Finish a step like ``step_wait``; return its results as a frame if they fit into one.

        Otherwise, they are in ``buf_obs``, ``exact_rewards``, ``buf_infos`` and so on.
        """
        self._ledger.check_stepping()
        arrays, outcomes = self._arrays, self._ledger.step_outcomes(self.close)
        self.buf_rews = as_float32(arrays.rewards)
        self.buf_dones, self.buf_truncations = arrays.terminated, arrays.truncated
        self._outcomes, rest = outcomes, outcomes[0][1].rest if outcomes else None
        if rest is not None:
            self.collect_infos()  # with observations that are objects
        self._last.mark_all_new(None)
        self._ledger.settle()
        if (
            layout is None
            or self._step_frames is None
            or (rest and (rest.infos or rest.reset_infos))
        ):
            return None
        layouts = self._groups.info_collector.layouts(0)
        return self._step_frames.frame(layouts, bool(self.watched_masks), layout)

    def collect_infos(self) -> None:
        """Copy the infos of the last step from the arrays, unless this has happened already."""
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
        """Return action masks, or None for each; collect masks with every later step."""
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
        """Save states in the worker under these numbers; return their sizes in bytes.

        If they exceed ``room`` together, the worker keeps none. The last returned size then belongs
        to the first state beyond ``room``.
        """
        self._groups.check_idle("save_state")
        save = partial(self._run, "store_states", envs, numbers, packed_registry(), room)
        return self._close_on_error(state_unknown_after, save)

    def load_stored(self, numbers: Sequence[int], envs: Sequence[int]) -> tuple[Any, StepInfos]:
        """Load states that the worker keeps."""
        self._groups.check_idle("load_state")

        def load() -> StepInfos:
            warn_of_doubts(self._run("prepare_stored", envs, numbers, packed_registry()))
            return self._saver.run_load({0: self._driver.pack("load_states", envs)}, envs)

        return self._load_and_restore(envs, None, load)

    def copy_states(self, source: HostedVecEnv, sizes: Mapping[int, int]) -> None:
        """Copy states from the worker of ``source``; ``sizes`` has their bytes by number."""
        source._groups.check_idle("load_state")
        self._groups.check_idle("load_state")
        ours, theirs = self._saver, source._saver
        with theirs.transferring(), ours.transferring():
            originals = theirs.transfer.allocate(list(sizes.values()))
            facts = source._run("copy_stored", list(sizes), buffers=originals)
            copies = ours.transfer.allocate(list(sizes.values()))
            for copy, original in zip(copies, originals, strict=True):
                copy.copy_from(original)
            self._run("import_stored", list(sizes), facts, buffers=copies)

    def drop_stored(self, numbers: Sequence[int]) -> None:
        """Drop states that the worker keeps."""
        self._groups.check_idle("load_state")
        self._run("drop_stored", numbers)

    def _run(self, command: str, *arguments: Any, buffers: Sequence[Any] = ()) -> Any:
        """Run a command in the worker and return its reply."""
        packed = self._driver.pack(command, *arguments)
        packed = self._driver.with_buffers(packed, buffers) if buffers else packed
        ((_, reply),) = self._ledger.command({0: packed}, list)
        return reply

    def close_extras(self) -> None:
        """Reject further commands; the worker runs until :meth:`end_worker`."""
        self._groups.mark_closed()

    def end_worker(self) -> None:
        assert self.closed
        self._groups.end()
