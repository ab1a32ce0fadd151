"""Adapter from already vectorized environments to ``VecEnv``.

An already vectorized environment steps all copies in one call, typically in NumPy or C++. For cheap
steps, such a call is faster than worker processes. :func:`from_gymnasium` adds features of a
``VecEnv``: last observations, ``reset_obs``, ``episode_step``, ``episode_score``, checks of call
order and actions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from xuance_envs._override import override
from xuance_envs.compat.native_engines import EngineStep, Infos, NativeEngine, make_engine
from xuance_envs.engine.data.info_columns import NUMBER_KINDS, ArrayKind, Frozen, Kind, kind_of
from xuance_envs.engine.data.info_writer import BulkInfoWriter, InfoRows, LazyRowExtras, info_parts
from xuance_envs.engine.data.space_rows import ALL_ENVS, SpaceRows
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.driver import LocalDriver
from xuance_envs.engine.group.outcome import STATE_COMMANDS, Outcome, OutcomeBuilder, Reset
from xuance_envs.engine.group.step_clock import StepClock, StepTimes
from xuance_envs.engine.groups import Groups
from xuance_envs.engine.info_collector import InfoCollector, Outcomes
from xuance_envs.engine.serialization import describe_error, traceback_of
from xuance_envs.errors import EnvError, StateError
from xuance_envs.vector_envs.arguments import Seeds, seed_per_env
from xuance_envs.vector_envs.grouped import GroupedVecEnv

__all__ = ["NativeVecEnv", "from_gymnasium", "make_native"]

logger = logging.getLogger("xuance_envs")


def from_gymnasium(
    vector_env: Any, *, seed: int | None = None, copy: bool = True, check_actions: bool = False
) -> NativeVecEnv:
    """Convert an already vectorized environment to a ``VecEnv``.

    ``vector_env`` can be Gymnasium's ``CartPoleVectorEnv`` or ``SyncVectorEnv``, mo-gymnasium's
    ``MOSyncVectorEnv``, ale-py's ``AtariVectorEnv``, an EnvPool in its Gymnasium form, or any
    ``gymnasium.vector.VectorEnv`` whose ``autoreset_mode`` is ``SAME_STEP`` or ``DISABLED``. With
    ``SAME_STEP``, infos must have ``final_obs``; with ``DISABLED``, ``reset`` must support the
    option ``reset_mask``.

    With equal seeds, results may differ from those of single environments. ``call``, ``get_attr``
    and ``set_attr`` raise :class:`NotImplementedError`. So does a ``reset`` with a seed, options or
    ``env_ids`` that ``vector_env`` does not support, without resetting anything. Saving and
    loading states raise :class:`~xuance_envs.errors.StateError`.

    Args:
        vector_env: the vectorized environment; closing the result closes it, too.
        seed: seed of the first ``reset``, if that call has none.
        copy: False to return read-only views instead of copies; the next step overwrites them.
        check_actions: True to check that every action is in its space.

    Raises:
        TypeError: ``vector_env`` is not a vectorized environment, or is a wrapper around one.
        ValueError: ``vector_env`` cannot provide ``reset_obs``, does not step all environments
            together, or has a space whose values NumPy arrays cannot store.

    Example:
        >>> import gymnasium
        >>> from xuance_envs.compat import from_gymnasium
        >>> engine = gymnasium.make_vec(
        ...     "CartPole-v1", num_envs=64, vectorization_mode="vector_entry_point"
        ... )
        >>> with from_gymnasium(engine) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     obs, rewards, terminated, truncated, infos = envs.step([0, 1] * 32)
        >>> infos[0]
        {'episode_step': 1, 'episode_score': 1.0}
    """
    return NativeVecEnv(make_engine(vector_env), seed=seed, copy=copy, check_actions=check_actions)


def make_native(
    env_id: str | EnvSpec,
    num_envs: int,
    *,
    seed: int | None = None,
    copy: bool = True,
    check_actions: bool = False,
    **kwargs: Any,
) -> NativeVecEnv:
    """Make a ``VecEnv`` from an environment's own vectorized implementation, if it has one."""
    spec = env_id if isinstance(env_id, EnvSpec) else gymnasium.spec(env_id)
    if spec.vector_entry_point is None:
        raise ValueError(
            f"{spec.id} has no vectorized implementation (no vector_entry_point is registered); "
            "use backend 'dummy' or 'subproc' instead"
        )
    vector_env = gymnasium.make_vec(
        env_id, num_envs=num_envs, vectorization_mode="vector_entry_point", **kwargs
    )
    try:
        return from_gymnasium(vector_env, seed=seed, copy=copy, check_actions=check_actions)
    except BaseException:
        vector_env.close()
        raise


