"""Classification of the values that an environment holds, at any depth.

Each value is state, a constant, a kept object, or something that cannot be saved. State is saved
and restored. Constants are compared when a state is loaded: the fingerprint compares wrappers, id,
arguments and spaces, and :mod:`~xuance_envs.state.values.constants` compares the others. Kept
objects are resources and objects with a state handler. A restored environment keeps its own object,
in which the handler, if any, restores the state.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xuance_envs.state import rebuild
from xuance_envs.state.ale import ALE_CLASS, REQUESTED_ATTRIBUTE
from xuance_envs.state.faults import (
    FaultError,
    MismatchError,
    class_name,
    module_of,
    type_name,
    type_phrase,
)
from xuance_envs.state.fingerprint import Fingerprint, is_space, subspaces
from xuance_envs.state.handlers import handler_of
from xuance_envs.state.layers import (
    WRAPPED_ENV_ATTRIBUTES,
    Layer,
    hides_data,
    keep_access_fast,
    layers_of,
)
from xuance_envs.state.rebuild import NEW_RESOURCES, REFERENCES
from xuance_envs.state.values.canonical import first_difference
from xuance_envs.state.values.constants import Constants, Facts
from xuance_envs.state.values.functions import CodeIndex, is_installed
from xuance_envs.state.values.graph import Attributes, follow, step_text
from xuance_envs.state.values.held_values import (
    FOREIGN,
    Kept,
    Path,
    Walk,
    library_with_state,
    name_of,
    why_not_kept,
)
from xuance_envs.state.values.reducers import memory_owner

PROTOCOL = 5
BEGINS_WITH_PRELUDE = b"P"
"""First byte of a state that has a prelude."""

_SPEC_MODULES = "gymnasium.envs.registration", "gym.envs.registration"
_RECORDERS = "xuance_envs.state."
_CACHED: Any = type(functools.lru_cache(len))
_MAX_BOUNDS = 1 << 12
"""Arrays of spaces up to this size in bytes are checked for changes in place."""


def _prelude(*values: Any) -> tuple[bytes, Any]:
    """Pickle objects that states use, to be read before each state; return bytes and memo."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, PROTOCOL)
    pickler.dump((rebuild.there, rebuild.array, rebuild.seeded_generator, *values))
    return BEGINS_WITH_PRELUDE + file.getvalue(), pickler.memo


@dataclass
class _KeptTable:
    """Types and paths of a plan's kept objects; pickled before all references to them."""

    table: tuple[Any, ...]

    def __reduce__(self) -> Any:
        return rebuild.kept_table, (self.table,)


