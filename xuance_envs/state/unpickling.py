"""Deserialization of an environment's attributes.

References in a state are resolved in the environment that the state is loaded into.
"""

from __future__ import annotations

import functools
import importlib
import io
import operator
import pickle
import random
import types
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from xuance_envs._override import override
from xuance_envs.state import rebuild
from xuance_envs.state.faults import FaultError, MismatchError, type_name
from xuance_envs.state.handlers import Handler
from xuance_envs.state.state_plan import BEGINS_WITH_PRELUDE, StatePlan
from xuance_envs.state.values.functions import (
    code_digest,
    find_named,
    full_name,
    functions_of_class,
)
from xuance_envs.state.values.held_values import FOREIGN, handler_for
from xuance_envs.state.values.reducers import CONTAINERS

_REBUILD = "xuance_envs.state.rebuild"
_RANDOM = (
    *("bit_generator", "seeded_generator", "seed_sequence"),
    *("random_state", "python_random", "torch_generator"),
)
"""Functions that create generators and seeds, which a fork reseeds."""

_SAFE = {
    "builtins": "complex frozenset set bytearray range slice int float list dict",
    "collections": "deque OrderedDict defaultdict Counter",
    "threading": "Event Condition Semaphore BoundedSemaphore",
    "numpy": "ndarray dtype",
    "numpy.dtypes": "StringDType",
    "numpy._core.multiarray": "scalar _reconstruct",
    "numpy._core.numeric": "_frombuffer",
    "numpy.core.multiarray": "scalar _reconstruct",
    "numpy.core.numeric": "_frombuffer",
    "gymnasium.wrappers.utils": "RunningMeanStd",
    "gymnasium.spaces.graph": "GraphInstance",
    "gym.wrappers.normalize": "RunningMeanStd",
    "xuance_envs.gym.lazy_frames": "LazyFrames",
    "ale_py._ale_py": "Action",
    "pygame.math": "Vector2 Vector3",
    "pygame.rect": "Rect FRect",
    "pygame.color": "Color",
}
SAFE_CLASSES = frozenset((module, name) for module in _SAFE for name in _SAFE[module].split())
"""Classes and NumPy functions that an untrusted state may name: they only hold or create data."""


