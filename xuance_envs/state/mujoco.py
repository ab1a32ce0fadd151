"""Checkpoint support for MuJoCo simulations.

``mj_getState`` is incomplete. Environments also read contacts, constraint forces and derived
positions. All of these lag one substep behind ``qpos``, so ``mj_forward`` would compute different
values. A state therefore holds all of MjData: the numbers in its struct, its buffer and the used
part of its arena.

Some environments change their models at resets. Each model is therefore compared with a copy from
the environment's creation, and the differences are saved. A state can be loaded only if the two
environments' models were equal at creation.
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import importlib
import sys
import weakref
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from xuance_envs.state import mujoco_memory
from xuance_envs.state.faults import FaultError, MismatchError, class_name
from xuance_envs.state.handlers import NATIVE, Handler
from xuance_envs.state.layers import layers_of
from xuance_envs.state.rebuild import address_of

MODEL_CLASS = "mujoco._structs.MjModel"

_STRUCTURE = ("body_parentid", "jnt_type", "geom_type", "dof_bodyid", "actuator_trnid")
_OPTIONS = ("opt", "vis", "stat")
"""Structs of numbers in MjModel, besides its buffer of arrays."""

_MAX_CHANGES = 10_000

_M = TypeVar("_M")

# -- MjModel -----------------------------------------------------------------------------

_Changes = list[tuple[int, int, bytes]]
"""Number of a memory region, offset in it, new content."""


class _Model:
    """Memory of a model and of its copy from the environment's creation."""

    def __init__(self, model: Any) -> None:
        self.original = copy.copy(model)
        self._model = weakref.ref(model)

    @cached_property
    def regions(self) -> list[tuple[int, int, int]]:
        """For each region: the address in the model, the address in the copy, and the size."""
        structs = [mujoco_memory.model_struct(each) for each in (self._model(), self.original)]
        starts = [ctypes.addressof(each) for each in structs]
        sizes = [(each.nq, each.nbody, each.nbuffer) for each in (*structs, self.original)]
        fields = [getattr(type(structs[0]), name) for name in _OPTIONS]
        start = min(field.offset for field in fields)
        size = max(field.offset + field.size for field in fields) - start
        if len(set(sizes)) > 1 or size != sum(field.size for field in fields):
            raise mujoco_memory.unknown_layout("MjModel")
        return [
            (structs[0].buffer, structs[1].buffer, structs[0].nbuffer),
            (starts[0] + start, starts[1] + start, size),
        ]

    @cached_property
    def digest(self) -> bytes:
        content = b"".join(_view(original, size) for _, original, size in self.regions)
        return hashlib.blake2b(content, digest_size=8).digest()

    @cached_property
    def _options(self) -> tuple[memoryview, bytes]:
        address, original, size = self.regions[1]
        return _view(address, size), bytes(_view(original, size))

    def is_original(self) -> bool:
        current, original = self._options  # faster than a second memcmp
        return bytes(current) == original and not mujoco_memory.memcmp(*self.regions[0])

    def changes(self) -> _Changes:
        found: _Changes = []
        for number, (address, original, size) in enumerate(self.regions):
            content = _memory(address, size)
            places = np.flatnonzero(content != _memory(original, size))
            if not len(places):
                continue
            ends = [0, *(np.flatnonzero(np.diff(places) > 8) + 1).tolist(), len(places)]
            if len(ends) > _MAX_CHANGES:
                ends = [0, len(places)]
            for lo, hi in pairwise(ends):
                start, end = int(places[lo]), int(places[hi - 1]) + 1
                found.append((number, start, content[start:end].tobytes()))
        return found

    def apply(self, changes: _Changes) -> None:
        if not self.is_original():
            for address, original, size in self.regions:
                ctypes.memmove(address, original, size)
        for number, start, content in changes:
            ctypes.memmove(self.regions[number][0] + start, content, len(content))


def _memory(address: int, size: int) -> NDArray[np.uint8]:
    return np.frombuffer(_view(address, size), np.uint8)


