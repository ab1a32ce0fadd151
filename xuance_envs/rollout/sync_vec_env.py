"""A collector that makes its environments itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any, overload

import torch

from xuance_envs.engine.cpus import available_cpus
from xuance_envs.rollout.agents import Agent
from xuance_envs.rollout.collector import RolloutCollector
from xuance_envs.rollout.recorder import GifRecorder
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["SyncVecEnv"]

BACKENDS: dict[str, Callable[..., VecEnv]] = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}

FORMS = (
    "SyncVecEnv(env_fn, num_envs, steps_per_env, agent, render_every=0, render_fps=30.0) or "
    "SyncVecEnv(env_fn, num_envs, steps_per_env, render_every, render_fps, agent)"
)


class SyncVecEnv(RolloutCollector):
    """A :class:`~xuance_envs.rollout.collector.RolloutCollector` over environments of its own.

    After ``steps_per_env`` either the agent follows, or ``render_every``, ``render_fps`` and then
    the agent.

    Args:
        env_fn: makes one environment.
        num_envs: how many to make.
        steps_per_env: steps of each environment in a rollout.
        agent: chooses the actions; see :class:`~xuance_envs.rollout.agents.Agent`.
        render_every: environment steps from one recording of environment 0 to the next; 0 or less
            for no recordings. See :class:`~xuance_envs.rollout.recorder.GifRecorder`.
        render_fps: frames per second of the recordings.
        backend: ``"dummy"`` steps the environments in this process, ``"subproc"`` in worker
            processes; or any callable that makes a vector environment from functions.
        device: see :class:`~xuance_envs.rollout.collector.RolloutCollector`, here and below.
        state_dtype: of the states.
        channels_first: whether images become (C, H, W).
        progress: whether a progress bar is shown during a rollout.
        window: how many finished episodes of each environment the statistics are about.
        seed: of the first reset: environment i gets ``seed + i``.
        halves: whether half of the workers steps while the agent thinks about the other half. With
            2 and the backend ``"subproc"`` there are by default two workers for each CPU.
        **backend_options: given to the backend.

    Raises:
        ValueError: an argument is out of its range.
        TypeError: the arguments are in neither order.

    Attributes:
        render_every: environment steps from one recording to the next; 1 without recordings.
        render_fps: frames per second of recordings.

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

    @overload
    def __init__(
        self,
        env_fn: Callable[[], Any],
        num_envs: int,
        steps_per_env: int,
        agent: Agent,
        render_every: float = 0,
        render_fps: float = 30.0,
        *,
        backend: str | Callable[..., VecEnv] = "dummy",
        device: torch.device | str | None = None,
        state_dtype: torch.dtype = torch.float32,
        channels_first: bool | str = "auto",
        progress: bool = False,
        window: int = 10,
        seed: int | Sequence[int | None] | None = None,
        halves: int | str = 1,
        **backend_options: Any,
    ) -> None: ...

    @overload
    def __init__(
        self,
        env_fn: Callable[[], Any],
        num_envs: int,
        steps_per_env: int,
        render_every: float,
        render_fps: float,
        agent: Agent,
        **options: Any,
    ) -> None: ...

    def __init__(
        self,
        env_fn: Callable[[], Any],
        num_envs: int,
        steps_per_env: int,
        *in_order: Any,
        backend: str | Callable[..., VecEnv] = "dummy",
        device: torch.device | str | None = None,
        state_dtype: torch.dtype = torch.float32,
        channels_first: bool | str = "auto",
        progress: bool = False,
        window: int = 10,
        seed: int | Sequence[int | None] | None = None,
        halves: int | str = 1,
        **by_name: Any,
    ) -> None:
        names = ("agent", "render_every", "render_fps")
        ours = {name: by_name.pop(name) for name in names if name in by_name}
        agent, render_every, render_fps = _in_either_order(in_order, ours)
        if num_envs < 1:
            raise ValueError(f"num_envs: expected at least 1, got {num_envs}")
        if isinstance(backend, str):
            if backend not in BACKENDS:
                raise ValueError(
                    f"backend: expected one of {', '.join(map(repr, BACKENDS))}, or a callable "
                    f"that makes a vector environment, got {backend!r}"
                )
            # All that is read of an observation is read before the next step.
            by_name.setdefault("copy", False)
            if halves == 2 and backend == "subproc":
                by_name.setdefault("in_series", math.ceil(num_envs / (2 * available_cpus())))
            backend = BACKENDS[backend]
        recorder = GifRecorder(render_every, render_fps) if render_every > 0 else None
        self.render_every = render_every if render_every > 0 else 1
        self.render_fps = render_fps
        vec_env = backend([env_fn] * num_envs, **by_name)
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
                halves=halves,
            )
        except BaseException:
            vec_env.close()
            raise

    @property
    def envs(self) -> list[Any]:
        """The environments, in a list of their own; for the backend ``"dummy"`` only."""
        found: list[Any] = self.vec_env.envs  # it says if there are none
        return found

    @property
    def permute_state_fn(self) -> Callable[[Any], Any]:
        """What turns an observation as the agent sees it: ``permute_state``."""
        return self.permute_state

    @property
    def can_record(self) -> bool:
        """Whether episodes are recorded at all."""
        return self.recorder is not None

    @property
    def is_recording(self) -> bool:
        """Whether the present episode of environment 0 is recorded."""
        return self.recorder is not None and self.recorder.is_recording

    @property
    def record_episode(self) -> int:
        """How many recordings have been saved, which is the number of the next."""
        return 0 if self.recorder is None else self.recorder.count


def _in_either_order(
    in_order: Sequence[Any], by_name: dict[str, Any]
) -> tuple[Agent, float, float]:
    """The agent, ``render_every`` and ``render_fps``, in whichever order they came.

    Raises:
        TypeError: they came in neither.
    """
    bind = _agent_last if in_order and isinstance(in_order[0], Real) else _agent_first
    with suppress(TypeError):
        agent, render_every, render_fps = bind(*in_order, **by_name)
        plays = callable(getattr(agent, "get_actions_and_values", None))
        if plays and all(isinstance(number, Real) for number in (render_every, render_fps)):
            return agent, render_every, render_fps
    got = [type(value).__name__ for value in in_order]
    got += [f"{name}: {type(value).__name__}" for name, value in by_name.items()]
    raise TypeError(
        f"expected {FORMS}, an agent being what has get_actions_and_values, got after "
        f"steps_per_env: {', '.join(got) or 'nothing'}"
    )


def _agent_first(agent: Any, render_every: Any = 0, render_fps: Any = 30.0) -> tuple[Any, ...]:
    return agent, render_every, render_fps


def _agent_last(render_every: Any, render_fps: Any, agent: Any) -> tuple[Any, ...]:
    return agent, render_every, render_fps
