"""Reductions of values to calls of the functions in :mod:`~xuance_envs.state.rebuild`."""

from __future__ import annotations

import array
import copyreg
import ctypes
import functools
import gc
import logging
import operator
import random
import sys
import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.state import rebuild
from xuance_envs.state.faults import FaultError, class_name, type_phrase
from xuance_envs.state.layers import slot_items, slots_of
from xuance_envs.state.values import tensors
from xuance_envs.state.values.attributes import attributes_of, overrides_pickling
from xuance_envs.state.values.functions import is_installed
from xuance_envs.state.values.seeds import LazySeedSequence, seed_parameters_of

_STRIDED: Any = type(np.lib.stride_tricks.as_strided(np.zeros(1)).base)
NEW_OBJECT: Any = object().__reduce_ex__(2)[0]  # copyreg.__newobj__


def reduction(value: Any) -> Any:
    """Return how a value is saved: a reduction as in :mod:`pickle`, or the name of a global."""
    kind: Any = type(value)
    reduce = REDUCERS.get(kind) or inherited_reducer(kind)
    if reduce is not None and (reduced := reduce(value)) is not NotImplemented:
        return reduced
    reduce = copyreg.dispatch_table.get(kind)
    return value.__reduce_ex__(4) if reduce is None else reduce(value)


@functools.cache
def inherited_reducer(kind: Any) -> Any:
    """Return the reducer of a class that ``REDUCERS`` does not list, or None."""
    if issubclass(kind, random.Random):
        return _reduce_random_subclass
    if issubclass(kind, np.ndarray):
        return _reduce_array_subclass
    if issubclass(kind, np.void):
        return _reduce_structured_scalar
    if issubclass(kind, (np.random.Generator, np.random.RandomState, np.random.BitGenerator)):
        return _refuse_subclass
    if issubclass(kind, np.generic) and not is_installed(kind.__module__):
        return _refuse_subclass
    if issubclass(kind, _C_DATA):
        return _reduce_c_data
    if issubclass(kind, BaseException) and not overrides_pickling(kind):
        return _reduce_exception
    pickles = getattr(kind, "__getstate__", None)
    if getattr(pickles, "__qualname__", "") == "EzPickle.__getstate__":  # it saves only arguments
        return _reduce_ez_pickle
    return BY_NAME.get(class_name(kind))


CONTAINERS: Any = OrderedDict, dict, list, deque, set


def is_own_container(kind: Any) -> bool:
    """Return whether a class outside libraries derives from a container."""
    return issubclass(kind, CONTAINERS) and not is_installed(kind.__module__)


def reduce_container(value: Any) -> Any:
    """Reduce a container without calling its class's methods, which may convert elements."""
    kind: Any = next(kind for kind in CONTAINERS if isinstance(value, kind))
    elements = list(kind.items(value) if issubclass(kind, dict) else kind.__iter__(value))
    option = value.default_factory if isinstance(value, defaultdict) else None
    option = value.maxlen if kind is deque else option
    content = elements, option, attributes_of(value)
    arguments = type(value), *getattr(value, "__getnewargs__", tuple)()
    return NEW_OBJECT, arguments, content, None, None, rebuild.with_contained


def reduce_with_dict(value: Any) -> Any:
    """Reduce an object whose ``__dict__`` other values hold, or that is its own ``__dict__``."""
    reduced = reduction(value)
    make, arguments, state, items, pairs = [*reduced, None, None, None][:5]
    attributes = value.__dict__
    try:
        if make is not NEW_OBJECT or hasattr(value, "__setstate__"):
            raise TypeError
        if not (state is attributes or (type(state) is tuple and state[0] is attributes)):
            raise TypeError
        value.__dict__ = attributes
    except (AttributeError, TypeError):
        raise FaultError("", f"another value holds the __dict__ of {type_phrase(value)}") from None
    return make, arguments, state, items, pairs, rebuild.with_dict


# -- arrays ------------------------------------------------------------------------------

