"""What clients may do with the environments: nothing that the operator has not allowed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from xuance_envs.remote.failures import RefusedError

__all__ = ["ALL_INFOS", "Permissions", "allowed_values", "check_keyword"]

ALL_INFOS = "*"
"""In place of the name of an info: all of them."""

Names = frozenset[str]


@dataclass(frozen=True)
class Permissions:
    """The names that clients may use. A request for another one is refused with a 403.

    Attributes:
        calls: of methods they may call.
        gets: of attributes they may read.
        sets: of attributes they may set.
        options: of options they may give to a reset.
        infos: of what infos have that they are told; None stands for nothing where each environment
            repeats its action, as notebooks of students have it, and for everything elsewhere.
        tracebacks: whether they are told where in the server's files an environment failed.
        any_action: whether actions outside the action space reach an environment.
    """

    calls: Names = frozenset()
    gets: Names = frozenset()
    sets: Names = frozenset()
    options: Names = frozenset()
    infos: Names | None = None
    tracebacks: bool = False
    any_action: bool = False

    def check_operation(self, operation: str, name: str) -> None:
        """Raises unless a method may be called, or an attribute read or set.

        Raises:
            RefusedError: it may not.
        """
        option, allowed = {
            "call": ("--allow-call", self.calls),
            "get_attr": ("--allow-get", self.gets),
            "set_attr": ("--allow-set", self.sets),
        }.get(operation, ("", {name}))
        if name not in allowed:
            raise _not_allowed("name", f"the name {name!a}", f"for {operation!r}", option)

    def check_options(self, options: Mapping[str, Any] | None) -> None:
        """Raises unless all options of a reset may be given.

        Raises:
            RefusedError: one may not.
        """
        refused = [name for name in options or () if name not in self.options]
        if refused:
            raise _not_allowed(
                "options", f"the option {refused[0]!a}", "for resets", "--allow-option"
            )

    def infos_of(self, repeating: bool) -> Names | None:
        """The names in infos that are told, None for all.

        Args:
            repeating: whether each environment repeats its action.
        """
        if self.infos is None:
            return frozenset() if repeating else None
        return None if ALL_INFOS in self.infos else self.infos


def check_keyword(name: str, value: Any, allowed: Mapping[str, tuple[Any, ...] | None]) -> None:
    """Raises unless environments may be made with a keyword argument."""
    if name not in allowed:
        raise _not_allowed("kwargs", f"the keyword argument {name!a}", "here", "--allow-kwarg")
    values = allowed[name]
    if values is not None and not any(type(value) is type(one) and value == one for one in values):
        raise RefusedError(
            403,
            "kwargs",
            f"the keyword argument {name!a} may be {' or '.join(map(repr, values))} here, and "
            "nothing else",
        )


def allowed_values(options: Iterable[str]) -> dict[str, tuple[Any, ...] | None]:
    """What ``NAME`` and ``NAME=VALUE`` allow: a value is JSON, or else the text itself."""
    allowed: dict[str, tuple[Any, ...] | None] = {}
    for option in options:
        name, given, text = option.partition("=")
        if not name:
            raise ValueError(f"expected NAME or NAME=VALUE, got {option!r}")
        before = allowed.get(name, ())
        if not given or before is None:
            allowed[name] = None
        else:
            allowed[name] = (*before, _value(text))
    return allowed


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _not_allowed(code: str, what: str, where: str, option: str) -> RefusedError:
    return RefusedError(
        403,
        code,
        f"{what} is not allowed {where}; the server's operator allows one with {option} NAME",
    )
