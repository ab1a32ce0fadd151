"""A rollout collector that creates its environments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from xuance_envs.engine.cpus import available_cpus
from xuance_envs.rollout.agents import Agent
from xuance_envs.rollout.collector import PlayOptions, RolloutCollector
from xuance_envs.rollout.env_adapters import Scalarize
from xuance_envs.rollout.halves import Halves
from xuance_envs.rollout.recorder import GifRecorder
from xuance_envs.vector_envs.arguments import checked_count
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.options import SPLIT_OPTIONS, AutoBool, SubprocBackendOptions
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["SyncVecEnv"]

Backend = Literal["dummy", "subproc"]
BACKENDS: dict[str, Callable[..., VecEnv]] = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}

SIGNATURES = (
    "SyncVecEnv(env_fn, num_envs, steps_per_env, agent, render_every=0, render_fps=30.0) or "
    "SyncVecEnv(env_fn, num_envs, steps_per_env, render_every, render_fps, agent)"
)


class SyncOptions(PlayOptions, SubprocBackendOptions, total=False):
    """Options of the collector and of its backend."""


class SyncVecEnv(RolloutCollector):
    """A :class:`~xuance_envs.rollout.collector.RolloutCollector` that creates its environments.

    The positional arguments after ``steps_per_env`` are either ``agent, render_every, render_fps``
    or ``render_every, render_fps, agent``.

    Args:
        env_fn: a function that creates one environment.
        num_envs: number of environments.
        steps_per_env: steps per environment and rollout.
        agent: agent that selects the actions; see :class:`~xuance_envs.rollout.agents.Agent`.
        render_every: interval between recordings of environment 0, in steps summed over all
            environments; 0 or less for no recordings. See
            :class:`~xuance_envs.rollout.recorder.GifRecorder`.
        render_fps: frames per second of the recordings.
        backend: ``"dummy"`` to step the environments in this process, ``"subproc"`` for worker
            processes, or a callable that creates a vec env from a list of functions.
        device: device of the tensors, as in
            :class:`~xuance_envs.rollout.collector.RolloutCollector`.
        state_dtype: dtype of the states, as in ``RolloutCollector``.
        channels_first: order of image axes, as in ``RolloutCollector``.
        progress: True to show a progress bar during rollouts.
        window: number of finished episodes per environment in the statistics.
        seed: seed of the first reset: an int, from which environment i gets ``seed + i``, or a
            sequence with one seed per environment.
        halves: double buffering, as in :class:`~xuance_envs.rollout.collector.RolloutCollector`.
            With 2, ``"subproc"`` starts two workers per CPU by default.
        scalarize: conversion of vector rewards to numbers, as in ``RolloutCollector``.
        **backend_options: arguments of the backend:
            :class:`~xuance_envs.vector_envs.dummy_vec_env.DummyVecEnv`,
            :class:`~xuance_envs.vector_envs.subproc_vec_env.SubprocVecEnv` or the callable.

    Raises:
        ValueError: an argument is out of range.
        TypeError: the arguments match neither order, or a backend option is unknown.
        EnvError: an environment could not be made.

    Attributes:
        render_every: environment steps between recordings; 1 without recordings.
        render_fps: frames per second of the recordings.

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

    if TYPE_CHECKING:

        def __new__(cls, *args: Any, **kwargs: Any) -> Self:
            """Accept the arguments of ``__init__`` instead of the base class's."""

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
        backend: Backend = "dummy",
        **options: Unpack[SyncOptions],
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
        *,
        backend: Backend = "dummy",
        **options: Unpack[SyncOptions],
    ) -> None: ...

    # A callable may accept arguments of its own.
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
        backend: Callable[..., VecEnv],
        **options: Any,
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
        *,
        backend: Callable[..., VecEnv],
        **options: Any,
    ) -> None: ...

    def __init__(
        self,
        env_fn: Callable[[], Any],
        num_envs: int,
        steps_per_env: int,
        *args: Any,
        backend: Backend | Callable[..., VecEnv] = "dummy",
        device: torch.device | str | None = None,
        state_dtype: torch.dtype = torch.float32,
        channels_first: AutoBool = "auto",
        progress: bool = False,
        window: int = 10,
        seed: int | Sequence[int | None] | None = None,
        halves: Halves = 1,
        scalarize: Scalarize | None = None,
        **kwargs: Any,
    ) -> None:
        names = ("agent", "render_every", "render_fps")
        named = {name: kwargs.pop(name) for name in names if name in kwargs}
        agent, render_every, render_fps = _bind_arguments(args, named)
        num_envs = checked_count("num_envs", num_envs)
        if isinstance(backend, str):
            if backend not in BACKENDS:
                raise ValueError(
                    f"backend: expected one of {', '.join(map(repr, BACKENDS))}, or a callable "
                    f"that makes a vec env, got {backend!r}"
                )
            # The collector reads observations before the next step overwrites them.
            kwargs.setdefault("copy", False)
            is_split = any(name in kwargs for name in SPLIT_OPTIONS)
            if halves == 2 and backend == "subproc" and not is_split:
                kwargs["in_series"] = math.ceil(num_envs / (2 * available_cpus()))
            backend = BACKENDS[backend]
        recorder = None if render_every <= 0 else GifRecorder(render_every, render_fps)
        self.render_every = 1 if render_every <= 0 else render_every
        self.render_fps = render_fps
        vec_env = backend([env_fn] * num_envs, **kwargs)
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
                scalarize=scalarize,
            )
        except BaseException:
            vec_env.close()
            raise

    @property
    def envs(self) -> list[Any]:
        """The environments of a ``DummyVecEnv``; other backends raise an ``AttributeError``."""
        envs: list[Any] = self.vec_env.envs
        return envs

    @property
    def permute_state_fn(self) -> Callable[[Any], Any]:
        """XuanCe's name for the method ``permute_state``."""
        return self.permute_state

    @property
    def can_record(self) -> bool:
        """True if recordings are enabled."""
        return self.recorder is not None

    @property
    def is_recording(self) -> bool:
        """True if the current episode of environment 0 is being recorded."""
        return self.recorder is not None and self.recorder.is_recording

    @property
    def record_episode(self) -> int:
        """Number of saved recordings; the next file is named after this number."""
        return 0 if self.recorder is None else self.recorder.count


def _bind_arguments(args: Sequence[Any], named: dict[str, Any]) -> tuple[Agent, float, float]:
    """Return ``agent``, ``render_every`` and ``render_fps``; ``agent`` may come first or last."""
    bind = _agent_last if args and isinstance(args[0], Real) else _agent_first
    with suppress(TypeError):
        agent, render_every, render_fps = bind(*args, **named)
        plays = callable(getattr(agent, "get_actions_and_values", None))
        if plays and all(isinstance(number, Real) for number in (render_every, render_fps)):
            return agent, render_every, render_fps
    got = [type(value).__name__ for value in args]
    got += [f"{name}: {type(value).__name__}" for name, value in named.items()]
    raise TypeError(
        f"expected {SIGNATURES}, where agent has get_actions_and_values; the arguments after "
        f"steps_per_env were: {', '.join(got) or 'none'}"
    )


def _agent_first(agent: Any, render_every: Any = 0, render_fps: Any = 30.0) -> tuple[Any, ...]:
    return agent, render_every, render_fps


def _agent_last(render_every: Any, render_fps: Any, agent: Any) -> tuple[Any, ...]:
    return agent, render_every, render_fps
