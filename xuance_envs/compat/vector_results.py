"""Results of Gymnasium's vector environments, built from a stepper's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from xuance_envs.compat.batched_infos import AddInfo, InfoBatcher
from xuance_envs.compat.stepping import FinishedStep, Stepper
from xuance_envs.engine.data.info_batch import InfoBatch

StepResult = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


def reset_result(
    stepper: Stepper,
    batcher: InfoBatcher,
    infos: InfoBatch,
    envs: NDArray[np.intp],
    copy: bool,
    add_info: AddInfo,
) -> tuple[Any, dict[str, Any]]:
    observations = stepper.arrays.observations
    batch = observations.copy() if copy else observations.as_batch()
    return batch, batcher.batch_reset(infos, envs, add_info)


def step_result(
    stepper: Stepper, batcher: InfoBatcher, step: FinishedStep, copy: bool, add_info: AddInfo
) -> StepResult:
    arrays = stepper.arrays
    final_obs = [] if step.envs is None else take_final(stepper, step.envs)
    return (
        arrays.observations.copy() if copy else arrays.observations.as_batch(),
        arrays.rewards.copy(),
        arrays.terminated.copy(),
        arrays.truncated.copy(),
        batcher.batch_step(step, final_obs, add_info),
    )


def take_final(stepper: Stepper, envs: NDArray[np.intp]) -> list[Any]:
    """Return the last observations and replace them with the next episodes' first ones."""
    arrays = stepper.arrays
    last = arrays.observations.take(envs)
    arrays.observations.assign(envs, arrays.reset_observations)
    # Single Discrete observations are ints, as the environments return them.
    columns = [
        part.tolist() if isinstance(leaf.space, spaces.Discrete) else list(part)
        for part, leaf in zip(last.parts, last.layout.leaves, strict=True)
    ]
    if last.layout.flat:
        return columns[0]
    return [last.layout.unflatten(row) for row in zip(*columns, strict=True)]