_C_DATA: Any = ctypes.c_int.__mro__[-2]
BUFFERS: Any = np.ndarray, bytearray, array.array, ctypes.Array, ctypes.Structure
"""Types of objects that own memory; their views are rebuilt in that memory."""


def memory_owner(value: Any) -> Any:
    while True:
        if isinstance(value, np.ndarray):
            if value.base is None:
                return value
            value = value.base
        elif isinstance(value, memoryview) and value.obj is not None:
            value = value.obj
        elif type(value) is _STRIDED:
            value = value.base
        else:
            return value


def has_foreign_memory(value: Any) -> bool:
    """Return whether an array lies in another library's memory, where it must stay."""
    if value.base is None or (type(value.base) is np.ndarray and value.base.base is None):
        return False
    owner = memory_owner(value)
    return not (isinstance(owner, (bytes, *BUFFERS)) or tensors.is_tensor(owner))


def _reduce_array(value: NDArray[Any]) -> Any:
    dtype, base, flags = value.dtype, value.base, value.flags
    if base is None and flags.c_contiguous and dtype.kind not in "OVT" and not dtype.metadata:
        return rebuild.array, (value.tobytes(), dtype.str, value.shape, 2 * (not flags.writeable))
    if base is not None and value.size:
        owner = memory_owner(value)
        if tensors.is_tensor(owner):
            return _reduce_view(value, tensors.tensor_storage(owner))
        if isinstance(owner, BUFFERS):
            return _reduce_view(value, owner)
    if dtype.kind == "O":
        own = value if base is None else value.copy()
        content = rebuild.memory(own).tolist(), flags.writeable
        shape = own.shape, own.strides
        return rebuild.object_array, shape, content, None, None, rebuild.with_elements
    if dtype.hasobject or dtype.kind == "T":
        return NotImplemented
    is_simple = dtype.kind != "V" and not dtype.metadata
    return rebuild.dense_array, _dense(value, dtype.str if is_simple else dtype)


def _dense(value: Any, dtype: Any) -> tuple[Any, ...]:
    plain = value.view(np.ndarray)
    if value.base is not None:
        plain = plain.copy("A")
    content = rebuild.memory(plain).tobytes()
    return content, dtype, value.shape, plain.strides, value.flags.writeable


def _reduce_view(value: NDArray[Any], owner: Any) -> Any:
    dtype: Any = value.dtype
    memory = rebuild.memory(owner)
    has_objects = dtype.hasobject or memory.dtype.hasobject
    if has_objects and not dtype.kind == memory.dtype.kind == "O":
        raise FaultError("", "a view of an array whose items hold both objects and other values")
    writeable = value.flags.writeable
    if writeable and not memory.flags.writeable:
        raise FaultError("", "a writable view of a read-only array")
    offset = rebuild.address_of(value) - rebuild.address_of(memory)
    extents = [(n - 1) * stride for n, stride in zip(value.shape, value.strides, strict=True)]
    low = offset + sum(min(0, extent) for extent in extents)
    high = offset + sum(max(0, extent) for extent in extents) + value.itemsize
    if low < 0 or high > memory.nbytes:
        raise FaultError("", f"a view that extends beyond the memory of {type_phrase(owner)}")
    simple = dtype.kind not in "OV" and not dtype.metadata
    how = offset, value.shape, value.strides, dtype.str if simple else dtype, writeable
    return rebuild.shared_view, (owner, *how)


def _reduce_array_subclass(value: Any) -> Any:
    if value.dtype.hasobject and value.dtype.kind != "O":
        return NotImplemented
    attributes = dict(getattr(value, "__dict__", None) or {})
    attributes |= {name: getattr(value, name) for name in slots_of(type(value))}
    if value.base is None and not value.dtype.hasobject:
        made: Any = rebuild.dense_subclass, (type(value), *_dense(value, value.dtype))
    else:
        made = rebuild.array_subclass, (value.view(np.ndarray), type(value))
    if not attributes:
        return made
    return *made, attributes, None, None, rebuild.with_attributes


