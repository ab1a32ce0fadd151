"""What of a loop of agent and environments is kept, besides the environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from xuance_envs.errors import StateError
from xuance_envs.state.faults import FaultError
from xuance_envs.state.pickling import loads_plain

__all__ = ["check_state", "generators", "loop_of", "set_generators"]

_VERSION = 1


def check_state(state: Mapping[str, Any], num_envs: int) -> None:
    """Sees whether something is a state dict for so many environments.

    Raises:
        ValueError: it is not.
    """
    missing = [name for name in ("version", "num_envs", "envs", "loop") if name not in state]
    if missing:
        raise ValueError(f"state: expected what state_dict returned, got none of its {missing}")
    if state["version"] != _VERSION:
        raise ValueError(f"state: expected version {_VERSION}, got {state['version']}")
    if state["num_envs"] != num_envs:
        raise ValueError(
            f"state: expected that of {num_envs} environments, got one of {state['num_envs']}"
        )


def loop_of(data: bytes, shapes: Sequence[Any]) -> dict[str, Any]:
    """What the loop kept.

    Args:
        data: as it was written.
        shapes: of the states' parts.

    Raises:
        StateError: it cannot be read.
    """
    try:
        content: dict[str, Any] = loads_plain(data, trusted=False)
        found = [np.shape(part) for part in content["states"]]
    except (FaultError, TypeError, LookupError) as error:
        raise StateError(-1, "load_state_dict", f"cannot read the loop's state: {error}") from None
    if found != [tuple(shape) for shape in shapes]:
        raise StateError(
            -1, "load_state_dict", f"expected states of shapes {list(shapes)}, got {found}"
        )
    return content


def generators(device: torch.device) -> dict[str, bytes]:
    """The states of torch's random generators: that of the CPU, and that of the device."""
    found = {"torch_generator": torch.get_rng_state().numpy().tobytes()}
    if device.type == "cuda":
        found["cuda_generator"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    return found


def set_generators(state: Mapping[str, Any], device: torch.device) -> None:
    """Puts them back."""
    torch.set_rng_state(_tensor(state["torch_generator"]))
    if device.type == "cuda" and "cuda_generator" in state:
        torch.cuda.set_rng_state(_tensor(state["cuda_generator"]), device)


def _tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())
