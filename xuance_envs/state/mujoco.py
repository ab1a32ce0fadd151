"""MuJoCo's simulations.

What ``mj_getState`` gives does not tell all: rewards and observations read positions that lag
behind it by a substep. So the state is set, ``mj_forward`` computes what follows from it, and then
everything derived is made what it was: the one buffer that all of MjData's arrays lie in.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import weakref
from typing import Any

import numpy as np

from xuance_envs.state.faults import FaultError, MismatchError
from xuance_envs.state.handlers import NATIVE, Handler

__all__: list[str] = []

_STRUCTURE = ("body_parentid", "jnt_type", "geom_type", "dof_bodyid", "actuator_trnid")
_PARAMETERS = ("body_mass", "geom_friction", "geom_size", "dof_damping", "actuator_gainprm")
"""What environments change of a model to make tasks of it."""

_Value = tuple[bytes, bytes, bytes]


class _Simulation:
    """What is needed of one simulation each time, looked up once."""

    def __init__(self, data: Any) -> None:
        self.library = importlib.import_module("mujoco")
        self.model = data.model
        self.what = self.library.mjtState.mjSTATE_INTEGRATION
        self.size: int = self.library.mj_stateSize(self.model, self.what)
        self.buffer: int = data.qpos.__array_interface__["data"][0]
        self.length: int = data.nbuffer
        self._parameters = [self.model.opt.gravity] + [
            getattr(self.model, name) for name in _PARAMETERS
        ]
        for name in ("qvel", "xpos", "qacc", "sensordata"):
            array = getattr(data, name)
            address = array.__array_interface__["data"][0]
            if array.size and not self.buffer <= address < self.buffer + self.length:
                raise FaultError(
                    "", "this version of mujoco lays MjData out in a way that is not known here"
                )

    def parameters(self) -> bytes:
        """A number that tells whether a model's parameters are the same."""
        digest = hashlib.blake2b(repr(self.model.opt.timestep).encode(), digest_size=8)
        for array in self._parameters:
            digest.update(array)
        return digest.digest()


_simulations: weakref.WeakKeyDictionary[Any, _Simulation] = weakref.WeakKeyDictionary()


def _simulation(data: Any) -> _Simulation:
    try:
        return _simulations[data]
    except KeyError:
        return _simulations.setdefault(data, _Simulation(data))


def _save(data: Any, _: Any) -> _Value:
    its = _simulation(data)
    state = np.empty(its.size)
    its.library.mj_getState(its.model, data, state, its.what)
    return state.tobytes(), ctypes.string_at(its.buffer, its.length), its.parameters()


def _check(data: Any, value: _Value) -> None:
    its = _simulation(data)
    state, buffer, parameters = value
    if len(state) != 8 * its.size or len(buffer) != its.length:
        raise MismatchError("model", f"{len(buffer)} bytes of data", f"{its.length} bytes of data")
    if parameters != (here := its.parameters()):
        raise MismatchError(
            "model", f"masses, sizes and the like with digest {parameters.hex()}", here.hex()
        )


def _load(data: Any, value: _Value, _: Any) -> None:
    its = _simulation(data)
    state, buffer, _ = value
    its.library.mj_setState(its.model, data, np.frombuffer(state), its.what)
    its.library.mj_forward(its.model, data)
    ctypes.memmove(its.buffer, buffer, its.length)


def _describe_model(model: Any, _: Any) -> tuple[str, dict[str, Any]]:
    digest = hashlib.blake2b(digest_size=8)
    for name in _STRUCTURE:
        digest.update(getattr(model, name).tobytes())
    sizes = ", ".join(f"{name}={getattr(model, name)}" for name in ("nq", "nv", "nu", "nbody"))
    return "mujoco", {"model": f"{sizes}, digest {digest.hexdigest()}"}


NATIVE["mujoco._structs.MjData"] = Handler(_save, _load, _check)
NATIVE["mujoco._structs.MjModel"] = Handler(
    lambda model, _: None, lambda model, value, _: None, describe=_describe_model
)
