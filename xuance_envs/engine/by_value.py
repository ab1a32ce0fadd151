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
from types import CodeType, FunctionType
from typing import Any

from cloudpickle import cloudpickle

__all__ = ["ByValuePickler", "ByValueUnpickler", "number_classes"]

_DISPATCHING: Any = functools.singledispatch(len)


class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Takes by value also what cloudpickle would look for by its name, and not find."""

    def reducer_override(self, obj: Any) -> Any:
        """See :class:`pickle.Pickler`."""
        if isinstance(obj, functools._lru_cache_wrapper) and _is_to_be_taken(obj):
            how = obj.cache_parameters()
            attributes = _attributes(obj, "__wrapped__", "cache_parameters")
            return _cached, (obj.__wrapped__, how["maxsize"], how["typed"]), attributes
        if isinstance(obj, typing.NewType) and _is_to_be_taken(obj):
            return typing.NewType, (obj.__name__, obj.__supertype__), _attributes(obj)
        if isinstance(obj, functools.cached_property):
            return functools.cached_property, (obj.func,), _attributes(obj, "lock")
        if isinstance(obj, FunctionType) and _dispatches(obj) and _is_to_be_taken(obj):
            return _dispatching, (dict(vars(obj)["registry"]),)
        return super().reducer_override(obj)


def _is_to_be_taken(obj: Any) -> bool:
    found = cloudpickle._lookup_module_and_qualname(obj)
    return found is None or cloudpickle._is_registered_pickle_by_value(found[0])


def _dispatches(function: FunctionType) -> bool:
    """Whether it comes from :func:`functools.singledispatch`."""
    return function.__code__ is _DISPATCHING.__code__


def _attributes(obj: Any, *but: str) -> dict[str, Any]:
    return {name: value for name, value in vars(obj).items() if name not in but}


def _cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _dispatching(functions: dict[type, Any]) -> Any:
    dispatching = functools.singledispatch(functions.pop(object))
    for kind, function in functions.items():
        dispatching.register(kind, function)
    return dispatching


class ByValueUnpickler(pickle.Unpickler):
    """Loads what came from another process, and changes nothing that is in this one.

    Args:
        data: what to load.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._known: list[Any] = []
        self._new: list[tuple[str, Any]] = []
        self._instead = {
            "_make_skeleton_class": self._make_class,
            "_make_skeleton_enum": self._make_enum,
            "_class_setstate": self._set_class,
            "_make_function": self._make_function,
            "_function_setstate": self._set_function,
        }

    def load(self) -> Any:
        """Loads it.

        Raises:
            TypeError: something has come by its name only, and is not there.
        """
        value = super().load()
        for number, cls in self._new:  # those that an error left half made are forgotten
            cloudpickle._lookup_class_or_track(number, cls)
        return value

    def find_class(self, module: str, name: str) -> Any:
        """See :class:`pickle.Unpickler`."""
        if module == cloudpickle.__name__ and name in self._instead:
            return self._instead[name]
        try:
            return super().find_class(module, name)
        except AttributeError:
            if module != "__main__":
                raise
        raise TypeError(
            f"{name!r} is defined in __main__ and pickled by its name alone, but workers do not "
            f"import __main__. Define {name!r} in a module that can be imported, or within the "
            "function that makes the environment; context='fork' does without pickling"
        )

    def _make_class(self, *args: Any) -> Any:
        return self._made(cloudpickle._make_skeleton_class, args)

    def _make_enum(self, *args: Any) -> Any:
        return self._made(cloudpickle._make_skeleton_enum, args)

    def _made(self, make: Any, args: tuple[Any, ...]) -> Any:
        *what, number, extra = args
        cls = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(number)
        if cls is not None:
            self._known.append(cls)
            return cls
        cls = make(*what, None, extra)
        self._new.append((number, cls))
        return cls

    def _set_class(self, cls: Any, state: Any) -> Any:
        return cls if self._knows(cls) else cloudpickle._class_setstate(cls, state)

    def _make_function(self, code: CodeType, names: dict[str, Any], *rest: Any) -> Any:
        if (own := _own_function(names.get("__name__"), code)) is not None:
            self._known.append(own)
            return own
        return cloudpickle._make_function(code, names, *rest)

    def _set_function(self, function: Any, state: Any) -> None:
        if not self._knows(function):
            cloudpickle._function_setstate(function, state)

    def _knows(self, obj: Any) -> bool:
        return any(known is obj for known in self._known)


def _own_function(module: str | None, code: CodeType) -> FunctionType | None:
    """The function of that module here with this name and code, decorated or not."""
    found: Any = sys.modules.get(module or "")
    for name in getattr(code, "co_qualname", code.co_name).split("."):
        found = getattr(found, name, None)
    if not callable(found):
        return None
    found = inspect.unwrap(found, stop=lambda each: getattr(each, "__code__", None) == code)
    return found if isinstance(found, FunctionType) and found.__code__ == code else None


def number_classes() -> None:
    """Gives the classes that travel by value their numbers, for a process forked after it."""
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
                cloudpickle._get_or_create_tracker_id(cls)
