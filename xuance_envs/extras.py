"""The extras, and the errors that name the extra to install."""

from __future__ import annotations

import dis
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from types import FunctionType
from typing import Any

from gymnasium.error import DependencyNotInstalled

EXTRAS: dict[str, tuple[str, ...]] = {
    "atari": ("ale_py", "cv2"),
    "box2d": ("Box2D",),
    "gym": ("gym",),
    "mujoco": ("mujoco",),
    "multi-agent": ("mpe2", "pettingzoo"),
    "multi-objective": ("mo_gymnasium",),
    "plot": ("matplotlib", "tqdm"),
    "ray": ("ray",),
    "remote": ("fastapi", "uvicorn", "httptools", "msgpack", "psutil"),
    "sb3": ("stable_baselines3",),
    "torch": ("torch", "tqdm", "PIL"),
}
"""Modules that each extra provides; ``doctor`` reports those that are missing."""
LEFT_OUT_FROM = {
    **{"Box2D": 14, "mo_gymnasium": 14, "mpe2": 14},
    **{"ale_py": 15, "pettingzoo": 15, "ray": 15},
}
"""First minor version of Python for which a module has no wheels; there, extras omit the module."""


def missing_modules(extra: str) -> list[str]:
    """Return the modules of an extra that are not installed."""
    return [name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None]


def how_to_install(extra: str, *missing: str) -> str:
    """Return an extra's install command, or a note that its modules do not support this Python."""
    left_out = [LEFT_OUT_FROM.get(name, 100) for name in missing]
    if missing and max(left_out) <= sys.version_info[1]:
        return f"not available for Python 3.{max(left_out)} or later"
    return f'pip install "xuance_envs[{extra}]"'


def missing_extra(feature: str, extra: str, error: ImportError) -> ImportError:
    """Return an error about a module that ``feature`` needs, with the extra to install."""
    name = error.name or EXTRAS[extra][0]
    reason = f"which cannot be imported ({error})"
    if isinstance(error, ModuleNotFoundError) and "." not in name:
        reason = "which is not installed"
    return type(error)(
        f"{feature} requires {name}, {reason}: {how_to_install(extra, name)}", name=name
    )


def require_attributes(requirement: str, owner: Any, names: str) -> None:
    """Raise ImportError unless a module or a class (with its instances) has all ``names``."""
    found = set(dir(owner))
    if isinstance(owner, type):  # its methods store the attributes of instances
        methods = [each for each in vars(owner).values() if isinstance(each, FunctionType)]
        found |= {
            instruction.argval
            for instruction in chain(*map(dis.get_instructions, methods))
            if instruction.opname == "STORE_ATTR"
        }
    if missing := sorted(set(names.split()) - found):
        from importlib.metadata import version  # workers need not import this

        package = re.split(r"\W", requirement)[0]
        raise ImportError(
            f"{package} {version(package)} has no {', '.join(missing)} in {owner.__name__}, which "
            f'xuance_envs requires: pip install "{requirement}"',
            name=package,
        )


@contextmanager
def naming_extra(env: object) -> Iterator[None]:
    """Raise :func:`missing_extra` if creating an environment fails because of a missing module."""
    try:
        yield
    except (ImportError, DependencyNotInstalled) as error:
        for cause in (error, error.__cause__):  # Gymnasium's own errors have no name
            for extra, modules in EXTRAS.items():
                if isinstance(cause, ImportError) and cause.name and cause.name in modules:
                    raise missing_extra(f"environment {env!r}", extra, cause) from error
        raise
