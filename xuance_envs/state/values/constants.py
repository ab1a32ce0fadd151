"""Constants: values that a state depends on but that a restore does not set.

They are the attributes of classes, and the defaults, attributes and closures of methods and of
functions in modules. Only constants of the environment's own package, of ``__main__`` and of other
modules that are not installed are compared.
"""

from __future__ import annotations

import enum
import os
import pickle
import reprlib
import types
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from xuance_envs.state.faults import FaultError, MismatchError, without_addresses
from xuance_envs.state.fingerprint import is_space
from xuance_envs.state.values.canonical import digest
from xuance_envs.state.values.functions import (
    full_name,
    functions_of_class,
    is_installed,
    is_standard,
    names_in,
)
from xuance_envs.state.values.graph import (
    ATOMIC,
    follow,
    function_parts,
    node,
    step_text,
)
from xuance_envs.state.values.resources import is_resource

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
        self._reached: dict[frozenset[Any], _Reached] = {}
        # Each module variable's value, fact and pickle; no pickle if it is not examined again.
        self._known: dict[str, tuple[Any, bytes | None, tuple[Any, str] | None]] = {}

    def _reach(self, own: Mapping[Any, None]) -> _Reached:
        """Return the other classes that own code names, and the module variables that it uses."""
        key = frozenset(own)
        if key in self._reached:
            return self._reached[key]
        reached, waiting = dict(own), list(own)
        found = _Reached([], {}, set(), set(), set())
        while waiting:
            value = waiting.pop()
            is_class = isinstance(value, type)
            for function in [f for _, f in functions_of_class(value)] if is_class else [value]:
                names, variables = names_in(function.__code__), function.__globals__
                found.assigned.update(names.assigned)
                if names.changes_containers:
                    found.mutated.update(names.used)
                if "sample" in names.used:
                    found.sampled.update(names.used)
                used = [(function.__module__, name, variables) for name in names.variables]
                named = [variables.get(name) for name in names.variables]
                for module in [each for each in named if isinstance(each, types.ModuleType)]:
                    if self._is_own(module.__name__):
                        inside = names.used & vars(module).keys()
                        used += [(module.__name__, name, vars(module)) for name in inside]
                        named += [vars(module)[name] for name in inside]
                found.variables.update({(*each[:2], id(each[2])): each[2] for each in used})
                named = [each for each in named if issubclass(type(each), _NAMED)]
                new = [each for each in self._own(named) if each not in reached]
                reached.update(dict.fromkeys(new))
                waiting += new
        found.classes.extend(each for each in reached if each not in own and isinstance(each, type))
        return self._reached.setdefault(key, found)

    def _own(self, values: Iterable[Any]) -> dict[Any, None]:
        """Return the functions, classes, bases and metaclasses that no library defines."""
        found = [base for each in values for base in getattr(each, "__mro__", (each,))]
        found += [base for each in found for base in type(each).__mro__]
        return dict.fromkeys(each for each in found if self._is_own(each.__module__ or ""))

    def named(self, used: Iterable[Any]) -> Iterator[Named]:
        """Yield the objects that class attributes and module variables hold, and their elements."""
        own = self.classes | self._own(used)
        reached = self._reach(own)
        found: list[tuple[str, Mapping[str, Any], str, Any]] = [
            (f"module variable: {module}.{name}", variables, name, variables[name])
            for (module, name, _), variables in reached.variables.items()
            if name in variables
        ]
        for kind in [*(each for each in own if isinstance(each, type)), *reached.classes]:
            for label, value in _attributes(kind, reached.sampled):
                name = label.rpartition(".")[2]
                found.append((f"{label} of {kind.__module__}", vars(kind), name, value))
        for label, namespace, name, value in found:
            is_fixed = name not in reached.assigned
            yield Named(label, namespace, name, (), value, is_fixed)
            if type(value) in (list, tuple, dict) and len(value) <= _MAX_ELEMENTS:
                items = value.items() if type(value) is dict else enumerate(value)
                is_fixed = is_fixed and (type(value) is tuple or name not in reached.mutated)
                for key, item in items:
                    text = full_name(key) if isinstance(key, type) else repr(key)
                    if type(key) in ATOMIC or isinstance(key, type):
                        yield Named(f"{label}[{text}]", namespace, name, (key,), item, is_fixed)

    def facts(self, used: Iterable[Any]) -> Facts:
        """Return the constants that must be equal when a state is loaded."""
        found: Facts = {}
        own = self.classes | self._own(used)
        reached = self._reach(own)
        for (module, variable, _), variables in reached.variables.items():
            value = variables.get(variable)
            if type(value) in ATOMIC:
                if variable in reached.assigned and isinstance(value, _NUMBERS):
                    name = f"module variable: {module}.{variable}"
                    found[name] = self._fact(name, value)
            elif not isinstance(value, _NOT_CONTENT) and (
                variable in reached.sampled or not is_space(value)
            ):
                kind_of_content = _TABLE if isinstance(value, _TABLES) else _CONTENT
                name = f"{kind_of_content}: {module}.{variable}"
                fact = self._remembered(name, value)
                if fact is not None:
                    found[name] = fact
        for kind in reached.classes:
            for name, value in _attributes(kind, reached.sampled):
                with suppress(FaultError):  # no value of the class is part of the state
                    found[name] = self._fact(name, value)
        for each in own:
            prefix = f"function: {full_name(each)}"
            is_class = isinstance(each, type)
            items = _of_class(each, reached.sampled) if is_class else _of_function(each, prefix)
            for name, value in items:
                while name in found:  # another class of the same name
                    name += "'"
                found[name] = self._fact(name, value)
        return found

    def _remembered(self, name: str, value: Any) -> tuple[Any, str] | None:
        """Return the fact about a module variable; None if it cannot be compared."""
        large = _large_arrays.get(name)
        if large is not None and large[0] is value:
            return large[1]
        known, content, fact = self._known.get(name, (None, b"", None))
        if known is value and content is None:
            return fact
        new: bytes | None = b""
        buffers: list[pickle.PickleBuffer] = []
        with suppress(Exception):
            new = pickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
        arrays = [each.raw() for each in buffers]
        is_large = sum(each.nbytes for each in arrays) > _MAX_CONTENT
        if new and not is_large:
            new = b"".join([new, *arrays])
            if known is value and new == content:
                return fact
        try:
            fact = self._fact(name, value)
        except FaultError:  # such as a connection
            if isinstance(value, Iterator) and not is_resource(value):
                raise
            fact = new = None
        if fact is not None and is_large:
            _large_arrays[name] = value, fact
        elif new is not None and len(new) > _MAX_CONTENT:
            new = None
        self._known[name] = value, new, fact
        return fact

    def _fact(self, name: str, value: Any) -> tuple[Any, str]:
        if type(value) in ATOMIC:
            return node(value).head, repr(value)[:200]
        text = without_addresses(_describe.repr(value))  # spaces cache parts of it in attributes
        try:
            return digest(value, self._tokens), text
        except FaultError as fault:
            raise FaultError(f"{name}{fault.where}", fault.reason) from None

    def _is_own(self, module: str) -> bool:
        return module.partition(".")[0] in self._packages or not is_installed(module)


