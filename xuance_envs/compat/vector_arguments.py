"""Checks of the arguments of Gymnasium's vector environments, with Gymnasium's errors."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.error import CustomSpaceError
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_differing_spaces, batch_space, create_shared_memory
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.group.outcome import Autoreset
from xuance_envs.vector_envs.options import InSeries, StartMethod, VectorContext
from xuance_envs.vector_envs.subproc_vec_env import fork_hazard
from xuance_envs.vector_envs.worker_settings import ProcessSettings, ThreadSettings

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


def as_rows(space: Space[Any], actions: Any) -> Any:
    """Convert a tuple or array of single actions to a list, for Dict and Tuple spaces."""
    is_composite = isinstance(space, spaces.Dict | spaces.Tuple)
    return list(actions) if is_composite and isinstance(actions, tuple | np.ndarray) else actions


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
