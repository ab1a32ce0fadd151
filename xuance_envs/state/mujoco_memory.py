"""Memory layout of MuJoCo's structs, from the declarations that its bindings ship."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
from typing import Any

from xuance_envs.state.faults import FaultError

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

_memcmp: Any = ctypes.CDLL("msvcrt" if os.name == "nt" else None).memcmp
_memcmp.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t


def are_same(address: int, other: int, size: int) -> bool:
    """Return whether two regions of memory have the same content."""
    return not _memcmp(address, other, size)


def address_of(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class StructLayouts:
    """C structs of the installed version, as types of :mod:`ctypes`."""

    def __init__(self) -> None:
        library = importlib.import_module("mujoco")
        self._declared = importlib.import_module("mujoco.introspect.structs").STRUCTS
        self._enums = importlib.import_module("mujoco.introspect.enums").ENUMS
        self._number = ctypes.c_float if _number_bytes(library) == 4 else ctypes.c_double
        self._made: dict[str, Any] = {}

    def struct(self, name: str) -> Any:
        if name not in self._made:
            declared = self._declared.get(name) or self._declared[f"{name}_"]
            self._made[name] = self._struct(declared)
        return self._made[name]

    def _struct(self, declared: Any) -> Any:
        fields = [
            (getattr(field, "name", f"unnamed_{k}"), self._type(getattr(field, "type", field)))
            for k, field in enumerate(declared.fields)
        ]
        return type("Struct", (ctypes.Structure,), {"_fields_": fields})

    def _type(self, declared: Any) -> Any:
        if hasattr(declared, "fields"):
            return self._struct(declared)
        if hasattr(declared, "extents"):
            made = self._type(declared.inner_type)
            for extent in reversed(declared.extents):
                made *= extent
            return made
        name = getattr(declared, "name", None)
        if name is None:
            return ctypes.c_void_p
        if name == "mjtNum":
            return self._number
        if name in self._enums:
            return ctypes.c_int
        return _C_TYPES[name] if name in _C_TYPES else self.struct(name)


def _number_bytes(library: Any) -> int:
    return getattr(library, "MJTNUM_BYTES", 8)  # older versions have only one precision


@functools.cache
def layouts() -> StructLayouts:
    return StructLayouts()


def struct_of(obj: Any, name: str) -> Any:
    """Return the C struct behind an object of MuJoCo's bindings."""
    try:
        return layouts().struct(name).from_address(obj._address)
    except (AttributeError, ImportError, LookupError) as error:
        raise unknown_layout(name) from error


def unknown_layout(name: str) -> FaultError:
    return FaultError(
        "", f"cannot save {name}: the installed version of mujoco uses an unknown memory layout"
    )