class StatePlan:
    """Plan for saving and loading one environment; None stands for no environment."""

    def __init__(self, env: Any) -> None:
        self.layers = layers_of(env)
        self.known: dict[int, Path] = {id(layer.obj): (k,) for k, layer in enumerate(self.layers)}
        self.kept: list[Kept] = []
        self.kept_numbers: dict[int, int] = {}
        self.spaces: dict[str, Any] = {}
        self.resources: list[str] = []
        self._kept_resources: list[Kept] = []
        for k, layer in enumerate(self.layers):
            handler = handler_of(type(layer.obj))
            if hides_data(type(layer.obj)):
                reason = "cannot be saved: its class, or a base class, has data besides attributes"
                raise self.fault((k,), layer.obj, reason)
            layer.excluded.update(self._excluded_attributes(k, layer))
            if handler is not None:
                self.kept.append(Kept(layer.obj, handler, [(k,)]))
                layer.saves_itself = True
        self._objects = [layer.obj for layer in self.layers]
        self._kinds = [*map(type, self._objects)]
        self.held = Walk(self.layers, self.known)
        self._keep(self.held.found.values())
        if all(kept.handler in (None, FOREIGN) for kept in self.kept):
            self._check_libraries()
        self.resources += self._caches()
        self.excluded_names = [" ".join(layer.excluded) for layer in self.layers]
        self._slotted_layers = [layer for layer in self.layers if layer.slots]
        self._excluded_in_dicts = [
            (k, *item)
            for k, layer in enumerate(self.layers)
            if not layer.slots
            for item in layer.excluded.items()
        ]
        self._bounds = [
            value.reshape(-1).view(np.uint8).data
            for space in self.spaces.values()
            for value in vars(space).values()
            if isinstance(value, np.ndarray)
            and value.flags.c_contiguous
            and not value.dtype.hasobject
            and value.nbytes <= _MAX_BOUNDS
        ]
        self._known_bounds = b"".join(self._bounds)
        self._attributes = [layer.attributes for layer in self.layers]
        self._located = [kept for kept in self.kept if id(kept.obj) in self.kept_numbers]
        self.handled = [
            (kept.handler, kept.obj, self.layers[kept.paths[0][0]].obj, kept.paths[0])
            for kept in self.kept
            if kept.handler
        ]
        self.foreign_owners = {
            id(owner)
            for handler, array, _, _ in self.handled
            if handler is FOREIGN and type(owner := memory_owner(array)).__name__ != "PyCapsule"
        }
        self.table = tuple((name_of(type(kept.obj)), tuple(kept.paths)) for kept in self.kept)
        self.references = {
            **REFERENCES,
            **{each: (rebuild.there, (path,)) for each, path in self.known.items()},
            **{each: (rebuild.kept, (n,)) for each, n in self.kept_numbers.items()},
        }
        names = [name for layer in self.layers for name, _ in layer.saved_items()]
        self.prelude = _prelude(*([_KeptTable(self.table)] if self.table else []), *names)
        self.attribute_types = [type(None) if la.saves_itself else dict for la in self.layers]
        extra: dict[str, Any] = {"libraries": set()}
        for handler, obj, owner, path in self.handled:
            if handler.describe is not None:
                library, facts = handler.describe(obj, owner)
                extra["libraries"].add(library)
                for name, fact in facts.items():
                    extra[name if name not in extra else f"{name} of {self.text(path)}"] = fact
        if self.layers:
            self.fingerprint = Fingerprint.of(self.layers, extra, self.resources)
        # After the fingerprint: it calls ``repr`` of spaces, which adds attributes to them.
        spaces = self.spaces.values()
        self._known_spaces = [  # with copies of the dicts that hold subspaces
            (own, {name: dict(x) if type(x) is dict else x for name, x in own.items()})
            for own in map(vars, spaces)
        ]
        for obj in (self, *spaces):
            keep_access_fast(obj.__dict__)

    def _excluded_attributes(self, k: int, layer: Layer) -> Iterator[tuple[str, Any]]:
        """Yield the attributes that are never saved; collect the spaces among them."""
        for name, value in layer.items():
            if len(self.known.get(id(value), ())) == 1:  # a layer
                stays = name in WRAPPED_ENV_ATTRIBUTES
            elif is_space(value):
                if id(value) not in self.known:
                    parts = enumerate(subspaces(value))
                    self.spaces.update({f"{k}.{name}.{n}": part for n, part in parts})
                stays = True
            else:
                stays = _is_spec(name, value) or _is_recorder_method(value)
                stays = stays or (name == REQUESTED_ATTRIBUTE and _records_requests(layer))
            if stays:
                self.known.setdefault(id(value), (k, name))
                yield name, value

    def update_index(self) -> None:
        """Update the index of the functions and classes that the environment holds."""
        self.held = Walk(self.layers, self.known)
        self.__dict__.pop("code", None)

    def _keep(self, found: Iterable[Kept]) -> None:
        """Decide how each kept object is found in a target environment."""
        for kept in found:
            if kept.handler is None:
                self.resources.append(f"{self.text(kept.paths[0])}: {type_name(kept.obj)}")
                self._kept_resources.append(kept)
            if [len(path) for path in kept.paths] == [2]:  # only one attribute holds it
                k, name = kept.paths[0]
                self.layers[k].excluded[name] = kept.obj
                self.known[id(kept.obj)] = k, name
                if kept.handler is None:
                    continue
            else:
                self.kept_numbers[id(kept.obj)] = len(self.kept)
            self.kept.append(kept)

    def _check_libraries(self) -> None:
        """Raise a fault if the environment's state is outside of all objects, in a library."""
        for kind in (*self._kinds, *self.held.classes):
            library = library_with_state(kind)
            if library is not None:
                reason = f"cannot be saved: {kind.__qualname__} keeps its state in {library}"
                raise self.fault((0,), self.layers[0].obj, reason)

    def _caches(self) -> list[str]:
        """Return the names of method caches, which all objects of a class share."""
        kinds = [*self._kinds, *self.held.classes]
        own = [b for kind in kinds for b in kind.__mro__ if not is_installed(module_of(b))]
        return [
            f"{kind.__qualname__}.{name}: functools.lru_cache"
            for kind in dict.fromkeys(own)
            for name, value in vars(kind).items()
            if isinstance(value, _CACHED)
        ]

    @property
    def replays(self) -> bool:
        return any(handler.replays for handler, *_ in self.handled)

    def attributes_are_shared(self) -> bool:
        """Return whether other objects may hold the dict of a layer's attributes."""
        return max(map(sys.getrefcount, self._attributes), default=0) > _HOLDERS

    def is_current(self) -> bool:
        """Return whether the spaces are the same and all kept objects are still at their paths."""
        if [*map(type, self._objects)] != self._kinds:
            return False
        try:
            for current, known in self._known_spaces:
                known["_np_random"] = current["_np_random"]
                if current != known:
                    return False
        except ValueError:  # an array was replaced
            return False
        if b"".join(self._bounds) != self._known_bounds:
            return False  # written in place
        layers = self._attributes
        for k, name, value in self._excluded_in_dicts:
            if layers[k].get(name) is not value:
                return False
        for layer in self._slotted_layers:
            attributes = dict(layer.items())
            for name, value in layer.excluded.items():
                if attributes.get(name) is not value:
                    return False
        for kept in self._located:
            for path in kept.paths:
                if self.find(path) is not kept.obj:
                    return False
        return True

    @functools.cached_property
    def code(self) -> CodeIndex:
        """Classes and functions that a state may refer to."""
        return CodeIndex(self.held.functions, [*self._kinds, *self.held.classes])

    def facts(self, used: Iterable[Any]) -> Facts:
        """Return the constants of the layers' classes, and of the classes and functions in use."""
        constants = self._constants
        return constants.facts(used) if used or constants.classes else {}

    @functools.cached_property
    def _constants(self) -> Constants:
        return Constants(self._kinds, self.tokens())

    def find_kept(self, table: tuple[Any, ...]) -> list[Any]:
        """Return this environment's objects that correspond to the objects in a saved table."""
        if table == self.table:
            return [kept.obj for kept in self.kept]
        candidates = {k: self._candidates(name, paths) for k, (name, paths) in enumerate(table)}
        found: list[Any] = [None] * len(table)
        while candidates:
            k = min(candidates, key=lambda k: (len(candidates[k]), k))
            here = candidates.pop(k)
            name, paths = table[k]
            if len(here) == 1:
                (found[k],) = here
                for others in candidates.values():
                    others[:] = [each for each in others if each is not found[k]]
            elif not here and name in NEW_RESOURCES:
                found[k] = NEW_RESOURCES[name]()
            else:
                number = "more than one" if here else "none"
                raise MismatchError(f"attribute {self.text(paths[0])}", f"a {name}", number)
        return found

    def _candidates(self, name: str, paths: Iterable[Path]) -> list[Any]:
        found = {id(value): value for path in paths if (value := self.find(path)) is not None}
        return [value for value in found.values() if name_of(type(value)) == name]

    def fault(self, path: Path, value: Any, reason: str) -> FaultError:
        """Return the fault that a value at a path causes, with a remedy."""
        return FaultError(
            self.text(path),
            f"{type_phrase(value)} {reason}. Define __env_state__ and __set_env_state__ in "
            f"{self.layers[path[0]].name}, or use register_state",
        )

    def check_resources(self) -> None:
        """Raise a fault if a resource is in a condition that results may depend on."""
        for kept in self._kept_resources:
            reason = why_not_kept(kept.obj)
            if reason is not None:
                raise self.fault(kept.paths[0], kept.obj, f"cannot be saved: {reason}")

    def first_difference(
        self, other: StatePlan, ignoring: Iterable[str] = ()
    ) -> tuple[str, str, str] | None:
        """Return the first difference in state from another environment of the same kind."""
        plans = [StatePlan(plan.layers[0].obj) for plan in (self, other)]
        contents = [plan.contents() for plan in plans]
        for content in contents:
            for name in ignoring:
                content.pop(name, None)
        one, another = (plan.tokens() for plan in plans)
        return first_difference(contents[0], contents[1], one, another)

    def tokens(self) -> dict[int, Any]:
        """Return tokens, by id, for objects that comparisons do not decompose."""
        found: dict[int, Any] = {}
        for layer in self.layers:
            values = layer.excluded.values()
            found.update({id(value): ("kept", type_name(value)) for value in values})
        return found | {id(layer.obj): ("layer", k) for k, layer in enumerate(self.layers)}

    def contents(self) -> Attributes:
        """Return all saved values: attributes, states of handled objects, spaces' generators."""
        found = Attributes()
        for layer in self.layers:
            for name, value in sorted(layer.saved_items()):
                found[f"{layer.name}.{name}"] = value
        for handler, obj, owner, path in sorted(self.handled, key=lambda k: self.text(k[3])):
            found[f"the state of {self.text(path)}"] = handler.save(obj, owner)
        for name, space in self.spaces.items():
            found[f"the generator of space {name}, {space}"] = space._np_random
        return found

    def find(self, path: Path) -> Any:
        try:
            return self.resolve(path)
        except (AttributeError, LookupError, TypeError, ValueError):
            return None

    def resolve(self, path: Path) -> Any:
        layer = self.layers[path[0]]
        if len(path) == 1:
            return layer.obj
        _, name, *steps = path
        value = dict(layer.items())[name] if layer.slots else layer.attributes[name]
        for step in steps:
            value = follow(value, step)
        return value

    def text(self, path: Path) -> str:
        """Return the text of a path for error messages, such as ``Wrapper.attribute['key']``."""
        name = self.layers[path[0]].name
        attribute = f".{path[1]}" if len(path) > 1 else ""
        return f"{name}{attribute}{''.join(map(step_text, path[2:]))}"


_SAMPLE = Layer(threading.Event())
_HOLDERS = max(map(sys.getrefcount, [_SAMPLE.attributes]))
"""Reference count of the dict of a layer's attributes if no other object holds it."""


def _is_spec(name: str, value: Any) -> bool:
    return name in ("spec", "_cached_spec") and type(value).__module__ in _SPEC_MODULES


def _records_requests(layer: Layer) -> bool:
    """Return whether a layer is an Atari environment of this package or of ale-py."""
    return any(class_name(type(layer.get(name))) == ALE_CLASS for name in ("ale", "_ale"))


def _is_recorder_method(value: Any) -> bool:
    """Return whether a value is a recorder's replacement for a method of the environment."""
    owner = value.__self__ if type(value) is types.MethodType else None
    return type(owner).__module__.startswith(_RECORDERS)
