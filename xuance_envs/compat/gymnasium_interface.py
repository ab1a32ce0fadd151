"""Arguments, errors and results of Gymnasium's vector environments."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.error import ClosedEnvironmentError, CustomSpaceError
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_differing_spaces, batch_space, create_shared_memory
from numpy.typing import NDArray

from xuance_envs.compat.stepping import FinishedStep, StatesMixin
from xuance_envs.engine.data.info_batch import InfoBatch
from xuance_envs.engine.data.info_columns import NUMBER_KINDS, ArrayKind, Columns
from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.group.outcome import Autoreset
from xuance_envs.engine.serialization import copy_of
from xuance_envs.vector_envs.options import InSeries, StartMethod, VectorContext
from xuance_envs.vector_envs.subproc_vec_env import fork_hazard
from xuance_envs.vector_envs.worker_settings import ProcessSettings, ThreadSettings

StepResult = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]
ObservationMode = str | Space[Any] | tuple[Space[Any], Space[Any]]
AUTORESET = {AutoresetMode[each.name]: each for each in Autoreset}


def parse_reset(
    num_envs: int,
    seed: int | Sequence[int | None] | None,
    options: dict[str, Any] | None,
    check_state: Callable[[str], None] | None = None,
) -> tuple[NDArray[np.intp], list[int | None], dict[str, Any] | None]:
    if seed is None or isinstance(seed, int | np.integer):
        seed = [None if seed is None else int(seed) + env for env in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(
            f"If seeds are passed as a list the length must match num_envs={num_envs} but got "
            f"length={len(seed)}."
        )
    if check_state is not None:
        check_state("reset_async")
    envs = np.arange(num_envs)
    if options is not None and "reset_mask" in options:
        options = dict(options)
        envs = np.flatnonzero(_checked_mask(options.pop("reset_mask"), num_envs))
    return envs, [seed[env] for env in envs.tolist()], options


def _checked_mask(mask: Any, num_envs: int) -> NDArray[np.bool_]:
    name = "`options['reset_mask']`"
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"{name} must be a numpy array, got {type(mask)}")
    if mask.shape != (num_envs,):
        raise ValueError(f"{name} must have shape `({num_envs},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"{name} must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(
            f"{name} must contain a boolean array with at least one True value, got "
            f"reset_mask={mask}"
        )
    return mask


def as_batch(space: Space[Any], actions: Any) -> Any:
    """Return a batch of actions; like Gymnasium, accept a list of batches for a Tuple space."""
    if isinstance(actions, list) and isinstance(space, spaces.Tuple):
        return tuple(actions)
    has_axes = type(actions) is np.ndarray and actions.ndim
    if not has_axes and not np.iterable(actions):
        raise TypeError(f"actions: expected one action per environment, got {actions!r}")
    return actions


def check_max_concurrency(value: Any) -> None:
    if not isinstance(value, int | np.integer):
        raise ValueError(f"`max_concurrency` must be an integer or None, got {type(value)}.")
    if value < 1:
        raise ValueError(f"`max_concurrency` must be a positive integer or None, got {value}.")


def check_observation_mode(mode: Any) -> None:
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all([isinstance(space, Space) for space in mode]):
            raise TypeError(
                f"Expected both elements of observation_mode to be Spaces, got {type(mode[0])} and "
                f"{type(mode[1])}"
            )
    elif not isinstance(mode, Space) and mode not in ("same", "different"):
        raise ValueError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and "
            f"batch observation space, actual got {mode}"
        )


def checked_spaces(
    mode: ObservationMode, each: Sequence[StepSpaces], shareable: bool = False
) -> tuple[Space[Any], Space[Any]]:
    """Return the single and the batched observation space; raise if spaces are not compatible."""
    single, single_action_space, _ = each[0]
    if isinstance(mode, Space):
        batch = mode
    elif isinstance(mode, tuple):
        batch, single = mode
    elif mode == "same":
        batch = batch_space(single, len(each))
    else:
        batch = batch_differing_spaces([one.observation_space for one in each])
    if shareable:
        check_shareable(single)
    for space, action_space, _ in each:
        if mode == "same":
            if space != single:
                raise RuntimeError(
                    "observation_mode='same', however some of the "
                    "sub-environments observation spaces are not equivalent. If this is "
                    "intentional, use `observation_mode='different'` instead."
                )
        elif not is_space_dtype_shape_equiv(single, space):
            raise RuntimeError(
                "observation_mode='different' or a custom space, however the "
                "sub-environment's observation spaces do not share a common shape and dtype."
            )
        if action_space != single_action_space:
            raise RuntimeError(
                "Some environments have an action space different from "
                f"`{single_action_space}`. In order to batch actions, the action spaces from all "
                "environments must be equal."
            )
    return single, batch


def check_shareable(space: Space[Any]) -> None:
    """Raise Gymnasium's error for a kind of space that it cannot put into shared memory."""
    # With the real dtypes, Gymnasium before 1.4 or on Python 3.15 would reject float16, too.
    any_dtype: Any = SimpleNamespace(Array=lambda *_: multiprocessing.Array("B", 1))
    try:
        create_shared_memory(space, n=1, ctx=any_dtype)
    except CustomSpaceError as error:
        raise ValueError(
            "Using `AsyncVector(..., shared_memory=True)` caused an error, you can disable this "
            "feature with `shared_memory=False` however this is slower."
        ) from error


