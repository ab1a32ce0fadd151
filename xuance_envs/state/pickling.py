"""Serialization of an environment's attributes."""

from __future__ import annotations

import builtins
import io
import pickle
import types
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

from xuance_envs._override import override
from xuance_envs.state import rebuild
from xuance_envs.state.faults import FaultError, type_name, type_phrase
from xuance_envs.state.fingerprint import is_space
from xuance_envs.state.handlers import handler_of
from xuance_envs.state.state_plan import PROTOCOL, StatePlan
from xuance_envs.state.unpickling import SAFE_CLASSES, StateUnpickler, check_safe
from xuance_envs.state.values import functions, reducers, tensors
from xuance_envs.state.values.attributes import (
    ONE_HOLDER,
    attributes_to_set,
    dict_holders,
    hidden_attributes,
    overrides_pickling,
)
from xuance_envs.state.values.graph import EMPTY_CELL
from xuance_envs.state.values.held_values import is_resource, name_of, why_not_kept, why_refused


class StalePlanError(Exception):
    """The environment holds a kept object that its plan does not list."""


class _Cell:
    """Stand-in for a closure cell, which is restored empty and then filled."""

    def __reduce__(self) -> Any:
        return rebuild.cell, ()


class StatePickler(pickle.Pickler):
    """Pickler that writes paths in place of kept objects."""

    def __init__(self, file: Any, plan: StatePlan, is_fresh: bool = True) -> None:
        super().__init__(file, PROTOCOL)
        prelude, self.memo = plan.prelude
        file.write(prelude)
        self.used: list[Any] = []
        """Classes and functions whose constants the state depends on."""
        self._references = plan.references
        self._is_fresh = is_fresh
        self._cells: dict[int, tuple[Any, _Cell]] = {}
        self._plan = plan
        # Ids of the objects that `_reduce_completely` is reducing.
        self._tried: set[int] = set()
        # By an attribute's id: the attribute, and True if it can be saved.
        self._can_be_saved: dict[int, tuple[Any, bool]] = {}
        # Tensors' memory that is saved: first address, end, owner.
        self._memory: list[tuple[int, int, Any]] = []

    @override
    def reducer_override(self, obj: Any) -> Any:
        found = self._references.get(id(obj))
        if found is not None:
            return found
        kind = type(obj)
        reduce = reducers.REDUCERS.get(kind)
        if reduce is None:
            return self._reduce_other(obj, kind)
        if kind is np.ndarray and obj.base is not None and reducers.has_foreign_memory(obj):
            self._require_fresh_plan()
        return reduce(obj)

    def _reduce_other(self, obj: Any, kind: Any) -> Any:
        reduce = _OWN_REDUCERS.get(kind)
        if reduce is not None:
            return reduce(self, obj)
        if issubclass(kind, type):
            return self.reduce_class(obj)
        if is_space(obj):
            return NotImplemented
        if handler_of(kind) is not None:
            self._require_fresh_plan()
            raise FaultError(
                "",
                f"{type_phrase(obj)} with a state handler cannot be reached by attributes and "
                "keys; it may be in a set",
            )
        reason = why_refused(kind)
        if reason is not None:
            raise FaultError("", reason)
        if is_resource(obj):
            self._require_fresh_plan()
            reason = why_not_kept(obj)
            if reason is not None or name_of(kind) not in rebuild.NEW_RESOURCES:
                raise FaultError(
                    "", reason or "it cannot be reached by attributes and keys; it may be in a set"
                )
            return rebuild.new_resource, (name_of(kind),)
        if tensors.is_tensor(obj):
            self._check_tensor(obj)
        if not self._tried and dict_holders(obj) > ONE_HOLDER:
            return reducers.reduce_with_dict(obj)
        if kind is object and (found := self._sentinel(obj)) is not None:
            return found
        if reducers.inherited_reducer(kind) is not None:
            return reducers.reduction(obj)
        if overrides_pickling(kind):
            return self._reduce_completely(obj)
        return reducers.reduce_container(obj) if reducers.is_own_container(kind) else NotImplemented

    def _sentinel(self, obj: Any) -> Any:
        """Reduce an ``object()`` to the class attribute or module variable holding it, if any."""
        kinds = [type(layer.obj) for layer in self._plan.layers]
        for kind in dict.fromkeys(base for each in kinds for base in each.__mro__):
            for name, value in kind.__dict__.items():
                if value is obj:
                    return rebuild.method, (kind, name)
            for _, function in functions.functions_of_class(kind):
                for name, value in function.__globals__.items():
                    if value is obj:
                        return rebuild.variable, (kind, name)
        return None

    def _reduce_completely(self, obj: Any) -> Any:
        """Add the attributes that an object's own pickling methods leave out, if possible."""
        if id(obj) in self._tried:
            return NotImplemented
        self._tried.add(id(obj))
        hidden = hidden_attributes(obj)
        attributes = {name: item for name, item in hidden.items() if self._can_save(item)}
        attributes |= attributes_to_set(obj, hidden)
        self._tried.remove(id(obj))
        reduced = reducers.reduction(obj) if attributes else ()
        if type(reduced) is not tuple or not 2 <= len(reduced) <= 5:
            return NotImplemented
        make, arguments, state, items, pairs = [*reduced, None, None, None][:5]
        return make, arguments, (state, attributes), items, pairs, rebuild.with_all_attributes

    def _can_save(self, value: Any) -> bool:
        found = self._can_be_saved.get(id(value))
        if found is None:
            pickler = StatePickler(io.BytesIO(), self._plan)
            pickler._tried, pickler._can_be_saved = self._tried, self._can_be_saved
            is_saved = False  # the owner must recreate an unsaved value
            with suppress(Exception):
                pickler.dump(value)
                is_saved = True
            found = self._can_be_saved[id(value)] = value, is_saved
        return found[1]

    def _require_fresh_plan(self) -> None:
        if not self._is_fresh:
            raise StalePlanError

    def _check_tensor(self, tensor: Any) -> None:
        reason = tensors.why_not_saved(tensor)
        if reason is not None:
            raise FaultError("", reason)
        if not tensors.is_plain_tensor(tensor):
            start = tensors.storage_address(tensor)
            self._memory.append((start, start + tensor.untyped_storage().nbytes(), tensor))

    def reduce_storage(self, obj: tensors.TensorStorage) -> Any:
        """Reduce a tensor storage; refer to the array or buffer that owns its memory, if known."""
        start, end = rebuild.extent(obj)
        for owner in self._plan.held.buffers:
            first, last = rebuild.extent(owner)
            if first <= start and end <= last:
                return rebuild.array_storage, (owner, start - first, end - start)
        self._memory.append((start, end, obj.bytes))
        return rebuild.storage, (obj.bytes.numpy().tobytes(),)

    @override
    def dump(self, obj: Any) -> None:
        super().dump(obj)
        plan = self._plan
        if self._memory or plan.foreign_owners or plan.attributes_are_shared():
            self._check_memory()

    def _check_memory(self) -> None:
        """Raise if objects share memory that they would not share after loading."""
        places = self._memory
        attributes = {id(layer.attributes) for layer in self._plan.layers}
        for _, value in self.memo.copy().values():
            if id(value) in attributes:
                raise FaultError("", "it is the __dict__ of an environment or wrapper")
            if id(value) in self._plan.foreign_owners:
                raise FaultError("", f"an array uses the memory of {type_phrase(value)}")
            if isinstance(value, reducers.BUFFERS) and getattr(value, "base", None) is None:
                places.append((*rebuild.extent(value), value))
        places.sort(key=lambda place: place[:2])
        for (_, end, one), (start, _, other) in pairwise(places):
            if start < end:
                self._require_fresh_plan()
                raise FaultError(
                    "",
                    "two objects share memory, but would not share it after loading: "
                    f"{type_name(one)} and {type_name(other)}",
                )

    def reduce_function(self, obj: types.FunctionType) -> Any:
        digest = functions.code_digest(obj.__code__)
        if functions.named_in_module(obj):
            if (obj.__module__, obj.__qualname__) in SAFE_CLASSES:
                return NotImplemented
            self.used.append(obj)
            return rebuild.function_named, (obj.__module__, obj.__qualname__, digest)
        cells = [
            (self._cell(c), functions.cell_content(c, EMPTY_CELL)) for c in obj.__closure__ or ()
        ]
        how = obj.__module__, obj.__qualname__, digest, tuple(mine for mine, _ in cells)
        content = (
            (obj.__name__, obj.__qualname__, obj.__module__),
            (obj.__defaults__, obj.__kwdefaults__, vars(obj) or None),
            tuple(each for each in cells if each[1] is not EMPTY_CELL),
        )
        return rebuild.function_with_code, how, content, None, None, rebuild.with_content

    def _cell(self, cell: Any) -> _Cell:
        return self._cells.setdefault(id(cell), (cell, _Cell()))[1]

    def reduce_cell(self, obj: Any) -> Any:
        mine, content = self._cell(obj), functions.cell_content(obj, EMPTY_CELL)
        if content is EMPTY_CELL:
            return rebuild.same, (mine,)
        return rebuild.same, (mine,), content, None, None, rebuild.with_cell_content

    def reduce_builtin(self, obj: Any) -> Any:
        owner = obj.__self__
        if owner is not None and not isinstance(owner, types.ModuleType):
            return rebuild.method, (owner, obj.__name__)
        name = obj.__module__, obj.__qualname__
        if name in SAFE_CLASSES or functions.find_named(*name) is not obj:
            return NotImplemented
        return rebuild.function_named, (*name, b"")

    def reduce_class(self, obj: Any) -> Any:
        module, name = obj.__module__, obj.__qualname__
        if (module == "builtins" and obj in _BUILTIN_TYPES) or (module, name) in SAFE_CLASSES:
            return NotImplemented
        self.used.append(obj)
        digest = b"" if functions.named_in_module(obj) else functions.class_digest(obj)
        return rebuild.class_named, (module, name, digest)


_BUILTIN_TYPES = frozenset(value for value in vars(builtins).values() if isinstance(value, type))
_OWN_REDUCERS: dict[Any, Callable[[StatePickler, Any], Any]] = {
    _Cell: lambda pickler, obj: NotImplemented,
    types.FunctionType: StatePickler.reduce_function,
    types.BuiltinFunctionType: StatePickler.reduce_builtin,
    types.CellType: StatePickler.reduce_cell,
    types.ModuleType: lambda pickler, obj: (rebuild.module_named, (obj.__name__,)),
    type: StatePickler.reduce_class,
    tensors.TensorStorage: StatePickler.reduce_storage,
}


_NO_PLAN = StatePlan(None)
"""Plan for data that belongs to no environment."""


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
