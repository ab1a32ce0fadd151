"""The names that the reference lists, and the modules that define them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
LISTED = re.compile(r"^   ~?(xuance_envs\.\S+)$", re.MULTILINE)


def definitions() -> dict[str, str]:
    """Return the full name under which each listed name is defined, by its public name."""
    listed = LISTED.findall((FOLDER / "api.rst").read_text(encoding="utf-8"))
    return {name: _definition(name) for name in listed}


def public_modules() -> set[str]:
    """Return the modules that define the listed names."""
    names = definitions().values()
    return {name if _is_module(name) else name.rpartition(".")[0] for name in names}


def _definition(name: str) -> str:
    """Follow the imports of a package and of its modules, without running them."""
    follows = (
        name.startswith("xuance_envs.remote.") or ROOT.joinpath(*name.split(".")[:-1]).is_dir()
    )
    if _is_module(name) or name.startswith("xuance_envs.errors.") or not follows:
        return name
    while (imported := _import_of(name)) is not None:
        name = imported
    return name


def _import_of(name: str) -> str | None:
    """Return the full name that a module imports under this name."""
    module, _, last = name.rpartition(".")
    folder = ROOT.joinpath(*module.split("."))
    for source in (folder / "__init__.pyi", folder / "__init__.py", folder.with_suffix(".py")):
        if source.exists() and module != "xuance_envs.errors":
            imports = ast.parse(source.read_text(encoding="utf-8")).body
            for node in imports:
                if isinstance(node, ast.ImportFrom) and last in [each.name for each in node.names]:
                    return f"{node.module}.{last}"
    return None


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()
