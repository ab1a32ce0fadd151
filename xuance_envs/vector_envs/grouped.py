"""Vectorized environments over groups, in any backend."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from xuance_envs._override import override
from xuance_envs.engine.data.space_rows import read_only
from xuance_envs.engine.data.step_arrays import as_float32
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.groups import Groups
from xuance_envs.engine.ledger import Pending, Replies, is_fatal, state_unknown_after
from xuance_envs.engine.system.exclusive import exclusive, exclusive_start, exclusive_wait
from xuance_envs.errors import (
    NotResetError,
    RemoteError,
    WorkerTimeoutError,
    counted,
    name_envs,
)
from xuance_envs.state.env_states import EnvStates
from xuance_envs.vector_envs.action_writer import ActionWriter
from xuance_envs.vector_envs.arguments import (
    EnvIds,
    Seeds,
    checked_count,
    checked_env_ids,
    checked_number,
    env_indices,
    seed_per_env,
)
from xuance_envs.vector_envs.last_results import (
    RESULTS_KEY,
    LastResult,
    LastResults,
    checked_clones,
    checked_last_results,
)
from xuance_envs.vector_envs.statistics import WorkerStatistics
from xuance_envs.vector_envs.vector_env import StepBatch, StepResult, VecEnv

_T = TypeVar("_T")
_STEP = Pending.STEP


class GroupedVecEnv(VecEnv):
    """Vectorized environment over groups of environments, in any backend.

    Args:
        env_seed: if given, callable i is called with ``env_seed=env_seed + i``.
        num_workers: number of workers. The environments are split evenly among the workers and,
            with ``caller_steps``, the main process; each gets at least one environment. At
            most one of ``in_series``, ``num_workers`` and ``envs_per_worker`` may be given.
        envs_per_worker: another name for ``in_series``, as an int.
        copy: False to return read-only views, which the next step or reset overwrites.
        start_timeout: seconds the workers may take to create their environments; None for no limit.
        max_restarts: total number of restarts before a failure raises; None for no limit.
        restart_on_exception: True to treat exceptions in ``step`` or ``reset`` as worker failures;
            it requires an ``on_worker_failure`` other than ``"raise"``.
        check_actions: True to check that every action is in its space and, once
            ``action_masks`` has been called, allowed by its mask.
        info_bytes: size in bytes of each environment's buffer for arrays in infos. Arrays that do
            not fit are copied one by one in each step; workers in other processes pickle them.
    """

    def __init__(self, groups: Groups, *, copy: bool = True, check_actions: bool = False) -> None:
        description, arrays = groups.description, groups.arrays
        groups.name = type(self).__name__
        self._groups = groups
        super().__init__(
            groups.drivers[-1].hi,
            description.observation_space,
            description.action_space,
            max_episode_steps=description.max_episode_steps,
            render_mode=description.render_mode,
            metadata=description.metadata,
            reward_space=description.spaces.reward_space,
        )
        self._ledger = groups.ledger
        self._info_collector = groups.info_collector
        self._never_reset = set(range(self.num_envs))
        self._arrays = arrays
        checked_by = groups.masks if check_actions else None
        self._action_writer = ActionWriter(arrays.actions, groups.drivers, checked_by)
        self.checks_actions = check_actions
        rows = arrays.observations
        self._last = LastResults(arrays, copies_lazily=copy and rows.is_large)
        self._copy = copy
        self._copy_observations = rows.copy_flat or rows.copy
        self._outputs = outputs = arrays.outputs
        if outputs is not None:
            self._copy_observations = partial(outputs.take, self._copy_observations)
        if not copy:
            self._rewards = np.zeros(arrays.rewards.shape, np.float32)
            self._views = tuple(
                read_only(array) for array in (self._rewards, arrays.terminated, arrays.truncated)
            )

    @property
    def closed(self) -> bool:
        """True once the vectorized environment is closed."""
        return self._groups.closed

    @property
    def waiting(self) -> bool:
        """True while a step that :meth:`step_async` started is pending."""
        return self._ledger.stepping

    buf_obs = property(
        lambda self: self._last.get(),
        lambda self, batch: self._last.set(batch),
        doc="The latest observations, in a writable array; each step sets a new array.",
    )

    @property
    def actions(self) -> Any:
        """Copy of the latest batch of actions; before any step, zeros, or None for objects."""
        return self._arrays.actions.copy()

    @property
    def exact_rewards(self) -> NDArray[np.float64]:
        """Unrounded rewards of the last step, ``(num_envs,)`` or ``(num_envs, k)`` float64."""
        return self._arrays.rewards.copy()

    # -- synchronous stepping ---------------------------------------------------------

    @override
    @exclusive
    def reset(
        self, *, seed: Seeds = None, options: dict[str, Any] | None = None, env_ids: EnvIds = None
    ) -> tuple[Any, StepInfos]:
        self._groups.check_open()
        ids = checked_env_ids(env_ids, self.num_envs)
        packed = self._groups.pack_resets(ids, seed_per_env(seed, ids), [options] * len(ids))
        was_idle = not self._ledger.pending
        if self.waiting:
            self._finish_step()
        envs = None if env_ids is None else np.array(ids, dtype=np.intp)
        last, observations = self._last, self._arrays.observations
        before = None if envs is None else last.get()
        was_current, last.arrays_are_current = last.arrays_are_current, False

        def take(outcomes: Replies) -> tuple[Any, StepInfos]:
            infos = self._info_collector.infos(outcomes, envs)
            self._never_reset.difference_update(ids)
            if envs is not None:
                last.update(before, envs)
                return observations.copy(envs), infos
            obs = observations.copy() if self._copy else observations.view()
            last.mark_all_new(obs)
            return obs, infos

        def fail(error: Exception) -> None:
            # Close unless the reset was refused. Also close if it discarded a step, whose results
            # the transforms have not seen, or if the server may have executed it.
            is_refusal = isinstance(error, RemoteError) and error.is_refusal
            if was_idle and is_refusal and error.__cause__ is None:
                last.arrays_are_current = was_current
            else:
                self.close()

        self._ledger.recall(self.close)
        return self._ledger.command(packed, take, fail)

    @override
    @exclusive_start
    def step_async(self, actions: Any) -> None:
        ledger = self._ledger
        if ledger.pending or self._groups.closed:
            self._groups.check_idle("step or step_async")
        if self._never_reset:
            _check_reset("step", range(self.num_envs), self._never_reset)
        packed = self._action_writer.put(actions)
        self._last.arrays_are_current = False
        if self._outputs is not None:
            self._outputs.choose()
        ledger.start_step(packed)

    @override
    @exclusive_wait
    def step_wait(self) -> StepResult:
        ledger, arrays = self._ledger, self._arrays
        if ledger.pending is not _STEP:
            self._groups.check_stepping()
        infos = self._info_collector.infos(ledger.finish_step(self.close))
        if self._copy:
            obs = self._copy_observations()
            rewards = as_float32(arrays.rewards)
            terminated, truncated = arrays.terminated.copy(), arrays.truncated.copy()
        else:
            obs = arrays.observations.view()
            self._rewards[:] = as_float32(arrays.rewards)
            rewards, terminated, truncated = self._views
        self._last.mark_all_new(obs)
        self.buf_rews = rewards
        self.buf_dones = terminated
        self.buf_truncations = truncated
        self.buf_infos = infos
        ledger.settle()
        return obs, rewards, terminated, truncated, infos

    _finish_step: Callable[..., StepResult] = step_wait.__wrapped__  # type: ignore[attr-defined]

    # -- asynchronous stepping --------------------------------------------------------

    @override
    @exclusive
    def async_reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> None:
        self._groups.check_not_stepping("async_reset")
        ids = range(self.num_envs)
        packed = self._groups.pack_resets(ids, seed_per_env(seed, ids), [options] * len(ids))
        self._ledger.recall(self.close)
        self._last.arrays_are_current = False
        self._ledger.send_commands(np.arange(self.num_envs), packed)
        self._never_reset.clear()

    @override
    @exclusive
    def send(self, actions: Any, env_ids: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        ledger = self._ledger
        self._groups.check_not_stepping("send")
        envs = env_indices(env_ids, self.num_envs)
        if self._never_reset:
            _check_reset("send", envs.tolist(), self._never_reset)
        groups = ledger.in_flight.groups_completed_by(envs)
        packed = self._action_writer.put(actions, envs, groups)
        self._last.arrays_are_current = False
        ledger.send_step(envs, groups, packed)

    @override
    @exclusive
    def recv(self, min_envs: int | None = None, timeout: float | None = None) -> StepBatch:
        ledger, arrays = self._ledger, self._arrays
        self._groups.check_not_stepping("recv")
        in_flight = ledger.in_flight
        if timeout is not None:
            timeout = checked_number("timeout", timeout)
        if min_envs is not None:
            min_envs = checked_count("min_envs", min_envs)
        wanted = in_flight.envs_to_wait_for(min_envs)
        try:
            ready = in_flight.wait(wanted, timeout)
        except Exception as error:
            ledger.check_not_closed(error)
            self.close()
            raise
        ledger.check_not_closed()
        if not ready:
            assert timeout is not None
            raise WorkerTimeoutError(in_flight.stepping_envs(), None, timeout, "recv")
        envs = in_flight.envs_of(ready)
        infos = self._info_collector.infos(ready.items(), envs)
        infos.masks = self._groups.masks.deferred(envs)
        batch = StepBatch(
            arrays.observations.copy(envs),
            as_float32(arrays.rewards[envs]),
            arrays.terminated[envs],
            arrays.truncated[envs],
            infos,
            envs.copy(),  # the infos, built lazily, need the original
        )
        ledger.receive(envs)
        return batch

    @override
    def action_masks(self) -> Any:
        groups = self._groups
        groups.check_idle("action_masks")
        return self._close_on_error(is_fatal, lambda: groups.masks.current(groups.command))

    @override
    def statistics(self) -> tuple[WorkerStatistics, ...]:
        if self.closed:
            self._groups.check_open()
        return tuple(map(WorkerStatistics.of, self._groups.drivers))

    # -- methods and attributes of environments ---------------------------------------

    @override
    def call(self, name: str, *args: Any, env_ids: EnvIds = None, **kwargs: Any) -> tuple[Any, ...]:
        return tuple(self._run_each("call", env_ids, lambda _: (name, args, kwargs)))

    @override
    def get_attr(self, name: str, env_ids: EnvIds = None) -> tuple[Any, ...]:
        return tuple(self._run_each("get_attr", env_ids, lambda _: (name,)))

    @override
    def set_attr(self, name: str, values: Any, env_ids: EnvIds = None) -> None:
        self._groups.check_idle("set_attr")
        ids = checked_env_ids(env_ids, self.num_envs)
        if not isinstance(values, list | tuple):
            values = [values] * len(ids)
        if len(values) != len(ids):
            raise ValueError(
                f"values: expected {counted(len(ids), 'value')} of {name!r}, one per environment, "
                f"got {len(values)}"
            )
        value_of = dict(zip(ids, values, strict=True))
        self._run_each("set_attr", ids, lambda envs: (name, [value_of[env] for env in envs]))

    @override
    def render(self, mode: str | None = None, env_ids: EnvIds = None) -> list[Any]:
        return self._run_each("render", env_ids, lambda _: (mode,))

    def _run_each(
        self, command: str, env_ids: EnvIds, arguments: Callable[[Sequence[int]], Any]
    ) -> list[Any]:
        ids = checked_env_ids(env_ids, self.num_envs)
        return self._close_on_error(is_fatal, lambda: self._groups.command(command, ids, arguments))

    # -- states -----------------------------------------------------------------------

    @override
    def save_state(self, env_ids: EnvIds = None, *, verify: bool = False) -> EnvStates:
        self._groups.check_idle("save_state")
        ids = checked_env_ids(env_ids, self.num_envs)
        saver = self._groups.saver
        if verify:
            self._close_on_error(state_unknown_after, lambda: saver.verify(ids))
        state = self._close_on_error(state_unknown_after, lambda: saver.save(ids))
        return state.adding(RESULTS_KEY, list(map(tuple, self._last.of(self, ids))))

    @override
    def load_state(self, state: EnvStates, env_ids: EnvIds = None) -> tuple[Any, StepInfos]:
        self._groups.check_idle("load_state")
        ids = checked_env_ids(env_ids, self.num_envs)
        results = checked_last_results(state, len(ids), self._arrays)
        return self._load_and_restore(ids, results, lambda: self._groups.saver.load(state, ids))

    @override
    def clone_state(
        self, src_ids: int | Sequence[int], dst_ids: int | Sequence[int], *, fork_rng: bool = False
    ) -> tuple[Any, StepInfos]:
        self._groups.check_idle("clone_state")
        sources, targets = checked_clones(src_ids, dst_ids, self.num_envs)
        results = self._last.of(self, sources)
        never_reset = {t for s, t in zip(sources, targets, strict=True) if s in self._never_reset}
        loaded = self._load_and_restore(
            targets, results, lambda: self._groups.saver.clone(sources, targets, fork_rng)
        )
        self._never_reset |= never_reset
        return loaded

    def _load_and_restore(
        self,
        ids: Sequence[int],
        results: Sequence[LastResult] | None,
        load: Callable[[], StepInfos],
    ) -> tuple[Any, StepInfos]:
        """Run ``load``, then restore the buffers of the loaded environments."""
        before = self._last.get()
        infos = self._close_on_error(_may_have_loaded, load)
        envs = np.array(ids, dtype=np.intp)
        self._never_reset.difference_update(ids)
        self._last.arrays_are_current = False
        if results is None:
            self._last.update(before, envs)
        else:
            self._last.restore(self, before, ids, results)
        return self._arrays.observations.copy(envs), infos

    @exclusive
    def _close_on_error(self, fatal: Callable[[Exception], bool], action: Callable[[], _T]) -> _T:
        """Run ``action``; if it raises an error for which ``fatal`` returns True, close."""
        try:
            return action()
        except Exception as error:
            if fatal(error):
                self.close()
            raise

    @override
    def close_extras(self) -> None:
        self._groups.close()


def _may_have_loaded(error: Exception) -> bool:
    """Return whether environments may have been loaded although their results are unknown."""
    if isinstance(error, RemoteError):
        return error.status is None or error.status >= 500 or error.__cause__ is not None
    return state_unknown_after(error)


def _check_reset(command: str, ids: Iterable[int], never_reset: Container[int]) -> None:
    never = [i for i in ids if i in never_reset]
    if never:
        have = "has" if len(never) == 1 else "have"
        raise NotResetError(
            f"{command}: {name_envs(never)} {have} not been reset; call reset() first"
        )
