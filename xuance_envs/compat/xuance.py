"""XuanCe with the vector environments of this package: one call, and nothing else.

:func:`install` puts them into XuanCe's registry, from which XuanCe's runners, agents and
``make_envs`` take theirs, by the name that is under ``vectorize`` in a configuration.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from xuance_envs.multi_agent.xuance import (
    DummyVecEnv_Football,
    DummyVecEnv_StarCraft2,
    DummyVecMultiAgentEnv,
    SubprocVecEnv_Football,
    SubprocVecEnv_StarCraft2,
    SubprocVecMultiAgentEnv,
)
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv

__all__ = ["Installed", "install", "uninstall"]

logger = logging.getLogger("xuance_envs")

MIN_VERSION, BELOW_VERSION = (1, 2), (1, 5)
"""The versions of XuanCe whose registry this is for: from the first on, and before the second."""

LEGACY_VERSION = (1, 2)
"""The version whose own environments are made for Gymnasium 0.28, or for gym."""

IN_PROCESS: Mapping[str, Callable[..., Any]] = {
    "DummyVecEnv": DummyVecEnv,
    "Dummy_Atari": DummyVecEnv,
    "DummyVecMultiAgentEnv": DummyVecMultiAgentEnv,
    "Dummy_StarCraft2": DummyVecEnv_StarCraft2,
    "Dummy_Football": DummyVecEnv_Football,
}
"""By XuanCe's names, what steps environments in this process."""

IN_WORKERS: Mapping[str, Callable[..., Any]] = {
    "SubprocVecEnv": SubprocVecEnv,
    "Subproc_Atari": SubprocVecEnv,
    "SubprocVecMultiAgentEnv": SubprocVecMultiAgentEnv,
    "Subproc_StarCraft2": SubprocVecEnv_StarCraft2,
    "Subproc_Football": SubprocVecEnv_Football,
}
"""By XuanCe's names, what steps environments in worker processes."""

_originals: dict[str, Any] = {}
"""XuanCe's own entries, while others are in their place."""


class Installed:
    """What :func:`install` returns: as a context manager, it undoes at the end what that did.

    Args:
        registry: XuanCe's.
        before: its entries before.

    Attributes:
        names (tuple[str, ...]): the names in XuanCe's registry that were given another class.
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


def install(**options: Any) -> Installed:
    """Has XuanCe step its environments with the vector environments of this package.

    Every entry of ``xuance.environment.REGISTRY_VEC_ENV`` is replaced, so configurations and
    programs stay as they are; but names of XuanCe's classes that a program imported stay XuanCe's.
    Another call only brings other options.

    Args:
        **options: for the vector environments, as
            :class:`~xuance_envs.vector_envs.subproc_vec_env.SubprocVecEnv` takes them:
            ``in_series``, ``caller_steps``, ``on_worker_failure`` and so on. Those that step in
            this process are given what is for them, too: ``copy`` and ``check_actions``. The
            classes of many agents are given the same. ``copy=False`` is not for XuanCe's runners,
            which keep observations beyond the next step.

    Returns:
        What undoes it when it is left as a context manager. :func:`uninstall` does at any time.

    Raises:
        ImportError: XuanCe is not installed.
        RuntimeError: it is a version with another registry.
        TypeError: there is no such option.

    Example:
        .. code-block:: python

            from xuance_envs.compat.xuance import install

            install(caller_steps=True, on_worker_failure="restart")
    """
    registry, version, numbers = _registry()
    here, everywhere = _options_of(DummyVecEnv), _options_of(SubprocVecEnv)
    for name in options:
        if name not in everywhere:
            raise TypeError(
                f"install: expected options of SubprocVecEnv ({', '.join(sorted(everywhere))}), "
                f"got {name!r}"
            )
    known = {**IN_PROCESS, **IN_WORKERS}
    unknown = [name for name in registry if name not in known]
    if unknown:
        logger.warning("XuanCe %s: no class here for %s", version, ", ".join(unknown))
    before = {name: registry[name] for name in known if name in registry}
    for name, entry in before.items():
        _originals.setdefault(name, entry)
    for name in before:
        given = options
        if name in IN_PROCESS:
            given = {option: value for option, value in options.items() if option in here}
        registry[name] = partial(known[name], **given) if given else known[name]
    logger.info("XuanCe %s: vector environments replaced: %s", version, ", ".join(before))
    if numbers == LEGACY_VERSION:
        logger.warning(
            "XuanCe %s: the environments that it brings need Gymnasium 0.28 or gym, with which "
            "this package does not run; those of a program work, and so does XuanCe from 1.3 on",
            version,
        )
    return Installed(registry, before)


def uninstall() -> None:
    """Gives XuanCe its own vector environments back; without :func:`install`, it does nothing."""
    if _originals:
        registry, version, _ = _registry()
        registry.update(_originals)
        _originals.clear()
        logger.info("XuanCe %s: its own vector environments are back", version)


def _options_of(kind: type) -> set[str]:
    """What a class takes besides what XuanCe gives it."""
    return set(inspect.signature(kind).parameters) - {"env_fns", "env_seed"}


def _registry() -> tuple[dict[str, Any], str, tuple[int, ...]]:
    """XuanCe's registry, its version, and the first two numbers of that.

    Raises:
        ImportError: XuanCe is not installed.
        RuntimeError: it is a version with another registry.
    """
    try:
        xuance = importlib.import_module("xuance")
    except ImportError as error:
        raise ImportError(
            f"xuance_envs.compat.xuance needs XuanCe 1.2 or later (pip install xuance): {error}"
        ) from error
    version = str(getattr(xuance, "__version__", "of no stated version"))
    found = re.match(r"v?(\d+)\.(\d+)", version)
    numbers = tuple(map(int, found.groups())) if found else ()
    if not MIN_VERSION <= numbers < BELOW_VERSION:
        oldest, after = (".".join(map(str, each)) for each in (MIN_VERSION, BELOW_VERSION))
        raise RuntimeError(
            f"expected XuanCe from {oldest} on and before {after}, got {version} "
            f"({xuance.__file__}): its registry of vector environments is not known here"
        )
    registry: dict[str, Any] = importlib.import_module("xuance.environment").REGISTRY_VEC_ENV
    return registry, version, numbers
