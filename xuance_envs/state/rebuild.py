"""Functions that reading a saved state may call.

A saved state consists of plain data and calls of these functions. Reading an untrusted state calls
only these functions and safe classes. States refer to the functions by name, so the names must not
change.
"""

from __future__ import annotations

import importlib
import logging
import random
import threading
import types
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.state.faults import FaultError
from xuance_envs.state.values.seeds import UNSEEDED, LazySeedSequence

NEW_RESOURCES: dict[str, Any] = {
    "_thread.lock": threading.Lock,
    "_thread.RLock": threading.RLock,
    "pygame.time.Clock": lambda: _pygame().time.Clock(),
}
"""By class name, factories of resources that are created if the target lacks them."""


TARGET_FUNCTIONS: list[str] = []
"""Names of the functions that :class:`~xuance_envs.state.unpickling.Target` defines."""


def _of_target(name: str) -> Any:
    """Return a placeholder for a method of `Target`; states refer to it by name."""

    def placeholder(*_: Any) -> Any:
        raise TypeError(f"{name} works only while a state is loaded into an environment")

    placeholder.__name__ = placeholder.__qualname__ = name
    TARGET_FUNCTIONS.append(name)
    return placeholder


there = _of_target("there")
function = _of_target("function")
native = _of_target("native")
kept_table = _of_target("kept_table")
kept = _of_target("kept")
class_named = _of_target("class_named")
function_named = _of_target("function_named")
function_with_code = _of_target("function_with_code")
with_content = _of_target("with_content")
module_named = _of_target("module_named")
method = _of_target("method")
method_of = _of_target("method_of")
bound = _of_target("bound")
partial = _of_target("partial")
with_arguments = _of_target("with_arguments")
variable = _of_target("variable")
with_links = _of_target("with_links")
with_dict = _of_target("with_dict")
with_attributes = _of_target("with_attributes")
with_all_attributes = _of_target("with_all_attributes")
with_contained = _of_target("with_contained")
with_random = _of_target("with_random")


def cell() -> Any:
    return types.CellType()


def same(value: Any) -> Any:
    """Return the given closure cell, which an object other than a function holds."""
    return value


def with_cell_content(made: Any, content: Any) -> None:
    made.cell_contents = content


def logger(name: str) -> Any:
    return logging.getLogger(name)


def new_resource(name: str) -> Any:
    return NEW_RESOURCES[name]()


def dict_iterator(owner: dict[Any, Any], name: str, is_reversed: bool, left: int) -> Any:
    """Return an iterator over a dict's keys, values or items, of which ``left`` remain."""
    view: Any = {"keys": owner.keys, "values": owner.values, "items": owner.items}[name]()
    made = reversed(view) if is_reversed else iter(view)
    for _ in range(len(owner) - left):
        next(made)
    return made


def array(data: bytes, dtype: str, shape: tuple[int, ...], form: int) -> NDArray[Any]:
    """Return a new array; ``form`` is 1 for Fortran order, plus 2 for read-only."""
    order: Any = "F" if form & 1 else "C"
    made = np.frombuffer(data, dtype)
    if made.shape != shape:
        made = made.reshape(shape, order=order)
    made = made.copy(order=order)
    if form & 2:
        made.flags.writeable = False
    return made


def view(
    base: NDArray[Any], offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str
) -> NDArray[Any]:
    return np.ndarray(shape, dtype, base, offset, strides)


def dense_array(
    content: bytes, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], writeable: bool
) -> NDArray[Any]:
    """Return an array that owns its memory, with this content in the order of the memory."""
    made = _empty(shape, strides, dtype)
    memory(made)[...] = np.frombuffer(content, dtype)
    made.flags.writeable = writeable
    return made


