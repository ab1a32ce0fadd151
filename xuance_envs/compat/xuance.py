"""Use of this package's vectorized environments in XuanCe, with one call.

XuanCe's runners, agents and ``make_envs`` find the class for a configuration's ``vectorize`` in a
registry, in which :func:`install` replaces entries.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from xuance_envs._override import Unpack
from xuance_envs.compat.stepping import check_number_rewards
from xuance_envs.multi_agent.xuance import (
    DummyVecEnv_Football,
    DummyVecEnv_StarCraft2,
    DummyVecMultiAgentEnv,
    SubprocVecEnv_Football,
    SubprocVecEnv_StarCraft2,
    SubprocVecMultiAgentEnv,
)
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.options import OPTIONS_OF, SubprocBackendOptions
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv

__all__ = ["Installed", "install", "uninstall"]

logger = logging.getLogger("xuance_envs")

MIN_VERSION, BELOW_VERSION = (1, 2), (1, 5)
"""Minimum supported XuanCe version, and the first unsupported version after it."""

LEGACY_VERSION = (1, 2)
"""Version whose own environments need Gymnasium 0.28 or gym."""

CLASSES: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "DummyVecEnv": ("dummy", DummyVecEnv),
    "Dummy_Atari": ("dummy", DummyVecEnv),
    "DummyVecMultiAgentEnv": ("dummy", DummyVecMultiAgentEnv),
    "Dummy_StarCraft2": ("dummy", DummyVecEnv_StarCraft2),
    "Dummy_Football": ("dummy", DummyVecEnv_Football),
    "SubprocVecEnv": ("subproc", SubprocVecEnv),
    "Subproc_Atari": ("subproc", SubprocVecEnv),
    "SubprocVecMultiAgentEnv": ("subproc", SubprocVecMultiAgentEnv),
    "Subproc_StarCraft2": ("subproc", SubprocVecEnv_StarCraft2),
    "Subproc_Football": ("subproc", SubprocVecEnv_Football),
}
"""Backends and classes of this package, by XuanCe's names for the classes."""

_originals: dict[str, Any] = {}
"""XuanCe's own registry entries, while this package's classes replace them."""


class Installed:
    """Result of :func:`install`; as a context manager, it restores the registry on exit.

    Attributes:
        names (tuple[str, ...]): the replaced names in XuanCe's registry.
    """

    def __init__(self, registry: dict[str, Any], before: Mapping[str, Any]) -> None:
        self.names = tuple(before)
        self._registry = registry
        self._before = before

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *exception: object) -> None:
        self._registry.update(self._before)
        if all(self._registry[name] is own for name, own in _originals.items()):
            _originals.clear()


def install(**options: Unpack[SubprocBackendOptions]) -> Installed:
    """Make XuanCe use this package's vectorized environments.

    Every entry of ``xuance.environment.REGISTRY_VEC_ENV`` that has an equivalent here is replaced,
    so configurations and programs stay unchanged; a warning lists the rest. Classes that a
    program has imported from XuanCe directly are not affected. The installed classes raise a
    :class:`ValueError` if the environments' rewards are vectors. A second call replaces the
    options.

    Args:
        **options: arguments of :class:`~xuance_envs.vector_envs.subproc_vec_env.SubprocVecEnv`,
            such as ``in_series``, ``caller_steps`` and ``on_worker_failure``. They also apply to
            the multi-agent classes. Classes that step environments in this process get only the
            options that they support, such as ``copy`` and ``check_actions``. Do not use
            ``copy=False`` with XuanCe's runners, which keep observations beyond the next step.

    Returns:
        A context manager that undoes the call; :func:`uninstall` does so at any time.

    Raises:
        ImportError: XuanCe is not installed.
        RuntimeError: the XuanCe version is not supported.
        TypeError: an option is unknown. Invalid values raise only when XuanCe makes environments.

    Example:
        .. code-block:: python

            from xuance_envs.compat.xuance import install

            install(caller_steps=True, on_worker_failure="restart")
    """
    registry, version, numbers = _registry()
    for name in options:
        if name not in OPTIONS_OF["subproc"]:
            raise TypeError(
                "install: expected options of SubprocVecEnv "
                f"({', '.join(sorted(OPTIONS_OF['subproc']))}), got {name!r}"
            )
    if unknown := [name for name in registry if name not in CLASSES]:
        logger.warning(
            "XuanCe %s: not replaced (no equivalent class): %s", version, ", ".join(unknown)
        )
    before = {name: registry[name] for name in CLASSES if name in registry}
    for name, entry in before.items():
        _originals.setdefault(name, entry)
        backend, kind = CLASSES[name]
        given = {key: value for key, value in options.items() if key in OPTIONS_OF[backend]}
        registry[name] = partial(_make, kind, **given)
    logger.info("XuanCe %s: vector environments replaced: %s", version, ", ".join(before))
    if numbers == LEGACY_VERSION:
        logger.warning(
            "XuanCe %s: its own environments need Gymnasium 0.28 or gym, which this package does "
            "not support: use your own environments, or XuanCe 1.3 or later",
            version,
        )
    return Installed(registry, before)


def _make(kind: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make a vectorized environment for XuanCe; raise if its rewards are vectors."""
    envs = kind(*args, **kwargs)
    try:
        check_number_rewards(
            "XuanCe",
            getattr(envs, "reward_space", None),
            "wrap each environment, for example in mo_gymnasium.wrappers.LinearReward, or make "
            "ScalarizeRewards(SubprocVecEnv(env_fns), weights) yourself",
        )
    except ValueError:
        envs.close()
        raise
    return envs


def uninstall() -> None:
    """Restore XuanCe's own vectorized environments, if they are replaced."""
    if _originals:
        registry, version, _ = _registry()
        registry.update(_originals)
        _originals.clear()
        logger.info("XuanCe %s: its own vector environments restored", version)


def _registry() -> tuple[dict[str, Any], str, tuple[int, ...]]:
    """Return XuanCe's registry, its version, and the version's first two numbers."""
    try:
        xuance = importlib.import_module("xuance")
    except ImportError as error:
        raise ImportError(
            f"xuance_envs.compat.xuance needs XuanCe 1.2 or later (pip install xuance): {error}"
        ) from error
    version = str(getattr(xuance, "__version__", "an unknown version"))
    found = re.match(r"v?(\d+)\.(\d+)", version)
    numbers = tuple(map(int, found.groups())) if found else ()
    if not MIN_VERSION <= numbers < BELOW_VERSION:
        oldest, after = (".".join(map(str, each)) for each in (MIN_VERSION, BELOW_VERSION))
        raise RuntimeError(
            f"expected XuanCe {oldest} or later, below {after}, got {version} "
            f"({xuance.__file__}), whose registry of vector environments is not supported"
        )
    registry: dict[str, Any] = importlib.import_module("xuance.environment").REGISTRY_VEC_ENV
    return registry, version, numbers
