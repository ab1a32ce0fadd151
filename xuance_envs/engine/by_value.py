"""Pickling of functions and classes by value, on top of cloudpickle.

cloudpickle gives each class an id, by which a process recognizes its own class in a pickle.
But cloudpickle then overwrites the class's attributes with those in the pickle. Here, the
classes and module functions that this process already has stay unchanged.

Ordinary pickles also change some of NumPy's types, which :func:`reduce_exactly` prevents. On Linux,
for example, NumPy has types for ``long`` and for ``long long``, which have the same width. Their
dtypes compare equal, and pickles use only one of them. Pickles may also change the byte order.
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

import numpy as np
from cloudpickle import cloudpickle

from xuance_envs._override import override
from xuance_envs.extras import require_attributes

require_attributes(
    "cloudpickle>=3,<4",
    cloudpickle,
    "Pickler _DYNAMIC_CLASS_TRACKER_BY_ID _class_setstate _function_setstate "
    "_lookup_class_or_track _make_function _make_skeleton_class _make_skeleton_enum "
    "list_registry_pickle_by_value",
)

_DISPATCHING: Any = functools.singledispatch(len)
_CACHED: Any = type(functools.lru_cache(len))


class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickler that also handles objects that cloudpickle fails to find by name."""

    @override
    def reducer_override(self, obj: Any) -> Any:
        """Reduce objects that cloudpickle sends by name although the receiver lacks them."""
        if (reduced := reduce_exactly(obj)) is not NotImplemented:
            return reduced
        if isinstance(obj, _CACHED) and _needs_by_value(obj):
            parameters = obj.cache_parameters()
            arguments = obj.__wrapped__, parameters["maxsize"], parameters["typed"]
            return _make_lru_cache, arguments, _attributes(obj, "__wrapped__", "cache_parameters")
        if isinstance(obj, typing.NewType) and _needs_by_value(obj):
            return typing.NewType, (obj.__name__, obj.__supertype__), _attributes(obj)
        if isinstance(obj, functools.cached_property):
            return functools.cached_property, (obj.func,), _attributes(obj, "lock")
        is_function = isinstance(obj, FunctionType)
        if is_function and obj.__code__ is _DISPATCHING.__code__ and _needs_by_value(obj):
            return _make_singledispatch, (dict(vars(obj)["registry"]),)
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and reduced is not NotImplemented and len(reduced) > 2:
            reduced[2][0]["__qualname__"] = obj.__qualname__  # cloudpickle leaves it out
        return reduced


def _needs_by_value(obj: Any) -> bool:
    """Return whether other processes cannot, or must not, import an object by name."""
    module = str(obj.__module__)
    if module == "__main__" or _lookup(module, getattr(obj, "__qualname__", "")) is not obj:
        return True
    by_value = cloudpickle.list_registry_pickle_by_value()
    return any(f"{module}.".startswith(f"{name}.") for name in by_value)


def _lookup(module: str, name: str) -> Any:
    """Return an attribute of a loaded module by its qualified name, or None."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _attributes(obj: Any, *exclude: str) -> dict[str, Any]:
    return {name: value for name, value in vars(obj).items() if name not in exclude}


def _make_lru_cache(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _make_singledispatch(functions: dict[type, Any]) -> Any:
    dispatching = functools.singledispatch(functions.pop(object))
    for kind, function in functions.items():
        dispatching.register(kind, function)
    return dispatching


class ByValueUnpickler(pickle.Unpickler):
    """Unpickler that does not overwrite classes and functions of this process."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._known: list[Any] = []
        self._new: list[tuple[str, Any]] = []
        # Replacements for cloudpickle's functions, by name. Each gets the original as an argument.
        self._overrides: dict[str, Any] = {
            "_make_skeleton_class": self._make_class,
            "_make_skeleton_enum": self._make_class,
            "_class_setstate": self._set_state,
            "_make_function": self._make_function,
            "_function_setstate": self._set_state,
        }

    def load(self) -> Any:
        value = super().load()
        # Track classes only after success, because a failure may leave incomplete ones.
        # cloudpickle has no public function for this.
        for class_id, cls in self._new:
            cloudpickle._lookup_class_or_track(class_id, cls)
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
            f"{name!r} was pickled by name from __main__, which workers do not import. Define it "
            "in an importable module or inside the function that creates the environment, or use "
            "context='fork', which needs no pickling"
        )

    def _make_class(self, make: Any, *args: Any) -> Any:
        *class_args, class_id, extra = args
        cls = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(class_id)
        if cls is not None:
            self._known.append(cls)
            return cls
        cls = make(*class_args, None, extra)
        self._new.append((class_id, cls))
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
        if not any(known is obj for known in self._known):
            set_state(obj, state)


def _local_function(module: str, code: CodeType) -> FunctionType | None:
    """Return the undecorated function with this code from a module, or None."""
    found = _lookup(module, getattr(code, "co_qualname", code.co_name))
    if not callable(found):
        return None
    found = inspect.unwrap(found, stop=lambda each: getattr(each, "__code__", None) == code)
    return found if isinstance(found, FunctionType) and found.__code__ == code else None


def assign_class_ids() -> None:
    """Assign ids to classes that cloudpickle pickles by value; forked processes inherit them."""
    pickler = ByValuePickler(io.BytesIO())
    todo, seen = [object], {id(object)}
    while todo:
        for cls in type.__subclasses__(todo.pop()):
            if id(cls) in seen:
                continue
            seen.add(id(cls))
            todo.append(cls)
            name = getattr(cls, "__module__", None)  # a metaclass may hide it
            module = sys.modules.get(str(name))
            importable = module is not None and vars(module).get(cls.__qualname__) is cls
            if not importable or name == "__main__":
                with suppress(Exception):
                    pickler.reducer_override(cls)


# -- types of NumPy's values ----------------------------------------------------------------

# Classes of the dtypes that pickles replace.
_ALIASES = frozenset(
    type(dtype)
    for dtype in map(np.dtype, sorted(np.typecodes["All"]))
    if pickle.loads(pickle.dumps(dtype)).char != dtype.char
)


def reduce_exactly(obj: Any) -> Any:
    """Return a reduction that keeps types; NotImplemented if a pickle keeps them anyway."""
    kind = type(obj)
    if kind in _ALIASES:
        return np.dtype, (obj.byteorder + obj.char,)
    if kind is np.ndarray and not (obj.dtype.isnative or obj.dtype.hasobject):
        order = "F" if obj.flags.fnc else "C"
        return _array, (obj.tobytes(order), obj.dtype, obj.shape, order)
    return NotImplemented


def _array(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any) -> Any:
    return np.ndarray(shape, dtype, bytearray(data), order=order)


def exact_form(dtype: np.dtype[Any]) -> Any:
    """Return a key that distinguishes dtypes which compare equal but differ in type or flags."""
    if dtype.subdtype is not None:
        inner, shape = dtype.subdtype
        return shape, exact_form(inner)
    if dtype.fields is None:
        return dtype.char
    fields = [exact_form(field[0]) for field in dtype.fields.values()]
    return dtype.char, dtype.isalignedstruct, *fields


def has_alias(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype, or a part of it, compares equal to a different dtype."""
    if dtype.subdtype is not None:
        return has_alias(dtype.subdtype[0])
    if dtype.fields is None:
        return type(dtype) in _ALIASES
    return dtype.isalignedstruct or any(has_alias(each[0]) for each in dtype.fields.values())