class Target:
    """The functions of :mod:`rebuild`, bound to one target environment's objects and classes."""

    method = staticmethod(getattr)
    bound = staticmethod(types.MethodType)

    def __init__(self, plan: StatePlan, trusted: bool, spawn: Any = None) -> None:
        self._foreign_arrays: list[tuple[Any, Any]] = []
        self.kept_objects: list[Any] = []
        self._table: tuple[Any, ...] = ()
        self._new: dict[int, Any] = {}
        self.used: list[Any] = []
        self.there = plan.resolve
        self.kept = self.kept_objects.__getitem__
        self._plan = plan
        self._looked_again = False
        self._trusted = trusted
        self._spawn = spawn

    def kept_table(self, table: tuple[Any, ...]) -> None:
        self._table = table
        self.kept_objects += self._plan.find_kept(table)

    def handled(self, values: Sequence[Any]) -> list[tuple[Handler, Any, Any, Any]]:
        """Return the handler, object, state and owner of each object with a state handler."""
        plan = self._plan
        found = plan.handled
        if self._table != plan.table:
            found = [
                (handler, obj, plan.layers[paths[0][0]].obj, paths[0])
                for obj, (_, paths) in zip(self.kept_objects, self._table, strict=True)
                if (handler := handler_for(obj)) is not None
            ]
        if len(found) != len(values):
            what = "objects with state handlers"
            raise FaultError("", f"expected the state of {len(found)} {what}, got {len(values)}")
        pairs = [
            (h, obj, value, owner) for (h, obj, owner, _), value in zip(found, values, strict=True)
        ]
        pairs += [(FOREIGN, array, value, None) for array, value in self._foreign_arrays]
        return pairs

    def with_attributes(self, made: Any, attributes: dict[str, Any]) -> None:
        """Set the attributes of a new object; trusted states only."""
        if not self._trusted:
            raise unsafe_class_error(type(made).__module__, type(made).__qualname__)
        own = getattr(made, "__dict__", None)
        for name, value in attributes.items():
            if own is None or isinstance(_of_class(type(made), name), _MEMBERS):
                object.__setattr__(made, name, value)
            else:
                own[name] = value

    def with_dict(self, made: Any, state: Any) -> None:
        """Set a new object's ``__dict__``, which other values also hold; trusted states only."""
        attributes, slots = state if type(state) is tuple else (state, {})
        self.with_attributes(made, slots)
        made.__dict__ = attributes

    def with_links(self, made: Any, content: tuple[Any, tuple[Any, ...]]) -> None:
        """Set a new exception's attributes, cause and context; trusted states only."""
        self.with_attributes(made, content[0] or {})
        made.__cause__, made.__context__, made.__suppress_context__ = content[1]

    def variable(self, kind: type, name: str) -> Any:
        """Return the ``object()`` that a variable of the class's module holds."""
        for _, function in functions_of_class(kind):
            if type(function.__globals__.get(name)) is object:
                return function.__globals__[name]
        raise MismatchError(f"module of {full_name(kind)}", f"the variable {name}", "none")

    def with_all_attributes(self, made: Any, content: tuple[Any, dict[str, Any]]) -> None:
        """Set a new object's state and its other attributes; trusted states only."""
        state, attributes = content
        self.with_attributes(made, {})
        if state is not None and hasattr(made, "__setstate__"):
            made.__setstate__(state)
        else:
            for part in state if type(state) is tuple else (state,):
                self.with_attributes(made, part or {})
        self.with_attributes(made, attributes)

    def with_contained(self, made: Any, content: tuple[Any, Any, dict[str, Any]]) -> None:
        """Set the elements and attributes of a new container; trusted states only."""
        elements, option, attributes = content
        self.with_attributes(made, attributes)
        kind: Any = next(kind for kind in CONTAINERS if isinstance(made, kind))
        if kind is deque:
            deque.__init__(made, elements, option)
        elif kind is list:
            list.extend(made, elements)
        elif kind is set:
            set.update(made, elements)
        else:
            for key, value in elements:
                kind.__setitem__(made, key, value)
        if isinstance(made, defaultdict):
            object.__setattr__(made, "default_factory", option)

    def with_random(self, made: Any, state: tuple[Any, dict[str, Any]]) -> None:
        """Set the state and attributes of a new object derived from ``random.Random``."""
        drawn, attributes = state
        self.with_attributes(made, attributes)
        random.Random.setstate(made, drawn)
        if self._spawn is not None:
            self._spawn(made)

    def partial(self, function: Any) -> Any:
        """Return a :class:`functools.partial` without its arguments."""
        made = functools.partial(function)
        self._new[id(made)] = made
        return made

    def with_arguments(self, made: Any, content: tuple[Any, ...]) -> None:
        arguments, keywords, attributes = content
        if id(made) not in self._new:
            raise FaultError("", "the state would change a functools.partial that exists already")
        made.__setstate__((made.func, arguments, keywords, attributes))

    def with_content(self, made: Any, content: tuple[Any, ...]) -> None:
        """Set the defaults, attributes, names and cells of a new function."""
        if id(made) not in self._new:
            return  # a class or module defines it; it is a constant
        names, values, contents = content
        made.__name__, made.__qualname__, made.__module__ = names
        made.__defaults__, made.__kwdefaults__, attributes = values
        vars(made).update(attributes or {})
        for cell, value in contents:
            cell.cell_contents = value

    def function(self, path: tuple[Any, ...], name: str) -> Any:
        """Return the environment's function at a path; only states of version 0.2 call this."""
        found = self.there(path)
        if full_name(found) != name:
            raise MismatchError(f"function: {self._plan.text(path)}", name, full_name(found))
        return found

    def native(self, path: tuple[Any, ...], content: bytes) -> Any:
        """Return an array in another library's memory; only states of version 0.2 call this."""
        array = self.there(path)
        self._foreign_arrays.append((array, (content, array.dtype.str, array.shape)))
        return array

    def class_named(self, module: str, name: str, digest: bytes = b"") -> Any:
        """Return a class, preferring the one that the environment uses."""
        if self._trusted or (module, name) in SAFE_CLASSES:
            found = self._plan.code.class_named(module, name, digest)
            if found is None and find_named(module, name) is None and "<locals>" in name:
                found = self._search(lambda plan: plan.code.class_named(module, name, digest))
            found = found or _class_of(module, name)
        else:
            found = self._search(lambda plan: plan.held.named.get(f"{module}.{name}"))
            if not isinstance(found, type):
                raise unsafe_class_error(module, name)
        self.used.append(found)
        return found

    def function_named(self, module: str, name: str, digest: bytes) -> Any:
        found = self._plan.held.named.get(f"{module}.{name}")
        if found is None and self._trusted:
            with suppress(ImportError):
                importlib.import_module(module)
            found = find_named(module, name)
        code = getattr(found, "__code__", None)
        if found is None or (digest and (code is None or code_digest(code) != digest)):
            found = self.function_with_code(module, name, digest, ())
        if isinstance(found, types.FunctionType):
            self.used.append(found)
        return found

    def function_with_code(
        self, module: str, name: str, digest: bytes, cells: tuple[Any, ...]
    ) -> Any:
        """Return a function with this code and these cells."""
        found = self._search(lambda plan: plan.code.function(digest, self._trusted))
        if found is None:
            hint = ", or load the state with trusted=True if a module defines the function"
            raise FaultError(
                "",
                f"the state contains the function {module}.{name}, and this environment has no "
                "function with this code: create the environment in the same way"
                + ("" if self._trusted else hint),
            )
        made = found.made(cells)
        if made is not found.defined:
            self._new[id(made)] = made
        return made

    def module_named(self, name: str) -> Any:
        found = self._search(lambda plan: plan.held.named.get(f"module.{name}"))
        if found is None and not self._trusted:
            raise FaultError(
                "",
                f"the state contains the module {name}, which this environment does not hold: load "
                "the state with trusted=True if you trust the state's source",
            )
        return importlib.import_module(name) if found is None else found

    def _search(self, find: Callable[[StatePlan], Any]) -> Any:
        """Search the environment's values; update the plan's index once if that fails."""
        found = find(self._plan)
        if found is None and not self._looked_again:
            self._looked_again = True
            self._plan.update_index()
            found = find(self._plan)
        return found

    def method_of(self, owner: Any, kind: type, name: str) -> Any:
        """Return a method that a class in the owner's MRO defines."""
        bind = kind.__dict__[name].__get__
        return bind(None, owner) if isinstance(owner, type) else bind(owner, type(owner))


