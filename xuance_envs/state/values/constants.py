"""Constants: values that a state depends on but that a restore does not set.

They are attributes of classes; defaults, attributes and closures of methods and of functions in
modules; and numbers and strings in module variables that functions assign. Only constants of the
environment's own package, of ``__main__`` and of other modules that are not installed are compared.
"""

from __future__ import annotations

import enum
import reprlib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from xuance_envs.state.faults import FaultError, MismatchError, module_of, without_addresses
from xuance_envs.state.fingerprint import is_space
from xuance_envs.state.values.canonical import digest
from xuance_envs.state.values.functions import (
    full_name,
    functions_of_class,
    is_installed,
    is_standard,
    names_in,
)
from xuance_envs.state.values.graph import ATOMIC, function_parts, node, step_text

Facts = dict[str, tuple[Any, str]]
"""Compared form of each constant, and a description of its value, by name."""

_describe = reprlib.Repr()
_describe.maxstring = _describe.maxother = 120


class Constants:
    """Constants of the classes and functions that an environment uses."""

    def __init__(self, kinds: Sequence[type], tokens: Mapping[int, Any]) -> None:
        packages = {base.__module__.partition(".")[0] for kind in kinds for base in kind.__mro__}
        self._packages = {name for name in packages if not is_installed(name)}
        self._tokens = tokens
        self.classes = self._own(kinds)
        self._reached: dict[frozenset[Any], tuple[list[Any], list[tuple[Any, str]]]] = {}

    def _reach(self, own: Mapping[Any, None]) -> tuple[list[Any], list[tuple[Any, str]]]:
        """Return other classes in use, and pairs of a function and a variable that it assigns."""
        found = self._reached.get(frozenset(own))
        if found is not None:
            return found
        reached, waiting, variables = dict(own), list(own), []
        while waiting:
            value = waiting.pop()
            is_class = isinstance(value, type)
            for function in [f for _, f in functions_of_class(value)] if is_class else [value]:
                used, assigned = names_in(function.__code__)
                variables += [(function, name) for name in assigned]
                named = [function.__globals__.get(name) for name in used]
                for module in [each for each in named if isinstance(each, types.ModuleType)]:
                    if self._is_own(module.__name__):
                        named += [vars(module).get(name) for name in used]
                named = [each for each in named if issubclass(type(each), _NAMED)]
                new = [each for each in self._own(named) if each not in reached]
                reached.update(dict.fromkeys(new))
                waiting += new
        classes = [each for each in reached if each not in own and isinstance(each, type)]
        return self._reached.setdefault(frozenset(own), (classes, variables))

    def _own(self, values: Iterable[Any]) -> dict[Any, None]:
        """Return the classes, including base classes, and functions that no library defines."""
        found = [base for each in values for base in getattr(each, "__mro__", (each,))]
        return dict.fromkeys(each for each in found if self._is_own(each.__module__ or ""))

    def facts(self, used: Iterable[Any]) -> Facts:
        """Return the constants in which a saved state and its target must agree."""
        found: Facts = {}
        own = self.classes | self._own(used)
        classes, variables = self._reach(own)
        for function, variable in variables:
            value = function.__globals__.get(variable)
            if isinstance(value, _NUMBERS):
                name = f"module variable: {function.__module__}.{variable}"
                found[name] = self._fact(name, value)
        for kind in classes:
            for name, value in _attributes(kind):
                with suppress(FaultError):  # no value of the class is part of the state
                    found[name] = self._fact(name, value)
        for each in own:
            prefix = f"function: {full_name(each)}"
            items = _of_class(each) if isinstance(each, type) else _of_function(each, prefix)
            for name, value in items:
                while name in found:  # another class of the same name
                    name += "'"
                found[name] = self._fact(name, value)
        return found

    def _fact(self, name: str, value: Any) -> tuple[Any, str]:
        if type(value) in ATOMIC:
            return node(value).head, repr(value)[:200]
        text = without_addresses(_describe.repr(value))  # first: adds attributes to spaces
        try:
            return digest(value, self._tokens), text
        except FaultError as fault:
            raise FaultError(f"{name}{fault.where}", fault.reason) from None

    def _is_own(self, module: str) -> bool:
        return module.partition(".")[0] in self._packages or not is_installed(module)


_NAMED = type, types.FunctionType
_NUMBERS = int, float, complex, str, np.number
"""Types of module variables that are compared. Other types may be lazily built tables."""


def _attributes(kind: type) -> Iterator[tuple[str, Any]]:
    is_enum = isinstance(kind, enum.EnumMeta)
    found = dict(kind.__dict__)
    if isinstance(kind, enum.EnumMeta):
        found.update(kind.__members__)
    for name, value in found.items():
        if name.startswith("_" if is_enum else "__") or name == "_abc_impl" or is_space(value):
            continue  # spaces are compared in the fingerprint
        if not (hasattr(type(value), "__get__") and is_standard(module_of(type(value)))):
            yield f"class attribute: {kind.__qualname__}.{name}", value


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    yield from _attributes(kind)
    for name, function in functions_of_class(kind):
        if not is_installed(function.__module__ or ""):  # else a library put it there
            yield from _of_function(function, f"class attribute: {kind.__qualname__}.{name}")


def _of_function(function: types.FunctionType, prefix: str) -> Iterator[tuple[str, Any]]:
    for step, value in function_parts(function):
        yield prefix + step_text(step), value
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name != "__class__":
            yield f"{prefix}.<variable {name}>", cell


def check(saved: Facts, here: Facts) -> None:
    for name in {**saved, **here}:
        before, now = saved.get(name, (None, "nothing")), here.get(name, (None, "nothing"))
        if before[0] != now[0]:
            raise MismatchError(name, before[1], now[1])