def _view(address: int, size: int) -> memoryview:
    """Return a writable view of memory; copying through it is faster than through ctypes."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def _made_once(make: Callable[[Any], _M]) -> Callable[[Any], _M]:
    """Return ``make`` with a cache by id, which is faster than a WeakKeyDictionary."""
    made: dict[int, tuple[weakref.ref[Any], _M]] = {}

    def cached(obj: Any) -> _M:
        key = id(obj)
        found = made.get(key)
        if found is None or found[0]() is not obj:
            found = made[key] = weakref.ref(obj, lambda _: made.pop(key, None)), make(obj)
        return found[1]

    return cached


_model = _made_once(_Model)


def keep_original_models(env: Any) -> None:
    """Copy the models of a new environment, before it changes them."""
    if not hasattr(sys.modules.get(type(env).__module__), "mujoco") and not hasattr(env, "model"):
        return
    for layer in layers_of(env):
        for _, value in layer.items():
            if class_name(type(value)) == MODEL_CLASS:
                _model(value)


def _save_model(model: Any, _: Any) -> tuple[bytes, _Changes]:
    own = _model(model)
    return own.digest, [] if own.is_original() else own.changes()


def _check_model(model: Any, value: tuple[bytes, _Changes] | None) -> str | None:
    own = _model(model)
    if value is None:
        if not own.is_original():
            reason = "the state lacks the model's parameters, and this environment has changed them"
            raise MismatchError("model", "no parameters", "changed parameters", reason)
        return "the state was saved by version 0.2.0, without the MuJoCo model's parameters"
    digest, changes = value
    if digest != own.digest:
        saved, here = (f"initial values with digest {each.hex()}" for each in (digest, own.digest))
        raise MismatchError("model", saved, here)
    for number, start, content in changes:
        _, _, size = own.regions[number]
        if not 0 <= start <= start + len(content) <= size:
            raise FaultError(
                "",
                f"expected changes of a model within {size} bytes, got {len(content)} bytes at "
                f"{start}",
            )
    return None


def _load_model(model: Any, value: tuple[bytes, _Changes] | None, _: Any) -> None:
    if value is not None:
        _model(model).apply(value[1])


def _describe_model(model: Any, _: Any) -> tuple[str, dict[str, Any]]:
    content = b"".join(getattr(model, name).tobytes() for name in _STRUCTURE)
    digest = hashlib.blake2b(content, digest_size=8)
    sizes = ", ".join(f"{name}={getattr(model, name)}" for name in ("nq", "nv", "nu", "nbody"))
    return "mujoco", {"model": f"{sizes}, digest {digest.hexdigest()}"}


# -- MjData ------------------------------------------------------------------------------

_NOT_STATE = frozenset({"narena", "nbuffer", "nplugin", "threadpool", "threadlock", "signature"})
"""Fields of MjData that are not saved: sizes, which are compared, and resources of the process."""

_Value = tuple[bytes, bytes, bytes, bytes, bytes]
"""Numbers of the struct; solver statistics; offsets into the arena; buffer; used arena bytes."""


class _Data:
    """Memory of one MjData."""

    def __init__(self, data: Any) -> None:
        self.struct = struct = mujoco_memory.data_struct(data)
        kind, start = type(struct), ctypes.addressof(struct)
        if (struct.nbuffer, struct.narena, struct.time) != (data.nbuffer, data.narena, data.time):
            raise mujoco_memory.unknown_layout("MjData")
        pointers: list[int] = []
        # Address and size of each stretch of adjacent fields that are saved as numbers.
        stretches: list[tuple[int, int]] = []
        for name, type_ in mujoco_memory.fields("mjData"):
            field = getattr(kind, name)
            address = start + field.offset
            if type_ is ctypes.c_void_p:
                value = getattr(struct, name) or 0
                in_buffer = struct.buffer <= value <= struct.buffer + struct.nbuffer
                if name not in ("buffer", "arena") and not (value and in_buffer):
                    pointers.append(address)
            elif name not in _NOT_STATE and name != "solver":
                if stretches and sum(stretches[-1]) == address:
                    address, size = stretches.pop()
                    stretches.append((address, size + field.size))
                else:
                    stretches.append((address, field.size))
        if not pointers or len(pointers) != (pointers[-1] - pointers[0]) // 8 + 1:
            raise mujoco_memory.unknown_layout("MjData")
        self.pointers = _view(pointers[0], 8 * len(pointers))
        self.numbers = [_view(*stretch) for stretch in stretches]
        self.buffer = _view(struct.buffer, struct.nbuffer)
        self.arena = _view(struct.arena, struct.narena)
        self._before_arena = np.array(struct.arena - 8, np.uint64)
        # Cache: pointers, their offsets, and the highest offset. All states without
        # contacts have equal offsets. An offset of 0 is a null pointer.
        self._known: tuple[bytes, bytes, int] = b"", b"", 0
        # Pointers in the buffer to the data of plugins; a restore does not change them.
        count = struct.nplugin
        self.plugins: Any = (
            (ctypes.c_size_t * count).from_address(struct.plugin_data) if count else []
        )
        self._iterations: NDArray[Any] = np.frombuffer(struct.solver_niter, np.intc)
        each, islands = ctypes.sizeof(struct.solver[0]), len(self._iterations)
        first, of_island = ctypes.addressof(struct.solver), len(struct.solver) // islands * each
        self._iteration_bytes = each
        self._solver = [_view(first + island * of_island, of_island) for island in range(islands)]

    def offsets(self) -> bytes:
        pointers = bytes(self.pointers)
        if pointers != self._known[0]:
            given = np.frombuffer(pointers, np.uint64)
            offsets = (given - self._before_arena) * given.astype(bool)
            self._known = pointers, offsets.tobytes(), np.maximum.reduce(offsets).item()
        return self._known[1]

    def pointers_at(self, offsets: bytes) -> tuple[bytes, int]:
        """Return the pointers with these offsets, and the highest offset."""
        if offsets != self._known[1]:
            given = np.frombuffer(offsets, np.uint64)
            pointers = (given + self._before_arena) * given.astype(bool)
            self._known = pointers.tobytes(), offsets, np.maximum.reduce(given).item()
        return self._known[0], self._known[2]

    def solver_regions(self) -> list[memoryview]:
        """Return the used part of each island's solver statistics."""
        each, counts = self._iteration_bytes, self._iterations.tolist()
        return [self._solver[k][: count * each] for k, count in enumerate(counts) if count]


