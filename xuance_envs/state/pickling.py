"""Serialization of an environment's attributes."""

from __future__ import annotations

import collections
import importlib
import io
import operator
import pickle
import random
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from xuance_envs._override import override
from xuance_envs.state import rebuild
from xuance_envs.state.faults import FaultError, MismatchError, type_name
from xuance_envs.state.fingerprint import is_space
from xuance_envs.state.state_plan import (
    FUNCTION_KEY,
    StatePlan,
    is_native,
    is_not_state,
    qualified_name,
)

_PROTOCOL = 5

_SAFE_CLASSES = frozenset(
    {
        ("collections", "deque"),
        ("collections", "OrderedDict"),
        ("collections", "defaultdict"),
        ("collections", "Counter"),
        ("builtins", "complex"),
        ("builtins", "frozenset"),
        ("builtins", "set"),
        ("builtins", "bytearray"),
        ("builtins", "range"),
        ("builtins", "slice"),
        ("builtins", "int"),
        ("builtins", "float"),
        ("builtins", "list"),
        ("builtins", "dict"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("numpy.dtypes", "StringDType"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy.core.numeric", "_frombuffer"),
        ("gymnasium.wrappers.utils", "RunningMeanStd"),
        ("gymnasium.spaces.graph", "GraphInstance"),
        ("gym.wrappers.normalize", "RunningMeanStd"),
        ("xuance_envs.gym.lazy_frames", "LazyFrames"),
        ("ale_py._ale_py", "Action"),
    }
)
"""Classes that an untrusted state may name: they only hold data."""

_REBUILD = "xuance_envs.state.rebuild"
_PLAIN_FUNCTIONS = {
    name: getattr(rebuild, name)
    for name in (
        "array",
        "view",
        "scalar",
        "bit_generator",
        "generator",
        "random_state",
        "python_random",
    )
}
_TARGET_FUNCTIONS = (
    "there",
    "function",
    "native",
    "class_named",
    "method",
    "with_attributes",
    "with_random",
)
_FUNCTIONS = frozenset(
    id(getattr(rebuild, name)) for name in (*_PLAIN_FUNCTIONS, *_TARGET_FUNCTIONS)
)
_REDUCERS = rebuild.REDUCERS
_NEW_OBJECT: Any = object().__reduce_ex__(2)[0]  # copyreg.__newobj__


class StatePickler(pickle.Pickler):
    """Pickler that writes paths instead of objects that are not state."""

    def __init__(self, file: Any, plan: StatePlan) -> None:
        super().__init__(file, _PROTOCOL)
        self._known = plan.known
        self._plan = plan

    @override
    def reducer_override(self, obj: Any) -> Any:
        path = self._known.get(id(obj))
        if path is not None:
            return rebuild.there, (path,)
        kind = type(obj)
        reduce = _REDUCERS.get(kind)
        if reduce is None:
            return self._reduce_other(obj)
        is_foreign = kind is np.ndarray and obj.base is not None and _uses_foreign_memory(obj)
        if is_foreign and (path := self._plan.path_of(obj)) is not None:
            return rebuild.native, (path, obj.tobytes())
        return reduce(obj)

    def _reduce_other(self, obj: Any) -> Any:
        kind: Any = type(obj)
        if kind is types.FunctionType or kind is types.BuiltinFunctionType:
            if id(obj) in _FUNCTIONS or (path := self._plan.path_of(obj)) is None:
                return NotImplemented
            return rebuild.function, (path, qualified_name(obj))
        if kind is types.MethodType:
            return rebuild.method, (obj.__self__, obj.__name__)
        if isinstance(obj, type):
            if obj.__module__ == "builtins" or (obj.__module__, obj.__qualname__) in _SAFE_CLASSES:
                return NotImplemented
            return rebuild.class_named, (obj.__module__, obj.__qualname__)
        if is_space(obj):
            return NotImplemented
        if is_native(kind):
            raise FaultError(
                "", f"a {type_name(obj)} cannot be saved: its library hides its state from Python"
            )
        if is_not_state(kind) and (path := self._plan.path_of(obj)) is not None:
            return rebuild.there, (path,)
        return _reduce_complete(obj)


def _reduce_complete(obj: Any) -> Any:
    """Return a complete reduction of an object whose class pickles it incompletely."""
    kind = type(obj)
    if isinstance(obj, random.Random):
        state = random.Random.getstate(obj), vars(obj)
        return _NEW_OBJECT, (kind,), state, None, None, rebuild.with_random
    if isinstance(obj, np.random.Generator):
        raise FaultError("", "NumPy's pickles do not record subclasses of Generator")
    pickles = getattr(kind, "__getstate__", None)
    if getattr(pickles, "__qualname__", "") == "EzPickle.__getstate__":  # calls __init__ instead
        return _NEW_OBJECT, (kind,), vars(obj), None, None, rebuild.with_attributes
    return NotImplemented


def _uses_foreign_memory(array: Any) -> bool:
    """Return whether an array lies in another library's memory, where it must stay."""
    while type(array) is np.ndarray:
        array = array.base
    return array is not None and not isinstance(array, (bytes, bytearray))


class StateUnpickler(pickle.Unpickler):
    """Unpickler that reads a state for one environment."""

    def __init__(
        self,
        data: bytes,
        plan: StatePlan | None,
        trusted: bool,
        spawn: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._trusted = trusted
        self._known = _PLAIN_FUNCTIONS
        if spawn is not None:
            spawned = "generator", "random_state", "python_random"
            self._known = {
                **_PLAIN_FUNCTIONS,
                **{n: _then_fork(_PLAIN_FUNCTIONS[n], spawn) for n in spawned},
            }
        # A separate object: bound methods of the unpickler itself would form a reference cycle that
        # keeps the state's bytes in memory.
        self._target = _InspectionTarget(trusted) if plan is None else _Target(plan, trusted)

    @property
    def foreign_arrays(self) -> Sequence[tuple[Any, bytes]]:
        """Arrays in another library's memory, with their new content."""
        return self._target.foreign_arrays

    @override
    def find_class(self, module: str, name: str) -> Any:
        if module == _REBUILD:
            if name in self._known:
                return self._known[name]
            if name in _TARGET_FUNCTIONS:
                return getattr(self._target, name)
        elif (module, name) in _SAFE_CLASSES or self._trusted:
            return super().find_class(module, name)
        raise _unsafe_class_error(module, name)


class _Target:
    """Functions that resolve a state's references in the target environment."""

    method = staticmethod(getattr)

    def with_attributes(self, made: Any, attributes: dict[str, Any]) -> None:
        """Set the attributes of a new object; trusted states only."""
        if not self._trusted:
            raise _unsafe_class_error(type(made).__module__, type(made).__qualname__)
        vars(made).update(attributes)

    def with_random(self, made: Any, state: tuple[Any, dict[str, Any]]) -> None:
        """Set the state and attributes of a new object derived from ``random.Random``."""
        drawn, attributes = state
        self.with_attributes(made, attributes)
        random.Random.setstate(made, drawn)

    def function(self, path: tuple[Any, ...], name: str) -> Any:
        """Return the environment's function at a path if it has the expected name."""
        found = self.there(path)
        if qualified_name(found) != name:
            where = ".".join(map(str, path[1:]))
            raise MismatchError(
                f"{FUNCTION_KEY}: {where}", name, qualified_name(found) or type_name(found)
            )
        return found

    def __init__(self, plan: StatePlan, trusted: bool) -> None:
        self.foreign_arrays: list[tuple[Any, bytes]] = []
        self.there = plan.resolve
        self._plan = plan
        self._trusted = trusted
        self._classes: dict[tuple[str, str], type] | None = None

    def native(self, path: tuple[Any, ...], content: bytes) -> Any:
        """Return an array in another library's memory and store its new content."""
        array = self.there(path)
        self.foreign_arrays.append((array, content))
        return array

    def class_named(self, module: str, name: str) -> Any:
        """Return a class, preferring the one that the environment uses."""
        if not self._trusted and (module, name) not in _SAFE_CLASSES:
            raise _unsafe_class_error(module, name)
        if self._classes is None:
            self._classes = {(c.__module__, c.__qualname__): c for c in _classes_of(self._plan)}
        if (module, name) in self._classes:
            return self._classes[module, name]
        return _class_of(module, name)


class _InspectionTarget:
    """Stand-in for the target environment while a state is only inspected."""

    foreign_arrays: tuple[Any, ...] = ()

    def __init__(self, trusted: bool) -> None:
        self._trusted = trusted
        self.there = self.function = self.native = self.method = _placeholder
        self.with_attributes = self.with_random = _placeholder

    def class_named(self, module: str, name: str) -> Any:
        """Return a class if it is safe."""
        if not self._trusted and (module, name) not in _SAFE_CLASSES:
            raise _unsafe_class_error(module, name)
        return _PLACEHOLDER if self._trusted else _class_of(module, name)


def _class_of(module: str, name: str) -> Any:
    return operator.attrgetter(name)(importlib.import_module(module))


def check_safe(data: bytes) -> None:
    """Raise a fault if an untrusted state names an unsafe class or cannot be read."""
    try:
        StateUnpickler(data, None, trusted=False).load()
    except FaultError:
        raise
    except Exception as error:
        raise FaultError(
            "", f"cannot read the state of an environment: {type_name(error)}: {error}"
        ) from error


class _NoPlan:
    """Plan for data that belongs to no environment."""

    known: dict[int, Any] = {}  # noqa: RUF012  # read-only
    layers: tuple[Any, ...] = ()

    def path_of(self, obj: Any) -> None:
        pass

    def resolve(self, path: Any) -> Any:
        raise LookupError(path)


_NO_PLAN: Any = _NoPlan()


def dumps_plain(value: Any) -> bytes:
    """Serialize data that belongs to no environment."""
    file = io.BytesIO()
    StatePickler(file, _NO_PLAN).dump(value)
    return file.getvalue()


def loads_plain(data: bytes, trusted: bool) -> Any:
    """Read the result of :func:`dumps_plain`."""
    if not trusted:
        check_safe(data)
    try:
        return StateUnpickler(data, _NO_PLAN, trusted).load()
    except FaultError:
        raise
    except Exception as error:
        raise FaultError("", f"cannot read saved data: {type_name(error)}: {error}") from error


class _Placeholder:
    """Inert stand-in for a part of the target environment."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 0


_PLACEHOLDER = _Placeholder()


def _placeholder(*_: Any) -> _Placeholder:
    return _PLACEHOLDER


def _unsafe_class_error(module: str, name: str) -> FaultError:
    return FaultError(
        "",
        f"the state contains a {module}.{name}, which is not on the list of safe classes: load it "
        "with trusted=True if you trust its source",
    )


def _then_fork(make: Callable[..., Any], spawn: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *given: spawn(make(*given))


def _classes_of(plan: StatePlan) -> Iterator[type]:
    """Yield the classes of an environment's values, and those visible to its methods."""
    for layer in plan.layers:
        for kind in type(layer.obj).__mro__:
            yield kind
            for value in kind.__dict__.values():
                function = getattr(value, "__func__", value)
                if isinstance(function, types.FunctionType):
                    found = (*function.__globals__.values(), *_cells(function))
                    yield from (each for each in found if isinstance(each, type))
                    break
        waiting = collections.deque(value for _, value in layer.items())
        seen: set[int] = set()
        while waiting and len(seen) < _MAX_OBJECTS:
            value = waiting.popleft()
            if id(value) in seen:
                continue
            seen.add(id(value))
            yield type(value)
            if isinstance(value, dict):
                waiting += value.values()
            elif isinstance(value, (list, tuple, set, collections.deque)):
                waiting += value
            elif (
                hasattr(value, "__dict__") and type(value).__module__ not in sys.stdlib_module_names
            ):
                waiting += vars(value).values()


_MAX_OBJECTS = 10_000


def _cells(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue
