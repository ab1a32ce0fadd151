"""Identity of functions: their code, not their name.

Lambdas within one function share a name. A digest of the code distinguishes them. It ignores line
numbers and file names and is the same in every process.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import types
from collections.abc import Iterator
from typing import Any

_DIGEST = 12
_LIBRARIES = frozenset({"gymnasium", "gym", "xuance_envs", "ale_py", "mujoco", "builtins"})


@functools.lru_cache(maxsize=4096)
def code_digest(code: types.CodeType) -> bytes:
    """Return a digest of a code object, without line numbers and file names."""
    digest = hashlib.blake2b(digest_size=_DIGEST)
    numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    handlers = getattr(code, "co_exceptiontable", b"")
    digest.update(repr((numbers, names, code.co_code, handlers)).encode())
    for constant in code.co_consts:
        digest.update(_constant(constant))
    return digest.digest()


def _constant(value: Any) -> bytes:
    if isinstance(value, types.CodeType):
        return b"code" + code_digest(value)
    if isinstance(value, (tuple, frozenset)):
        inner = [_constant(item) for item in value]
        kind = type(value).__name__.encode()
        return b"%b(%b)" % (kind, b",".join(inner if type(value) is tuple else sorted(inner)))
    text = value.hex() if isinstance(value, float) else repr(value)
    return f"{type(value).__name__} {text}".encode()


def full_name(value: Any) -> str:
    """Return the module and qualified name of a function or class."""
    module = getattr(value, "__module__", None) or getattr(type(value), "__module__", "")
    return f"{module}.{getattr(value, '__qualname__', getattr(value, '__name__', '?'))}"


def named_in_module(value: Any) -> bool:
    """Return whether a function or class is found by its own module and qualified name."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return find_named(getattr(value, "__module__", None), name) is value


def find_named(module: Any, name: Any) -> Any:
    """Return an object of a loaded module by its qualified name, or None."""
    found: Any = sys.modules.get(module)
    for part in name.split(".") if isinstance(name, str) else ("",):
        found = getattr(found, part, None)
    return found


def cell_content(cell: Any, default: Any = None) -> Any:
    """Return the content of a closure's cell, or ``default`` if the cell is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return default


def nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and those of the functions defined in it, at any depth."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_codes(constant)


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> tuple[list[str], list[str]]:
    """Return the names that a function uses, and the module variables that it assigns."""
    used: set[str] = set()
    assigned: set[str] = set()
    for each in nested_codes(code):
        used.update(each.co_names)
        found = dis.get_instructions(each)
        assigned.update(str(one.argval) for one in found if one.opname == "STORE_GLOBAL")
    return sorted(used), sorted(assigned)


def functions_of_class(kind: type) -> Iterator[tuple[str, types.FunctionType]]:
    """Yield the functions that a class defines, including those in properties and class methods."""
    for name, value in list(kind.__dict__.items()):
        for part in ("fget", "fset", "fdel") if isinstance(value, property) else ("__func__",):
            function = getattr(value, part, getattr(value, "func", value))
            if isinstance(function, types.FunctionType):
                yield name, function


@functools.lru_cache(maxsize=256)
def class_digest(kind: type) -> bytes:
    """Return a digest of a class's methods and their closures and defaults."""
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for name, function in functions_of_class(kind):
        digest.update(name.encode() + code_digest(function.__code__))
        held = [cell_content(cell) for cell in function.__closure__ or ()]
        held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for value in held:
            if isinstance(value, (int, float, str, bytes, tuple)):
                digest.update(_constant(value))
            elif isinstance(value, types.FunctionType):
                digest.update(code_digest(value.__code__))
    return digest.digest()


@functools.cache
def is_installed(module: str) -> bool:
    """Return whether a module belongs to Python, an installed library or this package."""
    if module == "__main__":  # its file in a worker is not the script's
        return False
    if module.partition(".")[0] in _LIBRARIES or is_standard(module):
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return module in sys.modules
    return file.startswith(_installation_paths()) or "-packages" in file


@functools.cache
def _installation_paths() -> tuple[str, ...]:
    import sysconfig  # here because importing it takes over a millisecond

    return tuple(map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))


def is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names