_MEMBERS = types.MemberDescriptorType, types.GetSetDescriptorType
"""Types of class attributes that store an attribute in the object itself, such as slots."""


def _of_class(kind: type, name: str) -> Any:
    return next((each.__dict__[name] for each in kind.__mro__ if name in each.__dict__), None)


_PLACEHOLDER = object()
"""Inert stand-in for a part of the target environment; it cannot be called."""


class InspectionTarget:
    """Stand-in for the target environment while a state is only inspected."""

    unsafe: tuple[str, str] | None = None

    def __getattr__(self, name: str) -> Any:
        return lambda *_: _PLACEHOLDER

    def class_named(self, module: str, name: str, digest: bytes = b"") -> Any:
        """Return a class if it is safe, else a placeholder that cannot be called."""
        if (module, name) in SAFE_CLASSES:
            return _class_of(module, name)
        self.unsafe = self.unsafe or (module, name)
        return _PLACEHOLDER


def _class_of(module: str, name: str) -> Any:
    try:
        return operator.attrgetter(name)(importlib.import_module(module))
    except (AttributeError, ImportError):
        raise FaultError(
            "",
            f"the state contains a {module}.{name}, but neither this environment nor {module} "
            "has this class",
        ) from None


def unsafe_class_error(module: str, name: str) -> FaultError:
    return FaultError(
        "",
        f"the state contains a {module}.{name}, which is not on the list of safe classes: load "
        "the state with trusted=True if you trust the state's source",
    )


class StateUnpickler(pickle.Unpickler):
    """Unpickler that reads a state for one environment."""

    def __init__(
        self,
        data: bytes,
        plan: StatePlan | None,
        trusted: bool,
        spawn: Callable[[Any], Any] | None = None,
    ) -> None:
        file = io.BytesIO(data)
        super().__init__(file)
        self._begins_with_prelude = file.read(1) == BEGINS_WITH_PRELUDE
        if not self._begins_with_prelude:  # a state of version 0.2
            file.seek(0)
        self._rest = file, len(data)
        self._trusted = trusted
        self._known = rebuild.PLAIN_FUNCTIONS
        if spawn is not None:
            self._known = self._known | {n: _then_fork(self._known[n], spawn) for n in _RANDOM}
            # A RandomState without a cached normal number.
            self._known["random_state_on"] = lambda bits, *_: rebuild.random_state_on(bits, 0, 0.0)
        # Bound methods of the unpickler itself would form a reference cycle that keeps the state's
        # bytes in memory.
        self.target: Any = InspectionTarget() if plan is None else Target(plan, trusted, spawn)

    @override
    def load(self) -> Any:
        if self._begins_with_prelude:
            super().load()
        return super().load()

    def load_facts(self) -> Any:
        """Return the constants, which follow the state; states of version 0.2 have none."""
        file, size = self._rest
        return _FactsUnpickler(file).load() if file.tell() < size else {}

    @override
    def find_class(self, module: str, name: str) -> Any:
        if module == _REBUILD:
            if name in self._known:
                return self._known[name]
            if name in rebuild.TARGET_FUNCTIONS:
                return getattr(self.target, name)
        elif (module, name) in SAFE_CLASSES or self._trusted:
            return super().find_class(module, name)
        raise unsafe_class_error(module, name)


class _FactsUnpickler(pickle.Unpickler):
    """Unpickler of constants, which are tuples of strings and numbers."""

    @override
    def find_class(self, module: str, name: str) -> Any:
        raise unsafe_class_error(module, name)


def check_safe(data: bytes) -> None:
    """Raise a fault if an untrusted state names an unsafe class or cannot be read."""
    reader = StateUnpickler(data, None, trusted=False)
    try:
        reader.load()
        reader.load_facts()
    except FaultError:
        raise
    except Exception as error:
        if (unsafe := reader.target.unsafe) is not None:
            raise unsafe_class_error(*unsafe) from None
        reason = f"cannot read the state of an environment: {type_name(error)}: {error}"
        raise FaultError("", reason) from error


def _then_fork(make: Callable[..., Any], spawn: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *given: spawn(make(*given))
