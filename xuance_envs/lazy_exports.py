"""Lazy package exports: a public name is imported when it is first used.

A package's ``__init__.pyi`` is the only list of its names and their modules: type checkers read
it, and :func:`lazy_exports` looks names up in it. Names below the line :data:`EXTRAS_MARK` require
optional dependencies. ``__all__`` excludes them, so that ``import *`` works without extras.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

EXTRAS_MARK = "# These names require extras."


def lazy_exports(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` (it also serves ``__all__``) and ``__dir__``."""
    homes: dict[str, str] = {}
    without_extras: list[str] = []

    def known() -> dict[str, str]:
        if not homes:
            # Imported here because worker processes import the package but look up no names.
            import pkgutil
            import re

            stub = (pkgutil.get_data(package, "__init__.pyi") or b"").decode()
            for part in stub.split(EXTRAS_MARK):
                lines = re.findall(
                    r"^from (\S+) import (?:\(\s+)?(\w+) as \2\b", part, re.MULTILINE
                )
                homes.update({name: home for home, name in lines})
                if not without_extras:
                    without_extras.extend(sorted(homes))
        return homes

    def get(name: str) -> object:
        if name == "__all__":
            known()
            return without_extras.copy()
        if name not in known():
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package]
            )
        import importlib

        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *known()})

    return get, names
