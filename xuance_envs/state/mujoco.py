"""Checkpoint support for MuJoCo simulations.

``mj_getState`` is incomplete: rewards and observations read positions that lag one substep behind
it. A restore sets the state, calls ``mj_forward`` to compute derived values, and then overwrites
the one buffer that holds all arrays of MjData.
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

_STRUCTURE = ("body_parentid", "jnt_type", "geom_type", "dof_bodyid", "actuator_trnid")
_PARAMETERS = ("body_mass", "geom_friction", "geom_size", "dof_damping", "actuator_gainprm")
"""Model parameters that environments change to vary their tasks."""

_Value = tuple[bytes, bytes, bytes]


class _Simulation:
    """Cached lookups for one simulation."""

    def __init__(self, data: Any) -> None:
        self.library = importlib.import_module("mujoco")
        self.model = data.model
        self.spec = self.library.mjtState.mjSTATE_INTEGRATION
        self.size: int = self.library.mj_stateSize(self.model, self.spec)
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
                    "",
                    "cannot save MjData: the installed version of mujoco uses an unknown memory "
                    "layout",
                )

    def parameters(self) -> bytes:
        """Return a digest of the model's parameters."""
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
    sim = _simulation(data)
    state = np.empty(sim.size)
    sim.library.mj_getState(sim.model, data, state, sim.spec)
    return state.tobytes(), ctypes.string_at(sim.buffer, sim.length), sim.parameters()


def _check(data: Any, value: _Value) -> None:
    sim = _simulation(data)
    state, buffer, parameters = value
    if len(state) != 8 * sim.size or len(buffer) != sim.length:
        raise MismatchError("model", f"{len(buffer)} bytes of data", f"{sim.length} bytes of data")
    if parameters != (here := sim.parameters()):
        raise MismatchError(
            "model", f"masses and other parameters with digest {parameters.hex()}", here.hex()
        )


def _load(data: Any, value: _Value, _: Any) -> None:
    sim = _simulation(data)
    state, buffer, _ = value
    sim.library.mj_setState(sim.model, data, np.frombuffer(state), sim.spec)
    sim.library.mj_forward(sim.model, data)
    ctypes.memmove(sim.buffer, buffer, sim.length)


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