def _reduce_structured_scalar(value: Any) -> Any:
    if value.base is None or value.dtype.hasobject:
        return NotImplemented
    memory = rebuild.memory(memory_owner(value.base))
    scalar = np.frombuffer(memoryview(value), np.uint8)
    offset = rebuild.address_of(scalar) - rebuild.address_of(memory)
    return rebuild.shared_scalar, (np.ndarray((), value.dtype, memory, offset),)


def _reduce_c_data(value: Any) -> Any:
    if value._b_base_ is not None or value._objects:
        raise FaultError("", "it contains pointers or uses the memory of another object")
    return NotImplemented


def _reduce_memoryview(value: memoryview) -> Any:
    owner: Any = value.obj
    whole = None if owner is None else memoryview(owner)
    if whole is None or (whole.format, whole.shape) != (value.format, value.shape):
        return NotImplemented
    return rebuild.whole_memory, (owner, value.readonly)


# -- generators of random numbers ---------------------------------------------------------


def _reduce_generator(value: np.random.Generator) -> Any:
    bits = value.bit_generator
    if sys.getrefcount(bits) == _GENERATOR_ONLY and type(bits) in REDUCERS:
        return rebuild.seeded_generator, _seeded(bits)
    return rebuild.generator, (bits,)


def _seeded(bits: Any) -> tuple[str, dict[str, Any], Any]:
    """Return kind, state and seed; a seed that nothing else holds is reduced to its parameters."""
    seed = bits.seed_seq
    if seed is not None and sys.getrefcount(seed) == _BIT_GENERATOR_ONLY:
        seed = seed_parameters_of(seed) or seed
    return type(bits).__name__, bits.state, seed


def _references(owner: Any, name: str) -> int:
    value = getattr(owner, name)
    return sys.getrefcount(value)


_BIT_GENERATOR_ONLY = _references(np.random.PCG64(0), "seed_seq")
_GENERATOR_ONLY = _references(np.random.default_rng(0), "bit_generator")


def _reduce_random_state(value: np.random.RandomState) -> Any:
    state: dict[str, Any] = value.get_state(legacy=False)
    return rebuild.random_state_on, (value._bit_generator, state["has_gauss"], state["gauss"])


def _reduce_random(value: random.Random) -> Any:
    if len(vars(value)) > 1:  # besides gauss_next, which is part of the state
        return _reduce_random_subclass(value)
    return rebuild.python_random, (value.getstate(),)


def _reduce_random_subclass(value: random.Random) -> Any:
    state = random.Random.getstate(value), attributes_of(value)
    return NEW_OBJECT, (type(value),), state, None, None, rebuild.with_random


def _refuse_subclass(value: Any) -> Any:
    raise FaultError("", f"NumPy's pickles do not record subclasses of {type(value).__base__}")


# -- functions ---------------------------------------------------------------------------


def _reduce_partial(value: Any) -> Any:
    content = value.args, value.keywords, vars(value) or None
    return rebuild.partial, (value.func,), content, None, None, rebuild.with_arguments


def _reduce_method(value: types.MethodType) -> Any:
    owner: Any = value.__self__
    function, kind = value.__func__, type(owner)
    name = getattr(function, "__name__", "")
    if isinstance(owner, type):
        if getattr(owner, name, None) == value:
            return rebuild.method, (owner, name)
    elif getattr(kind, name, None) is function and name not in getattr(owner, "__dict__", ()):
        return rebuild.method, (owner, name)
    for each in owner.__mro__ if isinstance(owner, type) else kind.__mro__:
        for name, found in each.__dict__.items():
            if found is function or getattr(found, "__func__", None) is function:
                return rebuild.method_of, (owner, each, name)
    return rebuild.bound, (function, owner)


def _reduce_logger(value: logging.Logger) -> Any:
    if logging.getLogger(value.name) is not value:
        return NotImplemented
    return rebuild.logger, (value.name,)


# -- other objects -----------------------------------------------------------------------


