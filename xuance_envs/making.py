"""Vectorized environments by environment id: ``make_vec`` chooses the wrapper and the backend."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, overload

import gymnasium
from gymnasium import VectorizeMode
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from xuance_envs.compat.gymnasium_make_vec import Wrappers, make_gymnasium_vec, wrapped
from xuance_envs.compat.native import make_native
from xuance_envs.gym.atari_games import UnknownGameError, full_id, is_game
from xuance_envs.gym.gym_env import Atari_Env, Gym_Env
from xuance_envs.transforms.normalize_observations import NormalizeObservations
from xuance_envs.transforms.normalize_rewards import NormalizeRewards
from xuance_envs.tuning import backend_class, backend_for
from xuance_envs.vector_envs.arguments import checked_count, checked_seed
from xuance_envs.vector_envs.options import (
    BackendName,
    BackendOptions,
    did_you_mean,
    naming_misplaced_options,
)
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["env_maker", "make_vec"]

AtariPreset = Literal["dqn"]
VectorizationMode = Literal["sync", "async", "vector_entry_point"]
BACKENDS = ("auto", "dummy", "thread", "subproc", "ray", "native")

logger = logging.getLogger("xuance_envs")


@overload
def make_vec(
    env_id: str | EnvSpec,
    num_envs: int,
    *,
    backend: BackendName = "auto",
    seed: int | None = None,
    render_mode: str | None = None,
    allow_native: bool = False,
    allow_threads: bool = False,
    normalize: bool = False,
    atari_preset: AtariPreset | None = None,
    vectorization_mode: None = None,
    vector_kwargs: BackendOptions | None = None,
    wrappers: Wrappers = (),
    **env_kwargs: Any,
) -> VecEnv: ...
@overload
def make_vec(
    env_id: str | EnvSpec,
    num_envs: int,
    *,
    backend: Literal["native"],
    seed: int | None = None,
    render_mode: str | None = None,
    allow_native: bool = False,
    allow_threads: bool = False,
    normalize: bool = False,
    vectorization_mode: None = None,
    vector_kwargs: Mapping[str, Any] | None = None,
    **env_kwargs: Any,
) -> VecEnv: ...
@overload
def make_vec(
    env_id: str | EnvSpec,
    num_envs: int,
    *,
    render_mode: str | None = None,
    vectorization_mode: VectorizationMode | VectorizeMode,
    vector_kwargs: Mapping[str, Any] | None = None,
    wrappers: Wrappers = (),
    **env_kwargs: Any,
) -> VectorEnv[Any, Any, Any]: ...
def make_vec(
    env_id: str | EnvSpec,
    num_envs: int,
    *,
    backend: str = "auto",
    seed: int | None = None,
    render_mode: str | None = None,
    allow_native: bool = False,
    allow_threads: bool = False,
    normalize: bool = False,
    atari_preset: AtariPreset | None = None,
    vectorization_mode: str | VectorizeMode | None = None,
    vector_kwargs: Mapping[str, Any] | None = None,
    wrappers: Wrappers = (),
    **env_kwargs: Any,
) -> VecEnv | VectorEnv[Any, Any, Any]:
    """Make a vectorized environment by id.

    An Atari game, under any id that :class:`~xuance_envs.gym.atari_env.Atari_Env` accepts, is
    wrapped in ``Atari_Env``; any other environment in :class:`~xuance_envs.gym.gym_env.Gym_Env`.

    With ``vectorization_mode``, the function behaves like ``gymnasium.make_vec`` but uses this
    package's drop-in classes: sub-environments come from ``gymnasium.make``, and the result is a
    Gymnasium vector environment.

    Args:
        env_id: an id or ``EnvSpec`` for ``gymnasium.make``, or an Atari game's short name. An
            Atari game given as a spec that differs from the registered one is wrapped in
            ``Gym_Env``.
        num_envs: number of environments.
        backend: ``"dummy"`` steps the environments in this process, ``"thread"`` in threads,
            ``"subproc"`` in worker processes, ``"ray"`` on a Ray cluster. ``"native"`` uses the
            environment's own vectorized implementation, if it has one. ``"auto"`` finds out in
            about a second, as :func:`~xuance_envs.tuning.autotune` does, whether ``"dummy"`` or
            ``"subproc"`` is faster, and with which options; the result is stored in the attribute
            ``autotuned``.
        seed: seed of the first reset; environment i gets ``seed + i``.
        render_mode: render mode of every environment.
        allow_native: True to allow ``"auto"`` to choose ``"native"``, whose random numbers differ
            from those of other backends. Ignored with ``wrappers``, ``vector_kwargs`` or
            ``atari_preset``.
        allow_threads: True to allow ``"auto"`` to choose ``"thread"``, as for
            :func:`~xuance_envs.tuning.autotune`.
        normalize: True to normalize observations and rewards, with
            :class:`~xuance_envs.transforms.normalize_observations.NormalizeObservations` around
            :class:`~xuance_envs.transforms.normalize_rewards.NormalizeRewards`.
        atari_preset: ``"dqn"`` for the 84 × 84 images of Mnih et al. (2015): ``Atari_Env`` with
            ``image_size=84``. None keeps the screen's size. Only for Atari games.
        vectorization_mode: ``"sync"`` for a
            :class:`~xuance_envs.compat.gymnasium_sync.SyncVectorEnv`, ``"async"`` for an
            :class:`~xuance_envs.compat.gymnasium_async.AsyncVectorEnv`, ``"vector_entry_point"``
            for the environment's own vectorized implementation, unchanged. Cannot be combined
            with ``backend``, ``allow_native``, ``allow_threads``, ``normalize``, ``atari_preset``
            or ``seed`` (pass the seed to ``reset``).
        vector_kwargs: options of the vectorized environment, such as
            ``{"on_worker_failure": "restart"}``. ``backend="auto"`` considers only backends that
            support all of them.
        wrappers: functions that take an environment and return it wrapped, applied to every
            environment in the given order. Not with ``backend="native"``.
        **env_kwargs: further arguments for every environment.

    Returns:
        A :class:`~xuance_envs.vector_envs.vector_env.VecEnv`, whose ``autotuned`` is None unless
        ``backend`` is ``"auto"``; with ``vectorization_mode``, a ``gymnasium.vector.VectorEnv``.

    Raises:
        ValueError: ``backend``, ``vectorization_mode``, ``num_envs`` or ``seed`` is invalid,
            arguments cannot be combined, or the observations cannot be normalized.
        TypeError: ``env_id`` is neither an id nor a spec, an option is unknown, or an option of the
            vectorized environment is among ``env_kwargs``.
        EnvError: an environment could not be made (unknown id, missing library, or its own error).
        gymnasium.error.Error: the id is unknown; only with ``vectorization_mode``,
            ``backend="native"`` or ``allow_native``.
        ImportError: Ray is missing. With ``vectorization_mode`` or ``backend="native"``, also if
            a library of the environment is missing.

    Example:
        >>> from xuance_envs import make_vec
        >>> with make_vec("CartPole-v1", 8, seed=0) as envs:
        ...     obs, infos = envs.reset()
        >>> obs.shape
        (8, 4)
    """
    num_envs = checked_count("num_envs", num_envs)
    if backend not in BACKENDS:
        expected = ", ".join(map(repr, BACKENDS))
        hint = did_you_mean(str(backend), BACKENDS)
        raise ValueError(f"backend: expected one of {expected}, got {backend!r}{hint}")
    if isinstance(env_id, str) and _is_multi_agent(env_id):
        raise ValueError(
            f"env_id: expected a single-agent environment, got {env_id!r}: use make_multi_agent_vec"
        )
    if seed is not None:
        seed = checked_seed("seed", seed)
    options: Any = dict(vector_kwargs or {})
    if render_mode is not None:
        env_kwargs = {"render_mode": render_mode, **env_kwargs}
    if vectorization_mode is not None:
        others = allow_native, allow_threads, normalize, atari_preset, seed is not None
        if backend != "auto" or any(others):
            raise ValueError(
                f"vectorization_mode={vectorization_mode!r} cannot be combined with backend, "
                "allow_native, allow_threads, normalize, atari_preset or seed (pass the seed to "
                "reset)"
            )
        with naming_misplaced_options(env_kwargs):
            registered = _registered_id(env_id)
            return make_gymnasium_vec(
                registered, num_envs, vectorization_mode, options, wrappers, env_kwargs
            )
    make_env = env_maker(env_id, **env_kwargs)
    if atari_preset is not None:
        if atari_preset != "dqn":
            raise ValueError(f"atari_preset: expected 'dqn' or None, got {atari_preset!r}")
        if make_env.func is not Atari_Env or backend == "native":
            raise ValueError(
                f"atari_preset={atari_preset!r}: expected an Atari game and a backend other than "
                f"'native', got {_name_of(env_id)!r} with backend={backend!r}"
            )
        make_env, allow_native = partial(make_env, **{"image_size": 84, **env_kwargs}), False
    if wrappers:
        make_env = partial(wrapped, make_env, tuple(wrappers))
    native = partial(_native, env_id, num_envs, wrappers=wrappers, seed=seed, **env_kwargs)
    tuned = None
    with naming_misplaced_options(env_kwargs):
        if backend == "auto":
            allow_native = allow_native and not (wrappers or options) and _has_native_form(env_id)
            natives = {"native": native} if allow_native else {}
            tuned = backend_for(
                make_env, num_envs, options=options, allow_threads=allow_threads, others=natives
            )
            backend, options = tuned.choice.backend, dict(tuned.choice.options)
            logger.info("%s x %d: %s", _name_of(env_id), num_envs, tuned.choice.name)
        if backend == "native":
            vec_env = native(**options)
        else:
            seeds = [{} if seed is None else {"seed": seed + i} for i in range(num_envs)]
            env_fns = [partial(make_env, **each) for each in seeds]
            vec_env = backend_class(backend)(env_fns, **options)
    vec_env.autotuned = tuned
    if not normalize:
        return vec_env
    try:
        return NormalizeObservations(NormalizeRewards(vec_env))
    except BaseException:
        vec_env.close()
        raise


def env_maker(env_id: str | EnvSpec, **env_kwargs: Any) -> partial[Any]:
    """Return a picklable factory of one environment of :func:`make_vec`; it accepts ``seed``."""
    if not isinstance(env_id, str | EnvSpec):
        raise TypeError(
            f"env_id: expected an id or an EnvSpec, got {env_id!r}; for environments without an "
            "id, pass functions that create them to SubprocVecEnv, ThreadVecEnv or DummyVecEnv"
        )
    name = _name_of(env_id)
    spec = gymnasium.registry.get(name)
    if _is_atari(name) and env_id in (name, spec):
        return partial(Atari_Env, name, **env_kwargs)
    if isinstance(env_id, str) and spec is not None:
        return partial(_make_registered, spec, **env_kwargs)
    return partial(Gym_Env, env_id, **env_kwargs)


def _make_registered(spec: EnvSpec, **kwargs: Any) -> Gym_Env:
    """Create an environment in a process in which its id may not be registered."""
    gymnasium.registry.setdefault(spec.id, spec)
    return Gym_Env(spec.id, **kwargs)


def _is_atari(env_id: str) -> bool:
    if env_id in gymnasium.registry or ":" in env_id:
        return is_game(env_id)
    try:
        full_id(env_id)
    except ImportError:  # short names need ale-py
        return env_id.startswith("ALE/")
    except UnknownGameError:
        return False
    return True


def _native(env_id: str | EnvSpec, num_envs: int, wrappers: Wrappers, **kwargs: Any) -> VecEnv:
    if wrappers:
        raise ValueError(
            "wrappers cannot be combined with backend='native', which steps all environments in "
            "one call and has no single environment to wrap"
        )
    return make_native(_registered_id(env_id), num_envs, **kwargs)


def _has_native_form(env_id: str | EnvSpec) -> bool:
    env_id = _registered_id(env_id)
    spec = env_id if isinstance(env_id, EnvSpec) else gymnasium.spec(env_id)
    return spec.vector_entry_point is not None


def _is_multi_agent(env_id: str) -> bool:
    """Return whether an id names a PettingZoo-style module: ``"mpe2:simple_spread_v3"``."""
    package, _, name = env_id.partition(":")
    if not name.isidentifier():
        return False
    try:
        return hasattr(importlib.import_module(f"{package}.{name}"), "parallel_env")
    except ImportError:
        return False


def _registered_id(env_id: str | EnvSpec) -> str | EnvSpec:
    """Return the registered id of an Atari game's short name; return other ids unchanged."""
    return full_id(env_id) if isinstance(env_id, str) and _is_atari(env_id) else env_id


def _name_of(env_id: str | EnvSpec) -> str:
    return env_id.id if isinstance(env_id, EnvSpec) else env_id
