"""Many environments by their id: which wrapper each one gets, and which backend steps them."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from xuance_envs.compat.native import make_native
from xuance_envs.gym.atari_games import UnknownGameError, full_id
from xuance_envs.gym.gym_env import Atari_Env, Gym_Env
from xuance_envs.tuning import autotune
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["env_maker", "make_vec"]

BACKENDS = ("auto", "dummy", "subproc", "ray", "native")

logger = logging.getLogger("xuance_envs")


def make_vec(
    env_id: str,
    num_envs: int,
    *,
    backend: str = "auto",
    seed: int | None = None,
    render_mode: str | None = None,
    allow_native: bool = False,
    vector_kwargs: Mapping[str, Any] | None = None,
    **env_kwargs: Any,
) -> VecEnv:
    """Makes many environments of an id.

    Atari games, by any id :class:`~xuance_envs.gym.atari_env.Atari_Env` takes, become an
    ``Atari_Env`` each, all others a :class:`~xuance_envs.gym.gym_env.Gym_Env`.

    Args:
        env_id: as ``gymnasium.make`` takes it, or an Atari game's short form.
        num_envs: how many.
        backend: ``"dummy"`` steps them in this process, ``"subproc"`` in worker processes,
            ``"ray"`` on a Ray cluster; ``"native"`` is the environment's own vectorized form,
            if it has one. ``"auto"`` measures for about a second which of the first two is
            fastest, with which options, and keeps what it found in ``autotuned``.
        seed: the first reset of environment i equals ``reset(seed=seed + i)``.
        render_mode: of every environment.
        allow_native: whether ``"auto"`` may choose ``"native"``, which draws its random numbers
            in a way of its own.
        vector_kwargs: further arguments for the backend's class; not with ``"auto"``.
        **env_kwargs: further arguments for every environment.

    Raises:
        ValueError: there is no such backend, or ``num_envs`` is below 1.
        gymnasium.error.Error: there is no such environment.
        EnvError: an environment could not be made.

    Example:
        >>> from xuance_envs import make_vec
        >>> with make_vec("CartPole-v1", 8, seed=0) as envs:
        ...     obs, infos = envs.reset()
        >>> obs.shape
        (8, 4)
    """
    num_envs = operator.index(num_envs)
    if num_envs < 1:
        raise ValueError(f"num_envs: expected at least 1, got {num_envs}")
    if backend not in BACKENDS:
        expected = ", ".join(map(repr, BACKENDS))
        raise ValueError(f"backend: expected one of {expected}, got {backend!r}")
    options = dict(vector_kwargs or {})
    make_env = env_maker(env_id, render_mode, **env_kwargs)
    if render_mode is not None:
        env_kwargs["render_mode"] = render_mode
    native = partial(_native, env_id, num_envs, seed=seed, **env_kwargs)
    tuned = None
    if backend == "auto":
        if options:
            raise ValueError(
                "vector_kwargs: expected none with backend='auto', which finds them out itself, "
                f"got {options}"
            )
        others = {"native": native} if allow_native and _has_native_form(env_id) else {}
        tuned = autotune(make_env, num_envs, others=others)
        backend, options = tuned.choice.backend, dict(tuned.choice.options)
        logger.info("%s x %d: %s", env_id, num_envs, tuned.choice.name)
    if backend == "native":
        vec_env = native(**options)
    else:
        vec_env = _class_of(backend)(
            [partial(make_env, **_seeded(seed, i)) for i in range(num_envs)], **options
        )
    vec_env.autotuned = tuned
    return vec_env


def env_maker(env_id: str, render_mode: str | None = None, **env_kwargs: Any) -> Callable[..., Any]:
    """What makes one environment of an id, in the wrapper that suits it.

    Args:
        env_id: as for :func:`make_vec`.
        render_mode: of the environment; None for the wrapper's own default.
        **env_kwargs: further arguments for the environment.

    Returns:
        A callable that can be pickled, and takes ``seed``. It takes with it how the id is
        registered here, for processes that do not know it.
    """
    given: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    if _is_atari(env_id):
        return partial(Atari_Env, env_id, **given, **env_kwargs)
    if (spec := gymnasium.registry.get(env_id)) is None:
        return partial(Gym_Env, env_id, **given, **env_kwargs)
    return partial(_make_registered, spec, **given, **env_kwargs)


def _make_registered(spec: EnvSpec, **kwargs: Any) -> Gym_Env:
    gymnasium.registry.setdefault(spec.id, spec)
    return Gym_Env(spec.id, **kwargs)


def _seeded(seed: int | None, i: int) -> dict[str, int]:
    return {} if seed is None else {"seed": seed + i}


def _is_atari(env_id: str) -> bool:
    if env_id in gymnasium.registry or ":" in env_id:
        return env_id.startswith("ALE/")
    try:
        full_id(env_id)
    except ImportError:  # without ale-py no short form is known
        return env_id.startswith("ALE/")
    except UnknownGameError:
        return False
    return True


def _class_of(backend: str) -> Callable[..., VecEnv]:
    if backend == "dummy":
        return DummyVecEnv
    if backend == "subproc":
        return SubprocVecEnv
    from xuance_envs.vector_envs.ray_vec_env import RayVecEnv_Gym

    return RayVecEnv_Gym


def _native(env_id: str, num_envs: int, **kwargs: Any) -> VecEnv:
    return make_native(full_id(env_id) if _is_atari(env_id) else env_id, num_envs, **kwargs)


def _has_native_form(env_id: str) -> bool:
    spec = gymnasium.spec(full_id(env_id) if _is_atari(env_id) else env_id)
    return spec.vector_entry_point is not None
