"""Permissions of clients: methods, attributes, options, infos and keyword arguments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from xuance_envs.remote.wire.failures import RefusedError

ALL_INFOS = "*"  # wildcard for all keys of infos

Names = frozenset[str]
Keywords = Mapping[str, tuple[Any, ...] | None]  # allowed values by name; None allows any value


@dataclass(frozen=True)
class Permissions:
    """Names that clients may use; the server refuses others with status 403.

    Attributes:
        calls: methods that clients may call.
        gets: attributes that clients may read.
        sets: attributes that clients may set.
        options: options that clients may pass to reset.
        infos: keys of infos that the server sends; ``"*"`` among them allows all. None sends all
            keys to ``RemoteVecEnv``. Notebook clients always receive ``step``, ``terminated`` and
            ``truncated``, and with None no other keys.
        tracebacks: whether clients receive the tracebacks of failed environments.
        any_action: whether environments receive actions outside the action space.
    """

    calls: Names = frozenset()
    gets: Names = frozenset()
    sets: Names = frozenset()
    options: Names = frozenset()
    infos: Names | None = None
    tracebacks: bool = False
    any_action: bool = False

    def check_operation(self, operation: str, name: str) -> None:
        """Refuse with status 403 unless clients may use this ``name`` in this ``operation``."""
        option, allowed = {
            "call": ("--allow-call", self.calls),
            "get_attr": ("--allow-get", self.gets),
            "set_attr": ("--allow-set", self.sets),
        }.get(operation, ("", {name}))
        if name not in allowed:
            raise _not_allowed("name", f"the name {name!a}", f"for {operation!r}", option)

    def check_options(self, options: Mapping[str, Any] | None) -> None:
        """Refuse with status 403 unless clients may pass these options to ``reset``."""
        for name in options or ():
            if name not in self.options:
                what = f"the option {name!a}"
                raise _not_allowed("options", what, "for resets", "--allow-option")

    def infos_of(self, repeating: bool) -> Names | None:
        """Return the info keys for notebooks (``repeating``) or ``RemoteVecEnv``; None for all."""
        if self.infos is None:
            return frozenset() if repeating else None
        return None if ALL_INFOS in self.infos else self.infos


def check_keyword(name: str, value: Any, allowed: Keywords) -> None:
    """Refuse with status 403 unless clients may pass this keyword argument to new environments."""
    what = f"the keyword argument {name!a}"
    if name not in allowed:
        raise _not_allowed("kwargs", what, "for new environments", "--allow-kwarg")
    values = allowed[name]
    if values is not None and not any(type(value) is type(one) and value == one for one in values):
        expected = " or ".join(map(repr, values))
        raise RefusedError(403, "kwargs", f"{what} must be {expected} on this server")


def allowed_values(options: Iterable[str]) -> dict[str, tuple[Any, ...] | None]:
    """Parse options ``NAME`` and ``NAME=VALUE``; a VALUE that is not JSON is taken as a string."""
    allowed: dict[str, tuple[Any, ...] | None] = {}
    for option in options:
        name, given, text = option.partition("=")
        if not name:
            raise ValueError(f"--allow-kwarg: expected NAME or NAME=VALUE, got {option!r}")
        before = allowed.get(name, ())
        allowed[name] = None if not given or before is None else (*before, _value(text))
    return allowed


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _not_allowed(code: str, what: str, where: str, option: str) -> RefusedError:
    text = f"{what} is not allowed {where}; the server's operator can allow it with {option} NAME"
    return RefusedError(403, code, text)