def _reduce_dict_iterator(value: Any) -> Any:
    owners = [each for each in gc.get_referents(value) if isinstance(each, dict)]
    left = operator.length_hint(value)
    if not left:  # at its end
        return NotImplemented
    try:
        (rest,) = value.__reduce__()[1]
    except RuntimeError:
        rest = ()
    if len(rest) != left:  # its position no longer follows from the number of items left
        raise FaultError("", "keys were both deleted from and added to the iterated dict")
    return rebuild.dict_iterator, (owners[0], *_DICT_ITERATORS[type(value)], left)


_DICT_ITERATORS: dict[Any, tuple[str, bool]] = {
    type(make(getattr({}, name)())): (name, make is reversed)
    for make in (iter, reversed)
    for name in ("keys", "values", "items")
}


def _reduce_exception(value: BaseException) -> Any:
    kind: Any = type(value)
    make, arguments, state = [*value.__reduce_ex__(4), None][:3]
    if isinstance(kind.__init__, types.FunctionType):  # it may need other arguments
        make, arguments = NEW_OBJECT, (kind, *value.args)
    links = value.__cause__, value.__context__, value.__suppress_context__
    attributes = {**(state or {}), **dict(slot_items(value, slots_of(kind)))}
    return make, arguments, (attributes, links), None, None, rebuild.with_links


def _reduce_ez_pickle(value: Any) -> Any:
    return NEW_OBJECT, (type(value),), attributes_of(value), None, None, rebuild.with_attributes


def _reduce_surface(value: Any) -> Any:
    if value.get_locked():
        raise FaultError("", "a locked surface, such as one with a pixel array")
    parent = value.get_parent()
    if parent is not None:
        return rebuild.subsurface, (parent, value.get_offset(), value.get_size())
    masks = value.get_masks()
    palette = [tuple(color) for color in value.get_palette()] if value.get_bitsize() <= 8 else None
    how = palette, value.get_colorkey(), value.get_alpha(), tuple(value.get_clip())
    flags, content = value.get_flags() & _ALPHA_PER_PIXEL, value.get_buffer().raw
    return rebuild.surface, (value.get_size(), flags, value.get_bitsize(), masks, content, how)


_ALPHA_PER_PIXEL = 0x00010000  # pygame.SRCALPHA


def _reduce_mask(value: Any) -> Any:
    colors = {"setcolor": (255, 255, 255, 255), "unsetcolor": (0, 0, 0, 0)}
    return rebuild.mask, (value.to_surface(**colors),)


_BIT_GENERATORS = [getattr(np.random, name) for name in rebuild.BIT_GENERATORS]
_SEEDS = np.random.SeedSequence, LazySeedSequence
_SCALARS = set(np.sctypeDict.values()) - {np.object_, np.void, np.str_, np.bytes_}

REDUCERS: dict[type, Any] = {
    np.ndarray: _reduce_array,
    np.random.Generator: _reduce_generator,
    np.random.RandomState: _reduce_random_state,
    random.Random: _reduce_random,
    **dict.fromkeys(_BIT_GENERATORS, lambda value: (rebuild.bit_generator, _seeded(value))),
    **dict.fromkeys(_SEEDS, lambda value: (rebuild.seed_sequence, seed_parameters_of(value))),
    **dict.fromkeys(_SCALARS, lambda value: (rebuild.scalar, (value.tobytes(), value.dtype.str))),
    functools.partial: _reduce_partial,
    types.MethodType: _reduce_method,
    **dict.fromkeys((logging.Logger, logging.RootLogger), _reduce_logger),
    memoryview: _reduce_memoryview,
    **dict.fromkeys(_DICT_ITERATORS, _reduce_dict_iterator),
}
"""Reducers by exact type."""

BY_NAME: dict[str, Any] = {
    "torch.Tensor": tensors.reduce_tensor,
    "torch.nn.parameter.Parameter": tensors.reduce_tensor,
    "torch._C.Generator": tensors.reduce_generator,
    "pygame.surface.Surface": _reduce_surface,
    "pygame.mask.Mask": _reduce_mask,
    "pygame.event.Event": lambda value: (rebuild.event, (value.type, value.dict)),
}
"""Reducers by class name, for classes of optional libraries."""