def worker_settings(
    context: VectorContext | None, in_series: InSeries, options: Mapping[str, Any]
) -> ProcessSettings | ThreadSettings:
    """Return the checked options of the threads or processes that ``context`` selects."""
    if context != "thread":
        return ProcessSettings(context=start_method(context), in_series=in_series, **options)
    unknown = options.keys() - {field.name for field in fields(ThreadSettings)}
    if unknown:
        raise TypeError(f"{', '.join(sorted(unknown))}: cannot be combined with context='thread'")
    return ThreadSettings(in_series=in_series, **options)


def start_method(context: StartMethod | None) -> StartMethod:
    """Return ``context``; for None, Python's default, or ``"spawn"`` if that is an unsafe fork."""
    if context is not None:
        return context
    method: Any = multiprocessing.get_start_method()
    return "spawn" if method == "fork" and fork_hazard() is not None else method


class InfoBatching:
    """Mixin that builds Gymnasium's dict of infos from the infos of all environments."""

    num_envs: int
    _add_info: Any

    _every = cached_property(lambda self: np.arange(self.num_envs))

    def _reset_infos(self, infos: InfoBatch, envs: NDArray[np.intp]) -> dict[str, Any]:
        columns = self._plain_columns(infos, self._every)
        if columns is None:
            return self._merged(_built(infos, envs), {})
        reset = np.zeros(self.num_envs, np.bool_)
        reset[envs] = True
        return _with_masks(columns, reset)

    def _step_infos(self, step: FinishedStep, final_obs: list[Any]) -> dict[str, Any]:
        step_infos, ends = step
        columns = self._plain_columns(step_infos, self._every)
        if ends is None:
            if columns is None:
                return self._merged(_built(step_infos, self._every), {})
            return _with_masks(columns, None)
        envs, reset_infos = ends.resets()
        reset_columns = self._plain_columns(reset_infos, envs)
        if columns is None or reset_columns is None or not _same_kinds(columns, reset_columns):
            starts = {
                env: (final_obs[row], reset_infos.build(row, env))
                for row, env in enumerate(envs.tolist())
            }
            return self._merged(_built(step_infos, self._every), starts)
        ended = np.zeros(self.num_envs, np.bool_)
        ended[envs] = True
        infos = _with_masks(columns, ~ended)
        for key, (kind, values, mask) in reset_columns.items():
            if key not in infos:
                infos[key] = np.zeros((self.num_envs, *kind.shape), kind.dtype)
                infos[f"_{key}"] = np.zeros(self.num_envs, np.bool_)
            at = slice(None) if mask is None else mask
            infos[key][envs[at]] = values[at]
            infos[f"_{key}"][envs[at]] = True
        last = np.full(self.num_envs, None, dtype=object)
        for env, observation in zip(envs.tolist(), final_obs, strict=True):
            last[env] = observation
        infos["final_obs"], infos["_final_obs"] = last, ended
        infos["final_info"], infos["_final_info"] = _with_masks(columns, ended), ended.copy()
        return infos

    def _merged(
        self,
        infos: Iterable[tuple[int, dict[Any, Any]]],
        ends: Mapping[int, tuple[Any, dict[Any, Any]]],
    ) -> dict[str, Any]:
        """Merge environments' infos; ``ends`` has ``(final_obs, reset_info)`` by environment."""
        merged: dict[str, Any] = {}
        for env, info in infos:
            if env in ends:
                final_obs, reset_info = ends[env]
                final = {"final_obs": final_obs, "final_info": info}
                merged, info = self._add_info(merged, final, env), reset_info
            merged = self._add_info(merged, info, env)
        return merged

    def _plain_columns(self, batch: InfoBatch, envs: NDArray[np.intp]) -> Columns | None:
        """Return the columns if Gymnasium would turn each into an array and a mask, else None."""
        # Gymnasium documents this method for overriding, despite its private name.
        overrides = type(self)._add_info is not VectorEnv._add_info
        columns = None if overrides else batch.columns(envs)
        for key, (kind, _, _) in (columns or {}).items():
            reserved = key.startswith("_") or key in ("final_obs", "final_info")
            if reserved or kind is NUMBER_KINDS[np.bool_]:
                return None
        return columns