class NativeVecEnv(GroupedVecEnv):
    """A vectorized environment around an engine; see :func:`from_gymnasium`.

    Args:
        engine: adapter of the underlying vectorized environment; :func:`from_gymnasium` makes it.
        seed: as for :func:`from_gymnasium`.
        copy: as for :func:`from_gymnasium`.
        check_actions: as for :func:`from_gymnasium`.

    Raises:
        ValueError: a space has values that NumPy arrays cannot store.
    """

    def __init__(
        self,
        engine: NativeEngine,
        *,
        seed: int | None = None,
        copy: bool = True,
        check_actions: bool = False,
    ) -> None:
        self._engine = engine
        self._pending_seed = seed
        super().__init__(EngineGroup(engine), copy=copy, check_actions=check_actions)

    @property
    def vector_env(self) -> Any:
        """The underlying vectorized environment."""
        return self._engine.env

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
        env_ids: Sequence[int] | None = None,
    ) -> tuple[Any, StepInfos]:
        """Reset all or some environments; see ``VecEnv.reset``.

        Raises:
            NotImplementedError: the underlying environment does not support these arguments.
        """
        if env_ids is None:
            seed = self._seed_or_pending(seed)
        result = super().reset(seed=seed, options=options, env_ids=env_ids)
        self._pending_seed = None
        return result

    def async_reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> None:
        """Start episodes, as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.async_reset` does.

        The first call after the creation uses the engine's seed if none is given.
        """
        super().async_reset(seed=self._seed_or_pending(seed), options=options)
        self._pending_seed = None

    def _seed_or_pending(self, seed: Seeds) -> Seeds:
        given = seed_per_env(seed, range(self.num_envs))
        return seed if any(one is not None for one in given) else self._pending_seed


class EngineGroup(Groups):
    """The single group that holds all environments of an engine."""

    def __init__(self, engine: NativeEngine) -> None:
        description = engine.describe()
        arrays = StepArrays.allocate(description.spaces, engine.num_envs)
        for name, rows in (("observation", arrays.observations), ("action", arrays.actions)):
            if rows.objects:
                raise ValueError(
                    f"vector_env: expected an {name} space whose values can be stored in NumPy "
                    f"arrays, got {rows.layout.space}; use DummyVecEnv or SubprocVecEnv"
                )
        drivers = [NativeDriver(engine, arrays)]
        results = NativeInfoCollector(drivers, arrays)
        super().__init__(drivers, description, arrays, results=results)
        self._engine = engine

    @override
    def end(self, close_timeout: float | None = None) -> None:
        try:
            self._engine.env.close()
        except Exception:
            logger.warning("closing %s failed", self._engine.name, exc_info=True)


class NativeInfoCollector(InfoCollector):
    """Info collector that reads infos without a column from the driver's ``rests``."""

    _drivers: Sequence[NativeDriver]
    _has_own_extras = True

    @override
    def absorb(self, outcomes: Outcomes) -> tuple[Mapping[int, Frozen], Mapping[int, Frozen], bool]:
        *_, ended = super().absorb(outcomes)
        return *self._drivers[0].rests, ended