class Named(NamedTuple):
    """Object that a class attribute or module variable holds."""

    label: str
    namespace: Mapping[str, Any]
    name: str
    steps: tuple[Any, ...]
    obj: Any
    is_fixed: bool
    """True if no function of the environment's code assigns the name or changes its container."""

    def current(self) -> Any:
        """Return the object that is there now, or None."""
        value: Any = self.namespace.get(self.name)
        with suppress(AttributeError, LookupError, TypeError):
            for step in self.steps:
                value = follow(value, step)
            return value
        return None

    def parts(self) -> list[Named]:
        """Return the objects in the attributes of an object."""
        try:
            parts = list(node(self.obj).parts)
        except Exception:  # it cannot be compared
            return []
        return [
            self._replace(label=self.label + step_text(step), steps=(*self.steps, step), obj=part)
            for step, part in parts
            if type(step) is tuple and step[0] == "attr"
        ]

    def is_self_contained(self, others: Mapping[int, Named]) -> bool:
        """Return whether the object holds only atomic values and other fixed objects, by id."""
        try:
            waiting = [part for _, part in node(self.obj).parts]
        except Exception:  # it cannot be compared
            return False
        while waiting:
            part = waiting.pop()
            if type(part) is tuple:
                waiting += part
            elif type(part) not in ATOMIC and not (
                (other := others.get(id(part))) and other.is_fixed
            ):
                return False
        return True


