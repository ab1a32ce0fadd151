"""Functions and classes that travel by value: cloudpickle's way, and what it leaves open.

A class has a number that it keeps on its journeys, so that what comes back is of the same class.
But cloudpickle then also gives that class the state it had elsewhere. Here one that is known
already is left as it is, and a function that comes back to its module is that function.
"""

from __future__ import annotations

import functools
import inspect
import io
import pickle
import sys
import typing
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

from cloudpickle import cloudpickle

from xuance_envs._override import override

__all__ = ["ByValuePickler", "ByValueUnpickler", "assign_class_ids"]

_DISPATCHING: Any = functools.singledispatch(len)
_CACHED: Any = type(functools.lru_cache(len))


class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Takes by value also what cloudpickle would look for by its name, and not find."""

    @override
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _CACHED) and _needs_by_value(obj):
            how = obj.cache_parameters()
            attributes = _attributes(obj, "__wrapped__", "cache_parameters")
            return _make_lru_cache, (obj.__wrapped__, how["maxsize"], how["typed"]), attributes
        if isinstance(obj, typing.NewType) and _needs_by_value(obj):
            return typing.NewType, (obj.__name__, obj.__supertype__), _attributes(obj)
        if isinstance(obj, functools.cached_property):
            return functools.cached_property, (obj.func,), _attributes(obj, "lock")
        if isinstance(obj, FunctionType) and _is_singledispatch(obj) and _needs_by_value(obj):
            return _make_singledispatch, (dict(vars(obj)["registry"]),)
        return super().reducer_override(obj)


def _needs_by_value(obj: Any) -> bool:
    """Whether another process would not find it by its name, or is not to look for it."""
    module = str(obj.__module__)
    if module == "__main__" or _lookup(module, getattr(obj, "__qualname__", "")) is not obj:
        return True
    by_value = cloudpickle.list_registry_pickle_by_value()
    return any(f"{module}.".startswith(f"{name}.") for name in by_value)


def _lookup(module: str, name: str) -> Any:
    """What a module that is loaded has by this name, None if nothing."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _is_singledispatch(function: FunctionType) -> bool:
    """Whether it comes from :func:`functools.singledispatch`."""
    return function.__code__ is _DISPATCHING.__code__


def _attributes(obj: Any, *but: str) -> dict[str, Any]:
    return {name: value for name, value in vars(obj).items() if name not in but}


def _make_lru_cache(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _make_singledispatch(functions: dict[type, Any]) -> Any:
    dispatching = functools.singledispatch(functions.pop(object))
    for kind, function in functions.items():
        dispatching.register(kind, function)
    return dispatching


class ByValueUnpickler(pickle.Unpickler):
    """Loads what came from another process, and changes nothing that is in this one."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._known: list[Any] = []
        self._new: list[tuple[str, Any]] = []
        # By what cloudpickle writes; each is given what that is the name of.
        self._overrides: dict[str, Any] = {
            "_make_skeleton_class": self._make_class,
            "_make_skeleton_enum": self._make_class,
            "_class_setstate": self._set_state,
            "_make_function": self._make_function,
            "_function_setstate": self._set_state,
        }

    def load(self) -> Any:
        """Loads it."""
        value = super().load()
        # Only now: those that an error left half made are forgotten. There is no public way to it.
        for number, cls in self._new:
            cloudpickle._lookup_class_or_track(number, cls)
        return value

    @override
    def find_class(self, module: str, name: str) -> Any:
        try:
            found = super().find_class(module, name)
            if module == cloudpickle.__name__ and name in self._overrides:
                return functools.partial(self._overrides[name], found)
            return found
        except AttributeError:
            if module != "__main__":
                raise
        raise TypeError(
            f"{name!r} is defined in __main__ and pickled by its name alone, but workers do not "
            f"import __main__. Define {name!r} in a module that can be imported, or within the "
            "function that makes the environment; context='fork' does without pickling"
        )

    def _make_class(self, make: Any, *args: Any) -> Any:
        *what, number, extra = args
        cls = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(number)  # as above
        if cls is not None:
            self._known.append(cls)
            return cls
        cls = make(*what, None, extra)
        self._new.append((number, cls))
        return cls

    def _make_function(
        self, make: Any, code: CodeType, names: dict[str, Any], *rest: Any
    ) -> FunctionType:
        own = _local_function(names.get("__name__") or "", code)
        if own is None:
            made: FunctionType = make(code, names, *rest)
            return made
        self._known.append(own)
        return own

    def _set_state(self, set_state: Any, obj: Any, state: Any) -> None:
        if not self._is_known(obj):
            set_state(obj, state)

    def _is_known(self, obj: Any) -> bool:
        return any(known is obj for known in self._known)


def _local_function(module: str, code: CodeType) -> FunctionType | None:
    """The function of that module here with this name and code, decorated or not."""
    found = _lookup(module, getattr(code, "co_qualname", code.co_name))
    if not callable(found):
        return None
    found = inspect.unwrap(found, stop=lambda each: getattr(each, "__code__", None) == code)
    return found if isinstance(found, FunctionType) and found.__code__ == code else None


def assign_class_ids() -> None:
    """Gives the classes that travel by value their numbers, for a process forked after it."""
    pickler = ByValuePickler(io.BytesIO())
    left, seen = [object], {id(object)}
    while left:
        for cls in type.__subclasses__(left.pop()):
            if id(cls) in seen:
                continue
            seen.add(id(cls))
            left.append(cls)
            module = sys.modules.get(str(cls.__module__))
            there = module is not None and vars(module).get(cls.__qualname__) is cls
            if not there or cls.__module__ == "__main__":
                with suppress(Exception):  # what it is made from comes first, its number included
                    pickler.reducer_override(cls)
