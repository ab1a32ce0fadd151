"""Properties in which the saved environment and the target environment must agree."""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from xuance_envs.state.faults import MismatchError, class_name, without_addresses
from xuance_envs.state.layers import Layer
from xuance_envs.state.values.canonical import digest
from xuance_envs.state.values.functions import full_name
from xuance_envs.state.values.graph import ATOMIC

RESOURCES = "kept resources"
"""Part that lists the resources, which are neither saved nor compared."""

_ARGUMENTS = "arguments digest"
"""Part that is compared instead of the part "kwargs", which is only displayed."""

_SINCE_0_3 = _ARGUMENTS, "inner spaces"
"""Parts that descriptions of version 0.2 do not have."""

_SAVED_BY_0_2 = (
    "the state was saved by version 0.2, which did not save pygame's objects, shared memory of "
    "structured arrays, closure variables and defaults of functions, or class attributes other "
    "than those of the environment and its wrappers"
)

VERSION_BOUND_LIBRARIES = frozenset({"mujoco", "ale_py", "Box2D"})
"""Libraries whose states are valid for only one version."""

_DIGEST = 12


class Fingerprint:
    """Comparable description of an environment and its library versions."""

    def __init__(self, parts: dict[str, Any], versions: dict[str, str]) -> None:
        self.parts = parts
        self.versions = versions
        text = repr((parts, versions)).encode()
        self.digest = hashlib.blake2b(text, digest_size=_DIGEST).digest()

    @classmethod
    def of(
        cls, layers: Sequence[Layer], extra: dict[str, Any], resources: Sequence[str] = ()
    ) -> Fingerprint:
        """Describe an environment by its layers; ``resources`` names the unsaved objects."""
        spec = next((s for layer in reversed(layers) if (s := layer.get("spec")) is not None), None)
        parts: dict[str, Any] = {
            "wrappers": [class_name(type(layer.obj)) for layer in layers],
            "id": getattr(spec, "id", None),
            "kwargs": without_addresses(repr(getattr(spec, "kwargs", None))),
            "observation space": _space_digest(layers[0].obj.observation_space),
            "action space": _space_digest(layers[0].obj.action_space),
            _ARGUMENTS: digest(_plain(getattr(spec, "kwargs", None))).hex(),
            "inner spaces": [
                f"{layer.name}.{name}: {_space_digest(value)}"
                for layer in layers
                for name, value in sorted(layer.items())
                if is_space(value)
            ],
            **({RESOURCES: list(resources)} if resources else {}),
            **extra,
        }
        libraries = {type(layer.obj).__module__.partition(".")[0] for layer in layers}
        libraries |= {"numpy"} | (VERSION_BOUND_LIBRARIES & parts.pop("libraries", set()))
        libraries -= {"builtins"}
        found = {n: getattr(sys.modules.get(n), "__version__", None) for n in sorted(libraries)}
        return cls(parts, {n: v for n, v in found.items() if v and isinstance(v, str)})

    def check(self, parts: dict[str, Any], versions: dict[str, str]) -> list[str]:
        """Compare with a saved description; return warnings about different library versions."""
        missing = [what for what in _SINCE_0_3 if what not in parts]
        warnings = [_SAVED_BY_0_2] if missing else []
        for what in {**parts, **self.parts}:
            if what in missing or what == RESOURCES or (what == "kwargs" and not missing):
                continue
            if parts.get(what) != self.parts.get(what):
                name = "kwargs" if what == _ARGUMENTS else what
                raise MismatchError(name, parts.get(name), self.parts.get(name))
        for name in {**versions, **self.versions}:
            saved, current = versions.get(name), self.versions.get(name)
            if saved == current:
                continue
            # States of earlier versions of this package lack the version of Box2D.
            if name in VERSION_BOUND_LIBRARIES and (saved or name != "Box2D"):
                raise MismatchError(f"version of {name}", saved, current)
            saved = saved or "of an unknown version"
            warnings.append(
                f"the state was saved with {name} {saved}, and this process has {current}"
            )
        return warnings


_SPACE_MODULES = ("gymnasium.spaces.space", "gym.spaces.space")


def is_space(value: Any) -> bool:
    """Return whether a value is a space of Gymnasium or legacy gym."""
    for each in type(value).__mro__:
        if each.__name__ == "Space" and each.__module__ in _SPACE_MODULES:
            return True
    return False


def subspaces(space: Any) -> Iterator[Any]:
    """Yield a space and its nested spaces, each once, in a fixed order."""
    seen: set[int] = set()
    waiting = [space]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        for _, value in sorted(vars(one).items()):
            inner = list(value.values()) if isinstance(value, dict) else value
            items = inner if isinstance(inner, (list, tuple)) else [inner]
            waiting += [item for item in items if is_space(item)]


def _plain(value: Any) -> Any:
    """Replace objects other than data and functions by the names of their classes."""
    kind = type(value)
    if kind is dict:
        return {str(key): _plain(item) for key, item in value.items()}
    if kind in (list, tuple):
        return [_plain(item) for item in value]
    if kind in ATOMIC or kind in (set, frozenset, np.ndarray, types.FunctionType):
        return value
    return full_name(value if isinstance(value, type) else kind)


def _space_digest(space: Any) -> str:
    """Describe a space with a digest of its exact bounds."""
    bounds = hashlib.blake2b(digest_size=_DIGEST)
    for part in subspaces(space):
        for name, value in sorted(vars(part).items()):
            if isinstance(value, np.ndarray):
                bounds.update(f"{name} {value.dtype} {value.shape}".encode() + value.tobytes())
            elif name == "_char_list" and list(value) != sorted(value):
                bounds.update(repr(value).encode())  # the order in which Text draws characters
    return f"{without_addresses(repr(space))} ({bounds.hexdigest()})"
