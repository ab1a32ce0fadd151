"""The graph of values that an environment holds.

Comparisons, error messages and the search for kept objects decompose values with :func:`node`.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import importlib
import pathlib
import re
import types
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from xuance_envs.state import rebuild
from xuance_envs.state.values.attributes import hidden_attributes, overrides_pickling
from xuance_envs.state.values.functions import cell_content, code_digest, full_name, named_in_module
from xuance_envs.state.values.reducers import NEW_OBJECT, reduction
from xuance_envs.state.values.seeds import LazySeedSequence, seed_parameters_of
from xuance_envs.state.values.tensors import is_tensor

Step = Any
"""Part of a path: a key of a container, or a tuple (kind, name)."""

ATOMIC = frozenset(
    {
        *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented)),
        *(range, slice, types.CodeType, np.dtype, re.Pattern, uuid.UUID),
        *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
        *(decimal.Decimal, fractions.Fraction, pathlib.PosixPath, pathlib.PurePosixPath),
        *(set(np.sctypeDict.values()) - {np.object_, np.void}),
    }
)
"""Types of values that hold no others."""

_IN_PATHS = ATOMIC - {types.CodeType}  # which cannot be pickled
_OF_MEMBERS = {"_name_", "_value_", "__objclass__", "_sort_order_", "_inverted_", "_boundary_"}
_BITS = "attr", "bit_generator"
EMPTY_CELL: Any = type("EmptyCell", (), {"__reduce__": lambda self: "EMPTY_CELL"})()


class Node(NamedTuple):
    """Decomposition of a value: its own data, and its parts with the steps that lead to them."""

    head: Any
    parts: Iterable[tuple[Step | None, Any]] = ()
    is_shared: bool = True
    """True if all references to this value must stay references to a single object."""
    is_ordered: bool = True
    """False if the order of the parts depends on the process."""


def node(value: Any) -> Node:
    """Decompose a value; exceptions that its class raises during pickling propagate."""
    kind: Any = type(value)
    if kind in ATOMIC:
        return Node(_atom(value), (), is_shared=False)
    found = _KINDS.get(kind)
    if found is not None:
        return found(value)
    if isinstance(value, type):
        return Node(("class", full_name(value)), (), is_shared=False)
    if isinstance(value, np.ndarray):
        return _array(value)
    if is_tensor(value):
        return _tensor(value)
    return _member(value) if isinstance(value, enum.Enum) else _object(value)


def parts_of(value: Any) -> Iterable[tuple[Step | None, Any]]:
    """Return a value's parts; none if all elements are atomic or it cannot be decomposed."""
    kind: Any = type(value)
    if isinstance(value, np.ndarray):
        return array_parts(value)
    if kind is dict and is_atomic_sequence(value.values()) and is_atomic_sequence(value):
        return ()
    if kind in (list, tuple, deque) and is_atomic_sequence(value):
        return ()
    try:
        parts = node(value).parts
    except Exception:
        return ()
    if not overrides_pickling(kind):
        return parts
    return [*parts, *((("attr", name), item) for name, item in hidden_attributes(value).items())]


def _atom(value: Any) -> Any:
    if isinstance(value, np.generic):
        return type(value).__name__, value.dtype.str, value.tobytes()
    if isinstance(value, float):
        return "float", value.hex()
    if isinstance(value, complex):
        return "complex", value.real.hex(), value.imag.hex()
    if isinstance(value, types.CodeType):
        return "code", code_digest(value)
    return type(value).__name__, value if type(value) in (int, str, bytes, bool) else repr(value)


def _dict(value: dict[Any, Any]) -> Node:
    keys = [(None, key) for key in value if type(key) not in ATOMIC]
    head = type(value).__name__, [_atom(key) if type(key) in ATOMIC else None for key in value]
    return Node(head, keys + [(_key_step(key), item) for key, item in value.items()])


def _key_step(key: Any) -> Step | None:
    if type(key) is tuple:
        return ("key", key) if _IN_PATHS.issuperset(map(type, key)) else None
    return key if type(key) in _IN_PATHS else None


def _sequence(value: Any) -> Node:
    head = type(value).__name__, len(value), getattr(value, "maxlen", None)
    return Node(head, enumerate(value), is_shared=type(value) is not tuple)


def _set(value: Any) -> Node:
    parts = [(None, item) for item in value]
    return Node((type(value).__name__, len(value)), parts, type(value) is set, is_ordered=False)


class Attributes(dict[str, Any]):
    """Values by the text of their path."""


def _function(value: types.FunctionType) -> Node:
    if named_in_module(value):
        return Node(("function", full_name(value), code_digest(value.__code__)), (), False)
    cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    parts = [(("cell", name), cell) for name, cell in cells]
    head = "function", code_digest(value.__code__)
    return Node(head, [*parts, *function_parts(value)], is_shared=bool(parts))


def function_parts(value: types.FunctionType) -> list[tuple[Step, Any]]:
    return [
        *((("default", k), item) for k, item in enumerate(value.__defaults__ or ())),
        *((("keyword default", k), v) for k, v in (value.__kwdefaults__ or {}).items()),
        *((("attr", k), v) for k, v in vars(value).items()),
    ]


def _method(value: Any) -> Node:
    return Node(("method", value.__name__), ((("self", ""), value.__self__),), is_shared=False)


def _builtin(value: Any) -> Node:
    if isinstance(value.__self__, (types.NoneType, types.ModuleType, type)):
        return Node(("function", full_name(value)), (), is_shared=False)
    return _method(value)


def _partial(value: Any) -> Node:
    names = "func", "args", "keywords", *vars(value)
    return Node((type(value).__name__,), [(("attr", name), getattr(value, name)) for name in names])