_simulation = _made_once(_Data)


def _save(data: Any, _: Any) -> _Value:
    own = _simulation(data)
    return (
        b"".join(own.numbers),
        b"".join(own.solver_regions()),
        own.offsets(),
        bytes(own.buffer),
        bytes(own.arena[: own.struct.parena]),
    )


def _check(data: Any, value: Any) -> str | None:
    if len(value) == 3:
        return _check_reduced(data, value)
    own = _simulation(data)
    numbers, _, offsets, buffer, arena = value
    expected = sum(map(len, own.numbers)), len(own.pointers), len(own.buffer)
    given = len(numbers), len(offsets), len(buffer)
    if given != expected:
        sizes = "MjData with %d bytes of fields, %d of pointers and %d of buffer"
        raise MismatchError("model", sizes % given, sizes % expected)
    if len(arena) > (available := own.struct.narena):
        raise MismatchError("model", f"{len(arena)} bytes of arena in use", f"{available} bytes")
    last = own.pointers_at(offsets)[1] - 8
    if last > len(arena):
        raise FaultError(
            "", f"expected pointers into MjData's arena of {len(arena)} bytes, got byte {last}"
        )
    return None


def _load(data: Any, value: Any, _: Any) -> None:
    if len(value) == 3:
        _load_reduced(data, value)
        return
    own = _simulation(data)
    numbers, solver, offsets, buffer, arena = value
    kept = list(own.plugins)
    _write(own.numbers, numbers)
    if solver:
        _write(own.solver_regions(), solver)
    own.pointers[:] = own.pointers_at(offsets)[0]
    own.buffer[:] = buffer
    own.arena[: len(arena)] = arena
    if kept:
        own.plugins[:] = kept


def _write(regions: list[memoryview], content: bytes) -> None:
    start = 0
    for region in regions:
        part = content[start : start + len(region)]
        region[: len(part)] = part
        start += len(part)


# -- states of version 0.2.0 ---------------------------------------------------------------

_PARAMETERS = ("body_mass", "geom_friction", "geom_size", "dof_damping", "actuator_gainprm")


def _check_reduced(data: Any, value: tuple[bytes, bytes, bytes]) -> str:
    state, buffer, parameters = value
    library, model = importlib.import_module("mujoco"), data.model
    size = 8 * library.mj_stateSize(model, library.mjtState.mjSTATE_INTEGRATION)
    if (len(state), len(buffer)) != (size, data.nbuffer):
        raise MismatchError("model", f"{len(buffer)} bytes of data", f"{data.nbuffer} bytes")
    digest = hashlib.blake2b(repr(model.opt.timestep).encode(), digest_size=8)
    for array in (model.opt.gravity, *[getattr(model, name) for name in _PARAMETERS]):
        digest.update(array)
    if parameters != digest.digest():
        hexes = parameters.hex(), digest.hexdigest()
        saved, here = (f"parameters with digest {each}" for each in hexes)
        raise MismatchError("model", saved, here)
    return "the state was saved by version 0.2.0, without MuJoCo's contacts and constraint forces"


def _load_reduced(data: Any, value: tuple[bytes, bytes, bytes]) -> None:
    state, buffer, _ = value
    library = importlib.import_module("mujoco")
    spec = library.mjtState.mjSTATE_INTEGRATION
    library.mj_setState(data.model, data, np.frombuffer(state), spec)
    library.mj_forward(data.model, data)
    ctypes.memmove(address_of(data.qpos), buffer, len(buffer))


NATIVE["mujoco._structs.MjData"] = Handler(_save, _load, _check)
NATIVE[MODEL_CLASS] = Handler(_save_model, _load_model, _check_model, _describe_model)