class NativeDriver(LocalDriver):
    """Driver of an engine; ``rests`` has the infos and the reset infos without a column."""

    def __init__(self, engine: NativeEngine, arrays: StepArrays) -> None:
        super().__init__(0, engine.num_envs)
        self._engine = engine
        self._arrays = arrays
        self._every = np.arange(engine.num_envs)
        self._no_envs = LazyRowExtras(InfoRows(()), self._every[:0])
        self.rests = self._no_envs, self._no_envs
        self._infos = BulkInfoWriter(arrays.infos)
        self._infos.write("episode_step", NUMBER_KINDS[int], 0)
        # Views of the info columns: steps and scores are counted in place. A vector column can
        # move when keys are added, so vector scores have their own array and are copied.
        self._scores, self._score_kinds = arrays.infos.cells[1], arrays.infos.kinds[1]
        self._score_vectors: ArrayKind | None = None
        if arrays.rewards.ndim > 1:
            self._scores = np.zeros_like(arrays.rewards)
            self._score_vectors = ArrayKind(self._scores.dtype, self._scores.shape[1:])
        kind = self._score_vectors or NUMBER_KINDS[float]
        # Keys that this class computes.
        self._own_kinds = {"episode_step": NUMBER_KINDS[int], "episode_score": kind}
        if not self._infos.write("episode_score", kind, 0.0):
            most = arrays.infos.bytes.shape[1] // self._scores.itemsize
            raise ValueError(
                f"vector_env: expected rewards of at most {most} components, the limit of the info "
                f"episode_score, got {arrays.rewards.shape[1]}"
            )
        self._steps = arrays.infos.cells.view(np.int64)[0]
        self._score_kind = int(self._score_kinds[0])
        self._reset_infos = BulkInfoWriter(arrays.reset_infos)
        self._reset_infos.write("episode_step", NUMBER_KINDS[int], 0)
        self._ended = self._every[:0]
        self._outcomes = OutcomeBuilder(self._infos, self._reset_infos)
        self._clock = StepClock(engine.num_envs)
        # The engine's last step and its request number, for a retry after an interrupt.
        self._stepped: EngineStep
        self._number = -1

    def pack(self, command: str, *arguments: Any) -> tuple[str, Sequence[Any]]:
        if command == "reset":
            resets: Sequence[Reset] = arguments[0]
            seeds = [seed for _, seed, _ in resets]
            options = resets[0][2] if resets else None
            if options and "reset_mask" in options:
                raise NotImplementedError("options: expected no 'reset_mask'; pass env_ids instead")
            self._engine.check_reset(seeds, options, len(resets) < self.hi)
        elif command in STATE_COMMANDS:
            raise StateError(
                -1,
                "save_state" if command in ("save_states", "verify_saving") else "load_state",
                f"{self._engine.name} does not expose the states of its environments; use "
                "DummyVecEnv or SubprocVecEnv to save and load states",
            )
        elif command != "render":
            raise NotImplementedError(
                f"{command} needs access to single environments, which {self._engine.name} does "
                "not give; use DummyVecEnv or SubprocVecEnv"
            )
        return super().pack(command, *arguments)

    def _method(self, command: str) -> Callable[..., Any]:
        return partial(self._do, command, getattr(self, f"_{command}"))

    def _do(self, command: str, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except NotImplementedError:
            raise
        except Exception as error:
            reason = (
                f"{describe_error(error)} (in {self._engine.name}, which steps all environments)"
            )
            raise EnvError(0, command, reason, traceback_of(error)) from error

    def times(self) -> StepTimes:
        return replace(StepTimes.read(self._clock.memory), slowest=None, slowest_time=np.nan)

    # -- commands ---------------------------------------------------------------------

    def _step(self, _: None, number: int) -> Outcome:
        began = perf_counter()
        arrays = self._arrays
        if self._number != number:  # otherwise a retry: an interrupt came after the engine's step
            self._outcomes.begin()
            step = self._count(self._engine.step(arrays.actions.copy()))  # engines may keep it
            self._stepped, self._number = step, number
        step = self._stepped
        store(arrays.observations, step.observations, self._every)
        arrays.rewards[:] = step.rewards
        arrays.terminated[:] = step.terminated
        arrays.truncated[:] = step.truncated
        rests = reset_rests = self._no_envs
        if step.infos or len(self._infos.table.keys) > len(self._own_kinds):
            rests = self._write(self._infos, step.infos, self._every)
        has_ends = len(step.ended) > 0
        if has_ends:
            store(arrays.reset_observations, step.reset_observations, step.ended)
            if step.reset_infos or len(self._reset_infos.table.keys) > 1:
                reset_rests = self._replace(self._reset_infos, step.reset_infos, step.ended)
        self.rests = rests, reset_rests
        self._clock.stop(began)
        return self._outcomes.outcome(has_ends)

    def _count(self, step: EngineStep) -> EngineStep:
        """Add a step to the episodes' lengths and scores."""
        if len(self._ended):
            self._steps[self._ended] = 0
            self._scores[self._ended] = 0
        self._score_kinds[:] = self._score_kind  # a reset has cleared them
        self._ended = step.ended
        self._steps += 1
        self._scores += step.rewards
        if self._score_vectors is not None:
            self._infos.write("episode_score", self._score_vectors, self._scores)
        return step

    def _reset(self, resets: Sequence[Reset]) -> Outcome:
        self._outcomes.begin()
        resets = sorted(resets, key=itemgetter(0))
        envs = np.array([env for env, *_ in resets], np.intp)
        seeds = [seed for _, seed, _ in resets]
        if len(envs) == self.hi:
            observations, infos = self._engine.reset(seeds, resets[0][2])
        else:
            observations, infos = self._engine.reset_some(envs, seeds)
        store(self._arrays.observations, observations, envs)
        self._arrays.clear_results(envs)
        self.rests = self._replace(self._infos, infos, envs), self._no_envs
        self._scores[envs] = 0
        self._ended = np.setdiff1d(self._ended, envs)
        return self._outcomes.outcome(False)

    def _render(self, places: Sequence[int], mode: str | None) -> list[Any]:
        env, name = self._engine.env, self._engine.name
        if mode is not None and mode != env.render_mode:
            raise NotImplementedError(
                f"render: expected mode {env.render_mode!r}, the render_mode of {name}, got "
                f"{mode!r}"
            )
        frames = env.render()
        if frames is None:
            raise NotImplementedError(
                f"render: {name} was created without a render_mode; create it with one"
            )
        return [frames[place] for place in places]

    def _replace(
        self, writer: BulkInfoWriter, infos: Infos, envs: NDArray[np.intp]
    ) -> LazyRowExtras:
        """Replace the infos of environments whose episode begins."""
        writer.clear(envs)
        writer.write("episode_step", NUMBER_KINDS[int], 0, envs)
        return self._write(writer, infos, envs)

    def _write(self, writer: BulkInfoWriter, infos: Infos, envs: NDArray[np.intp]) -> LazyRowExtras:
        """Write an engine's infos into columns; return those that do not fit."""
        at: Any = ALL_ENVS if len(envs) == self.hi else envs
        rests, in_columns = [], {*self._own_kinds}
        for key, part, mask in info_parts(infos):
            kind = None if isinstance(part, dict) else _row_kind(part)
            own = self._own_kinds.get(key)
            if own is not None and kind is not None and kind.shape == own.shape:
                given = slice(None) if mask is None else mask  # the others keep their own values
                writer.write(key, own, part[given], envs[given])
            elif own is None and writer.write(key, kind, part, at, mask):
                in_columns.add(key)
            else:
                rests.append((key, part, mask))
        if at is ALL_ENVS:
            writer.keep(in_columns)
        return LazyRowExtras(InfoRows(rests), envs) if rests else self._no_envs


def store(rows: SpaceRows, batch: Any, envs: NDArray[np.intp]) -> None:
    flat = rows.flat
    every = len(envs) == len(rows)
    if flat is not None and type(batch) is np.ndarray and batch.dtype == flat.dtype:
        flat[... if every else envs] = batch
    else:
        rows.put(batch, ALL_ENVS if every else envs, len(envs))


def _row_kind(part: NDArray[Any]) -> Kind | None:
    """Return the column kind of an array's rows; None if they cannot be in a column."""
    if part.ndim == 1:
        return NUMBER_KINDS.get(part.dtype.type)
    return kind_of(part[0].copy()) if part.ndim else None