class _Reached(NamedTuple):
    """Classes and module variables that the code of an environment uses."""

    classes: list[type]
    variables: dict[tuple[str, str, int], dict[str, Any]]
    """The variables of a module, by its name, that of the variable, and their id."""
    assigned: set[str]
    mutated: set[str]
    """Names in functions that change containers."""
    sampled: set[str]
    """Names in functions that draw from spaces."""


_MAX_ELEMENTS = 1000
"""Elements of a container up to which a state refers to them by name."""

_CONTENT, _TABLE = "module variable's content", "module variable's table"
_TABLES = dict, set  # which may be caches
_MAX_CONTENT = 1 << 16
"""Bytes of a module variable's pickle up to which a change in place is noticed."""

_large_arrays: dict[str, tuple[Any, tuple[Any, str]]] = {}
"""Module variables with large arrays, which are examined once per process, and their facts."""

_NAMED = type, types.FunctionType
_NOT_CONTENT = (
    *(type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType),
    type(os.environ),  # which differs between processes
)
_NUMBERS = int, float, complex, str, np.number
"""Atomic types of module variables that are compared if the environment's code assigns them."""


def _attributes(kind: type, sampled: Container[str]) -> Iterator[tuple[str, Any]]:
    is_enum = isinstance(kind, enum.EnumMeta)
    found = dict(kind.__dict__)
    if isinstance(kind, enum.EnumMeta):
        found.update(kind.__members__)
    for name, value in found.items():
        if name.startswith("_" if is_enum else "__") or name == "_abc_impl":
            continue
        if is_space(value) and name not in sampled:  # the fingerprint has its bounds
            continue
        if not (hasattr(type(value), "__get__") and is_standard(type(value).__module__)):
            yield f"class attribute: {kind.__qualname__}.{name}", value


def _of_class(kind: type, sampled: Container[str]) -> Iterator[tuple[str, Any]]:
    yield from _attributes(kind, sampled)
    for name, function in functions_of_class(kind):
        if is_installed(function.__module__ or ""):
            continue  # a library put it there
        yield from _of_function(function, f"class attribute: {kind.__qualname__}.{name}")


def _of_function(function: types.FunctionType, prefix: str) -> Iterator[tuple[str, Any]]:
    for step, value in function_parts(function):
        yield prefix + step_text(step), value
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name != "__class__":
            yield f"{prefix}.<variable {name}>", cell


def check(saved: Facts, here: Facts, with_contents: bool) -> list[str]:
    """Raise a fault if a constant differs; return texts about tables in module variables that do.

    ``with_contents``: also compare contents of module variables.
    """
    doubts = []
    for name in {**saved, **here}:
        if name.startswith((_CONTENT, _TABLE)) and not with_contents:
            continue
        before, now = saved.get(name, (None, "nothing")), here.get(name, (None, "nothing"))
        if before[0] != now[0]:
            fault = MismatchError(name, before[1], now[1])
            if not name.startswith(_TABLE):
                raise fault
            doubts.append(f"{fault}; ignore this if it is a cache")
    return doubts
