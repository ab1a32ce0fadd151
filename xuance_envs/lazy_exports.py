"""Lazy package exports: a public name is imported when it is first used.

A package's ``__init__.pyi`` is the only list of its names and their modules: type checkers read
it, and :func:`lazy_exports` looks names up in it. Names below the line :data:`EXTRAS_MARK` require
optional dependencies. ``__all__`` excludes them, so that ``import *`` works without extras.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

EXTRAS_MARK = "# These names require extras."


def lazy_exports(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` (it also serves ``__all__``) and ``__dir__``."""

    @functools.cache
    def known() -> tuple[dict[str, str], list[str]]:
        """Return the module of each name, and the names that require no extras."""
        # Imported here because worker processes import the package but look up no names.
        import pkgutil
        import re

        stub = (pkgutil.get_data(package, "__init__.pyi") or b"").decode()
        pattern = re.compile(r"^from (\S+) import (?:\(\s+)?(\w+) as \2\b", re.MULTILINE)
        parts = [pattern.findall(part) for part in stub.split(EXTRAS_MARK)]
        homes = {name: home for part in parts for home, name in part}
        return homes, sorted(name for _, name in parts[0])

    def get(name: str) -> object:
        homes, without_extras = known()
        if name == "__all__":
            return without_extras.copy()
        if name not in homes:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package]
            )
        import importlib

        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *known()[0]})

    return get, names
