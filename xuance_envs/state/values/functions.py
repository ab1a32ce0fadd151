"""Identity of functions, by their code instead of their name, and lookup by code.

Lambdas within one function share a name. A digest of the code distinguishes them. It ignores line
numbers and file names and is the same in every process.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

_DIGEST = 12
_LIBRARIES = frozenset({"gymnasium", "gym", "xuance_envs", "ale_py", "mujoco", "builtins"})


@functools.lru_cache(maxsize=4096)
def code_digest(code: types.CodeType) -> bytes:
    """Return a digest of a code object, without line numbers and file names."""
    numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    handlers = getattr(code, "co_exceptiontable", b"")
    content = repr((numbers, names, code.co_code, handlers)).encode()
    content += b"".join(map(_constant, code.co_consts))
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()


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


class Code(NamedTuple):
    """Code that functions can be created from."""

    code: types.CodeType
    variables: dict[str, Any]
    defined: types.FunctionType | None
    """The function itself, if a module or class defines it."""

    def made(self, cells: tuple[Any, ...]) -> Any:
        if self.defined is not None and not cells:
            return self.defined
        return types.FunctionType(self.code, self.variables, None, None, cells)


class CodeIndex:
    """Classes and functions that an environment holds, and those that their code refers to."""

    def __init__(self, held: Iterable[types.FunctionType], classes: Iterable[type]) -> None:
        self._held = held
        self._classes = classes

    def class_named(self, module: str, name: str, digest: bytes) -> type | None:
        """Return a class by its name and, if several have that name, by its digest."""
        found = self._by_name.get(f"{module}.{name}", [])
        if len(found) > 1 and digest:
            found = [kind for kind in found if class_digest(kind) == digest]
        return found[0] if found else None

    def function(self, digest: bytes, trusted: bool) -> Code | None:
        """Return code by digest; untrusted states get only code that the environment holds."""
        return (self._visible_code if trusted else self._held_code).get(digest)

    @functools.cached_property
    def _by_name(self) -> dict[str, list[type]]:
        found: dict[str, list[type]] = {}
        for kind in self._visible_classes:
            found.setdefault(full_name(kind), []).append(kind)
        return found

    @functools.cached_property
    def _visible_classes(self) -> dict[type, None]:
        found = dict.fromkeys(base for kind in self._classes for base in kind.__mro__)
        functions = [f for kind in found for _, f in functions_of_class(kind)]
        for function in [*self._held, *functions]:
            cells = (cell_content(cell) for cell in function.__closure__ or ())
            for value in (*function.__globals__.values(), *cells):
                if isinstance(value, type):
                    found[value] = None
        return found

    @functools.cached_property
    def _held_code(self) -> dict[bytes, Code]:
        return {code_digest(f.__code__): Code(f.__code__, f.__globals__, None) for f in self._held}

    @functools.cached_property
    def _visible_code(self) -> dict[bytes, Code]:
        found = self._held_code.copy()
        defined = [f for kind in self._visible_classes for _, f in functions_of_class(kind)]
        modules = {id(f.__globals__): f.__globals__ for f in (*self._held, *defined)}
        values = [value for variables in modules.values() for value in list(variables.values())]
        named = [value for value in values if isinstance(value, types.FunctionType)]
        for function in [*self._held, *defined, *named]:
            held = code_digest(function.__code__) in self._held_code
            for code in nested_codes(function.__code__):
                outer = function if code is function.__code__ and not held else None
                found.setdefault(code_digest(code), Code(code, function.__globals__, outer))
        return found
