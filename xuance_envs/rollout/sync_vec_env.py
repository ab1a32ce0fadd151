"""A collector that makes its environments itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from xuance_envs.rollout.agents import Agent
from xuance_envs.rollout.collector import RolloutCollector
from xuance_envs.rollout.recorder import GifRecorder
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["SyncVecEnv"]

BACKENDS: dict[str, Callable[..., VecEnv]] = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}


class SyncVecEnv(RolloutCollector):
    """A :class:`~xuance_envs.rollout.collector.RolloutCollector` over environments of its own.

    Args:
        env_fn: makes one environment.
        num_envs: how many to make.
        steps_per_env: steps of each environment in a rollout.
        agent: chooses the actions; see :class:`~xuance_envs.rollout.agents.Agent`.
        render_every: environment steps from one recording of environment 0 to the next; 0 for no
            recordings. See :class:`~xuance_envs.rollout.recorder.GifRecorder`.
        render_fps: frames per second of the recordings.
        backend: ``"dummy"`` steps the environments in this process, ``"subproc"`` in worker
            processes; or any callable that makes a vector environment from functions.
        device: see :class:`~xuance_envs.rollout.collector.RolloutCollector`, here and below.
        state_dtype: of the states.
        channels_first: whether images become (C, H, W).
        progress: whether a progress bar is shown during a rollout.
        window: how many finished episodes of each environment the statistics are about.
        seed: of the first reset: environment i gets ``seed + i``.
        **backend_options: given to the backend.

    Raises:
        ValueError: an argument is out of its range.

    Example:
        >>> import torch
        >>> from xuance_envs import Gym_Env, SyncVecEnv
        >>> class Still:
        ...     def get_actions_and_values(self, states, actions=None):
        ...         nothing = torch.zeros(len(states))
        ...         return torch.ones_like(nothing).int(), nothing, nothing, nothing
        >>> env_fn = lambda: Gym_Env("MountainCar-v0")
        >>> envs = SyncVecEnv(env_fn, 2, 200, agent=Still(), device="cpu")
        >>> envs.rollout()
        >>> envs.mean_ep_return, envs.trunc_flags.sum().item()
        (-200.0, 2)
        >>> envs.close()
    """

    def __init__(
        self,
        env_fn: Callable[[], Any],
        num_envs: int,
        steps_per_env: int,
        *,
        agent: Agent,
        render_every: int = 0,
        render_fps: float = 30.0,
        backend: str | Callable[..., VecEnv] = "dummy",
        device: torch.device | str | None = None,
        state_dtype: torch.dtype = torch.float32,
        channels_first: bool | str = "auto",
        progress: bool = False,
        window: int = 10,
        seed: int | Sequence[int | None] | None = None,
        **backend_options: Any,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs: expected at least 1, got {num_envs}")
        if isinstance(backend, str):
            if backend not in BACKENDS:
                raise ValueError(
                    f"backend: expected one of {', '.join(map(repr, BACKENDS))}, or a callable "
                    f"that makes a vector environment, got {backend!r}"
                )
            # All that is read of an observation is read before the next step.
            backend_options.setdefault("copy", False)
            backend = BACKENDS[backend]
        recorder = GifRecorder(render_every, render_fps) if render_every else None
        vec_env = backend([env_fn] * num_envs, **backend_options)
        try:
            super().__init__(
                vec_env,
                agent,
                steps_per_env,
                device=device,
                state_dtype=state_dtype,
                channels_first=channels_first,
                progress=progress,
                recorder=recorder,
                window=window,
                seed=seed,
            )
        except BaseException:
            vec_env.close()
            raise
