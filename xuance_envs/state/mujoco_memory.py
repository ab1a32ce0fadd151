"""Memory layout of MuJoCo's structs, from the declarations that its bindings ship."""

from __future__ import annotations

import ctypes
import functools
import importlib
from typing import Any

from xuance_envs.state.faults import FaultError
from xuance_envs.state.rebuild import address_of

_C_TYPES: dict[str, Any] = {
    "char": ctypes.c_char,
    "double": ctypes.c_double,
    "float": ctypes.c_float,
    "int": ctypes.c_int,
    "size_t": ctypes.c_size_t,
    "uint64_t": ctypes.c_uint64,
    "uintptr_t": ctypes.c_size_t,
    "unsigned char": ctypes.c_ubyte,
    "unsigned int": ctypes.c_uint,
    "mjtBool": ctypes.c_bool,
    "mjtByte": ctypes.c_ubyte,
    "mjtSize": ctypes.c_int64,
}

try:
    memcmp: Any = ctypes.PyDLL(None).memcmp
except TypeError:  # on Windows, every library has a name
    memcmp = ctypes.PyDLL("msvcrt").memcmp
memcmp.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t


@functools.cache
def struct(name: str) -> Any:
    return _struct_type(fields(name))


def fields(name: str) -> list[tuple[str, Any]]:
    declared = importlib.import_module("mujoco.introspect.structs").STRUCTS
    return _fields(declared.get(name) or declared[f"{name}_"])


def _fields(declared: Any) -> list[tuple[str, Any]]:
    return [
        (getattr(field, "name", f"unnamed_{k}"), _type(getattr(field, "type", field)))
        for k, field in enumerate(declared.fields)
    ]


def _type(declared: Any) -> Any:
    if hasattr(declared, "fields"):
        return _struct_type(_fields(declared))
    if hasattr(declared, "extents"):
        made = _type(declared.inner_type)
        for extent in reversed(declared.extents):
            made *= extent
        return made
    name = getattr(declared, "name", None)
    if name is None:
        return ctypes.c_void_p
    if name == "mjtNum":
        # Older versions have only one precision.
        is_single = getattr(importlib.import_module("mujoco"), "MJTNUM_BYTES", 8) == 4
        return ctypes.c_float if is_single else ctypes.c_double
    if name in importlib.import_module("mujoco.introspect.enums").ENUMS:
        return ctypes.c_int
    return _C_TYPES[name] if name in _C_TYPES else struct(name)


def _struct_type(fields: list[tuple[str, Any]]) -> Any:
    return type("Struct", (ctypes.Structure,), {"_fields_": fields})


def data_struct(data: Any) -> Any:
    try:
        kind = struct("mjData")
        return kind.from_address(address_of(data.solver_niter) - kind.solver_niter.offset)
    except (AttributeError, ImportError, LookupError) as error:
        raise unknown_layout("MjData") from error


def model_struct(model: Any) -> Any:
    try:
        kind, options = struct("mjModel"), struct("mjOption")
        offset = kind.opt.offset + options.gravity.offset
        return kind.from_address(address_of(model.opt.gravity) - offset)
    except (AttributeError, ImportError, LookupError) as error:
        raise unknown_layout("MjModel") from error


def unknown_layout(name: str) -> FaultError:
    return FaultError(
        "", f"cannot save {name}: the installed version of mujoco uses an unknown memory layout"
    )