def _built(batch: InfoBatch, envs: NDArray[np.intp]) -> Iterator[tuple[int, dict[Any, Any]]]:
    ids = envs.tolist()
    return zip(ids, map(batch.build, ids, ids), strict=True)


def _same_kinds(some: Columns, others: Columns) -> bool:
    return all([some[key][0] == others[key][0] for key in some.keys() & others.keys()])


def _with_masks(columns: Columns, wanted: NDArray[np.bool_] | None) -> dict[str, Any]:
    """Return arrays and masks for the wanted environments; ``wanted`` is None for all."""
    infos: dict[str, Any] = {}
    for key, (kind, values, present) in columns.items():
        mask = np.ones(len(values), np.bool_) if present is None else present
        if wanted is not None:
            mask = mask & wanted
            if not mask.any():
                continue
        if isinstance(kind, ArrayKind):
            infos[key] = np.zeros_like(values)
            infos[key][mask] = values[mask]
        else:
            infos[key] = values if wanted is None else np.where(mask, values, values.dtype.type(0))
        infos[f"_{key}"] = mask
    return infos


class GymnasiumResults(InfoBatching, StatesMixin):
    """Mixin that builds the results of Gymnasium's vector environments from a stepper's arrays."""

    copy: bool
    closed: bool

    def _assert_is_running(self) -> None:
        stepper = self._stepper
        if self.closed or (stepper is not None and stepper.groups.closed):
            if stepper is not None:
                stepper.groups.check_process()
            raise ClosedEnvironmentError(
                f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            )

    def _reset_result(self, infos: InfoBatch, envs: NDArray[np.intp]) -> tuple[Any, dict[str, Any]]:
        return self._observation_batch(), self._reset_infos(infos, envs)

    def _step_result(self, step: FinishedStep) -> StepResult:
        arrays, (_, ends) = self._stepper.arrays, step
        final_obs = [] if ends is None else self._stepper.final_observations()
        return (
            self._observation_batch(),
            arrays.rewards.copy(),
            arrays.terminated.copy(),
            arrays.truncated.copy(),
            self._step_infos(step, final_obs),
        )

    def _observation_batch(self) -> Any:
        observations = self._stepper.arrays.observations
        if not self.copy:
            return observations.as_batch()
        # Objects stay in the arrays, from where a reset of other environments returns them again.
        return copy_of(observations.as_batch()) if observations.objects else observations.copy()
