"""Vectorized reinforcement-learning environments in the XuanCe style.

Every public name can be imported from here, and is loaded from its home when it is first used:
importing the package loads none of its parts, and nothing that only some of them need.
Which names there are, and where they live, is written once, in ``__init__.pyi``:
type checkers read that file as it is, and :func:`__getattr__` looks names up in it.
"""

from __future__ import annotations

from xuance_envs._version import __version__ as __version__

_homes: dict[str, str] | None = None


def _public_homes() -> dict[str, str]:
    """The module each public name lives in, by name; read once, when first asked for."""
    global _homes
    if _homes is None:
        # Imported here because every worker process imports the package, and none looks names up.
        import pkgutil
        import re

        stub = pkgutil.get_data(__name__, "__init__.pyi") or b""
        lines = re.findall(
            r"^from (\S+) import (?:\(\s+)?(\w+) as \2\b", stub.decode(), re.MULTILINE
        )
        _homes = {name: home for home, name in lines}
    return _homes


def __getattr__(name: str) -> object:
    homes = _public_homes()
    if name == "__all__":
        return sorted(homes)
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(homes[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_public_homes()})
