"""What Gymnasium's vector environments return, from what the groups left in their arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from xuance_envs.compat.batched_infos import AddInfo, InfoBatcher
from xuance_envs.compat.stepping import Stepped, Stepper
from xuance_envs.engine.data.info_batch import InfoBatch

__all__ = ["StepResult", "reset_result", "step_result"]

StepResult = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


def reset_result(
    stepper: Stepper,
    batcher: InfoBatcher,
    infos: InfoBatch,
    envs: NDArray[np.intp],
    copy: bool,
    add_info: AddInfo,
) -> tuple[Any, dict[str, Any]]:
    """What ``reset`` returns.

    Args:
        stepper: has been reset.
        batcher: for its environments.
        infos: of all environments.
        envs: those that were reset.
        copy: whether the observations belong to the caller.
        add_info: Gymnasium's ``VectorEnv._add_info``.
    """
    observations = stepper.arrays.observations
    batch = observations.copy() if copy else observations.as_batch()
    return batch, batcher.of_reset(infos, envs, add_info)


def step_result(
    stepper: Stepper, batcher: InfoBatcher, step: Stepped, copy: bool, add_info: AddInfo
) -> StepResult:
    """What ``step`` returns.

    Args:
        stepper: has been stepped.
        batcher: for its environments.
        step: what came of it.
        copy: whether the observations belong to the caller.
        add_info: Gymnasium's ``VectorEnv._add_info``.
    """
    arrays = stepper.arrays
    final_obs = [] if step.envs is None else take_final(stepper, step.envs)
    return (
        arrays.observations.copy() if copy else arrays.observations.as_batch(),
        arrays.rewards.copy(),
        arrays.terminated.copy(),
        arrays.truncated.copy(),
        batcher.of_step(step, final_obs, add_info),
    )


def take_final(stepper: Stepper, envs: NDArray[np.intp]) -> list[Any]:
    """Puts first observations in the place of last ones.

    Args:
        stepper: has been stepped.
        envs: the environments that were reset in the step.

    Returns:
        The last observation of each.
    """
    arrays = stepper.arrays
    last = arrays.observations.take(envs)
    arrays.observations.assign(envs, arrays.reset_observations)
    # Environments return Discrete observations as ints, and these go to the caller one by one.
    columns = [
        part.tolist() if isinstance(leaf.space, spaces.Discrete) else list(part)
        for part, leaf in zip(last.parts, last.layout.leaves, strict=True)
    ]
    if last.layout.flat:
        return columns[0]
    return [last.layout.unflatten(row) for row in zip(*columns, strict=True)]
