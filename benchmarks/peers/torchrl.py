"""TorchRL's vector environments, whose inputs and outputs are dictionaries of tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.peers.entry import Entry
from xuance_envs.measure import StepLoop

MOST_PROCESSES = 16
"""Limit, because each process imports torch and TorchRL, which takes hundreds of megabytes."""


class TensorSteps:
    """Adapter that passes actions in a dictionary of tensors; one call steps and resets."""

    def __init__(self, envs: Any) -> None:
        self._envs = envs
        self._tensors = envs.reset()

    def step(self, actions: Any) -> Any:
        self._tensors["action"] = actions
        result, self._tensors = self._envs.step_and_maybe_reset(self._tensors)
        return result


def wrapped(function: Callable[[], Any]) -> Any:
    """Create one environment with ints as actions instead of one-hot vectors."""
    from torchrl.envs import GymWrapper

    return GymWrapper(function(), categorical_action_encoding=True)


def serial(entry: Entry) -> StepLoop:
    from torchrl.envs import SerialEnv

    return _loop(SerialEnv(entry.num_envs, _functions(entry)), entry)


def parallel(entry: Entry) -> StepLoop:
    entry.need_processes(MOST_PROCESSES)
    from torchrl.envs import ParallelEnv

    method = "fork" if entry.quick_start else None
    envs = ParallelEnv(entry.num_envs, _functions(entry), mp_start_method=method)
    return _loop(envs, entry)


def _functions(entry: Entry) -> list[Callable[[], Any]]:
    return [partial(wrapped, function) for function in entry.env_fns()]


def _loop(envs: Any, entry: Entry) -> StepLoop:
    import torch

    entry.stack.callback(envs.close)
    envs.set_seed(0)
    actions = [torch.from_numpy(batch) for batch in entry.actions]
    return StepLoop(TensorSteps(envs), entry.num_envs, actions)