def object_array(shape: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[Any]:
    """Return an array of objects, all None."""
    return _empty(shape, strides, object)


def with_elements(made: NDArray[Any], content: tuple[list[Any], bool]) -> None:
    """Set the elements of an array of objects, in the order of its memory."""
    flat = memory(made)
    for k, element in enumerate(content[0]):
        flat[k] = element
    made.flags.writeable = content[1]


def _empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    made = np.empty(shape, dtype)
    if made.strides != strides:
        axes = _axes_by_stride(strides)
        made = np.empty([shape[axis] for axis in axes], dtype).transpose(np.argsort(axes))
        made = made.copy(order="K")
    return made


def memory(owner: Any) -> NDArray[Any]:
    """Return a flat view of all elements of an array or buffer, in the order of its memory."""
    if not isinstance(owner, np.ndarray):
        tensor = getattr(owner, "detach", None)
        owner = np.frombuffer(owner, np.uint8) if tensor is None else tensor().numpy()
    flat = owner.view(np.ndarray).transpose(_axes_by_stride(owner.strides))
    if not flat.flags.c_contiguous:
        raise FaultError("", f"cannot save a view of memory with the strides {owner.strides}")
    found: NDArray[Any] = flat.reshape(-1)
    return found


def extent(owner: Any) -> tuple[int, int]:
    flat = memory(owner)
    start = address_of(flat)
    return start, start + flat.nbytes


def address_of(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _axes_by_stride(strides: tuple[int, ...]) -> list[int]:
    return sorted(range(len(strides)), key=lambda axis: -strides[axis])


def shared_view(
    owner: Any,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: Any,
    writeable: bool,
) -> NDArray[Any]:
    """Return an array in the memory of another array, buffer or tensor."""
    flat = memory(owner)
    if flat.dtype.hasobject:
        first = flat[offset // flat.itemsize :][:1]
        made = np.lib.stride_tricks.as_strided(first, shape, strides)
    else:
        made = np.ndarray(shape, dtype, flat, offset, strides)
    if not writeable:
        made.flags.writeable = False
    return made


def shared_scalar(view: NDArray[Any]) -> Any:
    """Return a structured scalar in the memory of an array."""
    return view[()]


def dense_subclass(kind: Any, *how: Any) -> Any:
    """Return an instance of an array subclass; see :func:`dense_array`."""
    return dense_array(*how).view(kind)


def whole_memory(owner: Any, readonly: bool) -> memoryview:
    """Return a memoryview of all of an object's memory."""
    made = memoryview(owner)
    return made.toreadonly() if readonly else made


def storage(content: bytes) -> Any:
    """Return memory for tensors, as a tensor of bytes."""
    made = np.frombuffer(content, np.uint8).copy()
    return importlib.import_module("torch").from_numpy(made)


def tensor(
    memory: Any, dtype: str, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Any:
    """Return a tensor that uses the memory from :func:`storage`."""
    torch = importlib.import_module("torch")
    made = torch.empty(0, dtype=getattr(torch, dtype.removeprefix("torch.")), device="cpu")
    return made.set_(memory.untyped_storage(), offset, shape, strides)


def parameter(*how: Any) -> Any:
    """Return a tensor as a parameter; see :func:`tensor`."""
    return importlib.import_module("torch").nn.Parameter(tensor(*how), requires_grad=False)


def torch_generator(device: str, state: bytes) -> Any:
    torch = importlib.import_module("torch")
    made = torch.Generator(device)
    made.set_state(torch.from_numpy(np.frombuffer(state, np.uint8).copy()))
    return made


def with_gradient(made: Any, content: tuple[bool, Any]) -> None:
    made.requires_grad, made.grad = content


def array_storage(owner: Any, offset: int, size: int) -> Any:
    """Return a part of an array's or buffer's memory for tensors, as a tensor of bytes."""
    part = memory(owner).view(np.uint8)[offset : offset + size]
    return importlib.import_module("torch").from_numpy(part)


def array_subclass(plain: NDArray[Any], kind: Any) -> Any:
    return plain.view(kind)


def scalar(data: bytes, dtype: str) -> Any:
    return np.frombuffer(data, dtype)[0]


# NumPy 2 can set the seed of an existing bit generator.
_NUMPY_2 = np.lib.NumpyVersion(np.__version__) >= "2.0.0"
BIT_GENERATORS = {"MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"}


def bit_generator(kind: str, state: dict[str, Any], seed: Any) -> Any:
    """Return a bit generator in a given state; ``seed`` may be a seed sequence's parameters."""
    if kind not in BIT_GENERATORS:
        raise ValueError(f"expected a bit generator of NumPy, got {kind!r}")
    seed = LazySeedSequence(seed) if type(seed) is tuple else seed
    if _NUMPY_2:
        made = getattr(np.random, kind)(UNSEEDED)
        made.__setstate__((state, seed))
    elif seed is not None:
        made = getattr(np.random, kind)(seed)
        made.state = state
    else:
        made = np.random.RandomState(0)._bit_generator  # MT19937, the only kind without a seed
        made.state = state
    return made


def seeded_generator(kind: str, state: dict[str, Any], seed: Any) -> np.random.Generator:
    """Return a generator with a bit generator of its own."""
    return np.random.Generator(bit_generator(kind, state, seed))


def seed_sequence(*parameters: Any) -> np.random.SeedSequence:
    """Return a seed sequence that is not part of a bit generator."""
    return LazySeedSequence(parameters).made


def generator(bits: Any) -> np.random.Generator:
    return np.random.Generator(bits)


def random_state(state: dict[str, Any]) -> Any:
    """Return a legacy NumPy generator with a bit generator of its own."""
    made = np.random.RandomState(0)
    made.set_state(state)
    return made


def random_state_on(bits: Any, has_gauss: int, gauss: float) -> Any:
    """Return a legacy NumPy generator with this bit generator."""
    made = np.random.RandomState(bits)
    made.set_state({**bits.state, "has_gauss": has_gauss, "gauss": gauss})
    return made


def python_random(state: tuple[Any, ...]) -> Any:
    made = random.Random()
    made.setstate(state)
    return made


def surface(
    size: tuple[int, int], flags: int, depth: int, masks: tuple[int, ...], content: bytes, how: Any
) -> Any:
    made = _pygame().Surface(size, flags, depth, masks)
    palette, colorkey, alpha, clip = how
    if palette is not None:
        made.set_palette(palette)
    made.get_buffer().write(content)
    made.set_colorkey(colorkey)
    if alpha is not None:
        made.set_alpha(alpha)
    made.set_clip(clip)
    return made


def subsurface(parent: Any, place: tuple[int, int], size: tuple[int, int]) -> Any:
    return parent.subsurface((place, size))


def mask(surface: Any) -> Any:
    """Return a pygame mask with the alpha values of a surface as bits."""
    return _pygame().mask.from_surface(surface)


def event(kind: int, attributes: dict[str, Any]) -> Any:
    return _pygame().event.Event(kind, attributes)


def _pygame() -> Any:
    return importlib.import_module("pygame")


PLAIN_FUNCTIONS: dict[str, Any] = {
    made.__name__: made
    for made in (
        *(array, dense_array, dense_subclass, array_subclass, object_array, with_elements),
        *(view, shared_view, shared_scalar, whole_memory, scalar),
        *(storage, array_storage, tensor, parameter, with_gradient),
        *(bit_generator, generator, seeded_generator, seed_sequence),
        *(random_state, random_state_on, python_random, torch_generator),
        *(cell, same, with_cell_content, logger, new_resource, dict_iterator),
        *(surface, subsurface, mask, event),
    )
}
"""Functions that need no environment, by name."""

REFERENCES: dict[int, Any] = {
    id(globals()[name]): NotImplemented for name in (*PLAIN_FUNCTIONS, *TARGET_FUNCTIONS)
}
"""By a function's id, the reducer result that makes picklers refer to the function by name."""
