"""Errors of saving and loading, raised where the environment's index is not known."""

from __future__ import annotations

import re
from typing import Any

from xuance_envs.errors import StateError, StateMismatchError

_MAX_TEXT = 300
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class FaultError(Exception):
    """Something cannot be saved, or a state cannot be read."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where = where
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}" if self.where else self.reason


class MismatchError(FaultError):
    """A state was saved from an environment that differs from the target environment."""

    def __init__(self, what: str, saved: Any, here: Any, reason: str = "") -> None:
        given, expected = shortened(saved), shortened(here)
        usual = f"the state was saved from an environment that differs in its {what}: "
        super().__init__("", reason or f"{usual}{given} when it was saved, {expected} here")
        self.what = what
        self.saved = saved
        self.here = here


def to_state_error(env: int, fault: FaultError, command: str) -> StateError:
    if isinstance(fault, MismatchError):
        return StateMismatchError(env, command, str(fault), "", fault.what, fault.saved, fault.here)
    return StateError(env, command, str(fault))


def type_name(value: Any) -> str:
    """Return the name of a value's type for error messages."""
    return class_name(type(value)).removeprefix("builtins.")


def type_phrase(value: Any) -> str:
    """Return the name of a value's type with an article."""
    name = type_name(value)
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"


def class_name(kind: type) -> str:
    return f"{module_of(kind)}.{kind.__qualname__}".removeprefix(".")


def module_of(kind: Any) -> str:
    """Return the name of a class's module; an empty text if it has none, as SWIG's classes."""
    return getattr(kind, "__module__", None) or ""


def shortened(value: Any, limit: int = _MAX_TEXT) -> str:
    """Return a string, or the ``repr`` of any other value, cut to ``limit`` characters."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def without_addresses(text: str) -> str:
    """Remove the memory addresses of objects, which differ between processes."""
    return _ADDRESS.sub("", text)
