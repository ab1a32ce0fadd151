"""Lookup of an environment's classes and functions by name and by code."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from xuance_envs.state.values.functions import (
    cell_content,
    class_digest,
    code_digest,
    full_name,
    functions_of_class,
    nested_codes,
)


class Code(NamedTuple):
    """Code that functions can be created from."""

    code: types.CodeType
    variables: dict[str, Any]
    defined: types.FunctionType | None
    """The function itself, if a module or class defines it."""

    def made(self, cells: tuple[Any, ...]) -> Any:
        """Return a function with these cells."""
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

    @cached_property
    def _by_name(self) -> dict[str, list[type]]:
        found: dict[str, list[type]] = {}
        for kind in self._visible_classes:
            found.setdefault(full_name(kind), []).append(kind)
        return found

    @cached_property
    def _visible_classes(self) -> dict[type, None]:
        found = dict.fromkeys(base for kind in self._classes for base in kind.__mro__)
        functions = [f for kind in found for _, f in functions_of_class(kind)]
        for function in [*self._held, *functions]:
            cells = (cell_content(cell) for cell in function.__closure__ or ())
            for value in (*function.__globals__.values(), *cells):
                if isinstance(value, type):
                    found[value] = None
        return found

    @cached_property
    def _held_code(self) -> dict[bytes, Code]:
        return {code_digest(f.__code__): Code(f.__code__, f.__globals__, None) for f in self._held}

    @cached_property
    def _visible_code(self) -> dict[bytes, Code]:
        found = self._held_code.copy()
        defined = [f for kind in self._visible_classes for _, f in functions_of_class(kind)]
        for function in [*self._held, *defined, *self._functions_of_modules(defined)]:
            held = code_digest(function.__code__) in self._held_code
            for code in nested_codes(function.__code__):
                outer = function if code is function.__code__ and not held else None
                found.setdefault(code_digest(code), Code(code, function.__globals__, outer))
        return found

    def _functions_of_modules(
        self, functions: Iterable[types.FunctionType]
    ) -> Iterator[types.FunctionType]:
        modules = {id(f.__globals__): f.__globals__ for f in (*self._held, *functions)}
        for variables in modules.values():
            yield from (v for v in list(variables.values()) if isinstance(v, types.FunctionType))