def _member(value: Any) -> Node:
    kind = type(value)
    parts = [
        (("attr", name), item)
        for name, item in vars(value).items()
        if name not in _OF_MEMBERS and not isinstance(vars(kind).get(name), cached_property)
    ]
    head = "member", full_name(kind), value.name
    return Node(head, [(("attr", "value"), value.value), *parts], is_shared=False)


def _cell(value: Any) -> Node:
    content = cell_content(value, EMPTY_CELL)
    if content is EMPTY_CELL:
        return Node(("empty cell",))
    return Node(("cell",), ((("attr", "cell_contents"), content),))


def _bit_generator(value: Any) -> Node:
    parts = [(("attr", "state"), value.state), (("attr", "seed_seq"), value.seed_seq)]
    return Node(("bit generator", type(value).__name__), parts)


def _array(value: Any) -> Node:
    content: Any = None
    if not value.dtype.hasobject:
        content = hashlib.blake2b(value.tobytes(), digest_size=16).digest()
    head = "array", full_name(type(value)), str(value.dtype), value.shape, content
    return Node(head, array_parts(value))


def _tensor(value: Any) -> Node:
    dense = value.detach().cpu().resolve_conj().resolve_neg().contiguous().view(-1)
    content = dense.view(importlib.import_module("torch").uint8).numpy().tobytes()
    head = full_name(type(value)), str(value.dtype), tuple(value.shape), value.stride()
    parts = [(("attr", name), item) for name, item in vars(value).items()]
    grad = value.grad if value.is_leaf or value.retains_grad else None  # else reading it warns
    return Node((*head, value.requires_grad, content), [(("attr", "grad"), grad), *parts])


def array_parts(value: Any) -> list[tuple[Step | None, Any]]:
    """Return an array's attributes and, if its dtype contains objects, its elements."""
    attributes = getattr(value, "__dict__", {})
    parts: list[tuple[Step | None, Any]] = [(("attr", k), v) for k, v in attributes.items()]
    if value.dtype.hasobject:
        plain = value.view(np.ndarray)
        parts += [(("element", k), item) for k, item in enumerate(plain.ravel().tolist())]
    return parts


def _object(value: Any) -> Node:
    reduced: Any = reduction(value)
    if isinstance(reduced, str):
        return Node(("global", full_name(type(value)), reduced), (), is_shared=False)
    make, arguments, state, items, pairs = [*reduced, None, None, None][:5]
    if make is NEW_OBJECT:
        head: Any = ("object", full_name(arguments[0]))
        arguments = arguments[1:]
    else:
        head = ("object", full_name(type(value)), full_name(make))
    parts: list[tuple[Step | None, Any]] = [(None, e) for e in arguments if e is not value]
    states = state if type(state) is tuple and len(state) == 2 else (state,)
    if all(each is None or type(each) is dict for each in states):
        named = {name: each for part in states for name, each in (part or {}).items()}
        head = (*head, sorted(map(str, named)))
        parts += [(("attr", name), named[name]) for name in sorted(named, key=str)]
    elif state is not None:
        parts.append((None, state))
    parts += enumerate(items or ())
    for key, item in pairs or ():
        parts += [(None, key), (_key_step(key), item)]
    return Node(head, parts)


_KINDS: dict[Any, Callable[[Any], Node]] = {
    Attributes: lambda v: Node("attributes", [(("name", k), item) for k, item in v.items()]),
    **dict.fromkeys((dict, OrderedDict), _dict),
    **dict.fromkeys((list, tuple, deque), _sequence),
    **dict.fromkeys((set, frozenset), _set),
    np.ndarray: _array,
    np.random.Generator: lambda v: Node("Generator", [(_BITS, v.bit_generator)]),
    **{getattr(np.random, name): _bit_generator for name in rebuild.BIT_GENERATORS},
    **dict.fromkeys(
        (np.random.SeedSequence, LazySeedSequence),
        lambda value: Node("SeedSequence", [(None, seed_parameters_of(value))]),
    ),
    types.FunctionType: _function,
    types.MethodType: _method,
    types.BuiltinFunctionType: _builtin,
    types.CellType: _cell,
    types.ModuleType: lambda value: Node(("module", value.__name__), (), is_shared=False),
    functools.partial: _partial,
}


def is_atomic_sequence(values: Any) -> bool:
    """Return whether all elements of an iterable are atomic: values without parts."""
    return ATOMIC.issuperset(map(type, values))


def follow(value: Any, step: Step) -> Any:
    """Return the part of a value that a step leads to."""
    if type(step) is not tuple:
        return value[step]
    kind, name = step
    if kind == "key":
        return value[name]
    if kind == "attr":
        attributes = getattr(value, "__dict__", None) or {}
        return attributes[name] if name in attributes else object.__getattribute__(value, name)
    if kind == "element":
        return value.flat[name]
    if kind == "cell":
        return value.__closure__[value.__code__.co_freevars.index(name)]
    if kind == "default":
        return value.__defaults__[name]
    if kind == "keyword default":
        return value.__kwdefaults__[name]
    return value.__self__


def step_text(step: Step | None) -> str:
    """Return a step in Python's notation, if it has one."""
    if step is None:
        return ".<inside>"
    if type(step) is not tuple:
        return f"[{step!r}]"
    kind, name = step
    if kind == "key":
        return f"[{name!r}]"
    if kind == "name":
        return str(name)
    if kind == "attr":
        return "" if name == "cell_contents" else f".{name}"
    if kind == "self":
        return ".__self__"
    return f".<{kind} {name}>"
