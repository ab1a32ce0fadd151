"""The saved state of a collector, and its serialization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xuance_envs.errors import StateError, counted
from xuance_envs.rollout.episode_statistics import merge_statistics, slice_statistics
from xuance_envs.state.env_states import EnvStates
from xuance_envs.state.faults import FaultError
from xuance_envs.state.pickling import dumps_plain, loads_plain

_VERSION = 1
_KEYS = ("version", "num_envs", "global_steps", "envs", "loop", "torch_generator")
_CONTENT = ("states", "fresh", "statistics", "recorder")


@dataclass(frozen=True)
class LoopState:
    """Everything a collector needs to continue, except the agent and its optimizer."""

    envs: EnvStates
    states: list[NDArray[Any]]
    fresh: NDArray[np.bool_]
    statistics: Mapping[str, Any]
    recorder: Any
    global_steps: int
    generators: Mapping[str, bytes]
    rng_states: Sequence[bytes] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the state as bytes and numbers, for ``torch.save``."""
        content = {name: getattr(self, name) for name in _CONTENT}
        return {
            "version": _VERSION,
            "num_envs": len(self.envs),
            "global_steps": self.global_steps,
            "envs": self.envs.to_bytes(),
            "loop": dumps_plain(content),
            **self.generators,
            **({"noise": list(self.rng_states)} if self.rng_states else {}),
        }

    @classmethod
    def from_dict(
        cls,
        state: Mapping[str, Any],
        num_envs: int,
        shapes: Sequence[tuple[int, ...]],
        reward_shape: tuple[int, ...],
        trusted: bool = False,
    ) -> LoopState:
        """Validate and read the result of :meth:`to_dict`."""
        missing = [name for name in _KEYS if name not in state]
        if missing:
            raise ValueError(
                f"state: expected the result of state_dict, got a dict without the keys {missing}"
            )
        if state["version"] != _VERSION:
            raise ValueError(f"state: expected version {_VERSION}, got {state['version']}")
        if state["num_envs"] != num_envs:
            expected = f"a state of {counted(num_envs, 'environment')}"
            raise ValueError(f"state: expected {expected}, got {state['num_envs']}")
        return cls(
            EnvStates.from_bytes(state["envs"], trusted),
            **_content(state["loop"], shapes, reward_shape),
            global_steps=state["global_steps"],
            generators={name: state[name] for name in state if name.endswith("_generator")},
            rng_states=state.get("noise", ()),
        )

    @classmethod
    def joined(cls, parts: Sequence[LoopState]) -> LoopState:
        """Join the states of consecutive groups of environments, without torch's generators."""
        return cls(
            EnvStates.joined([part.envs for part in parts]),
            [np.concatenate(arrays) for arrays in zip(*(p.states for p in parts), strict=True)],
            np.concatenate([part.fresh for part in parts]),
            merge_statistics([part.statistics for part in parts]),
            None,
            sum(part.global_steps for part in parts),
            {},
            [rng_states for part in parts for rng_states in part.rng_states],
        )

    def parts(self, split: Sequence[tuple[int, int]]) -> list[LoopState]:
        """Split the state, without the recorder; keep ``rng_states`` if there is one per part."""
        matches = len(self.rng_states) == len(split)
        return [
            replace(
                self,
                envs=self.envs[lo:hi],
                states=[part[lo:hi] for part in self.states],
                fresh=self.fresh[lo:hi],
                statistics=slice_statistics(self.statistics, lo, hi),
                recorder=None,
                global_steps=self.global_steps * (hi - lo) // len(self.envs),
                rng_states=self.rng_states[number : number + 1] if matches else (),
            )
            for number, (lo, hi) in enumerate(split)
        ]


def _content(
    data: bytes, shapes: Sequence[tuple[int, ...]], reward_shape: tuple[int, ...]
) -> dict[str, Any]:
    try:
        loaded = loads_plain(data, trusted=False)
        content = {name: loaded[name] for name in _CONTENT}
        found = [np.shape(part) for part in content["states"]]
        _, *rewards = np.shape(content["statistics"]["scores"])
    except (FaultError, TypeError, ValueError, LookupError) as error:
        message = f"cannot read the collector's state: {error}"
        raise StateError(-1, "load_state_dict", message) from None
    shapes = [tuple(shape) for shape in shapes]
    if found != shapes:
        raise StateError(-1, "load_state_dict", f"expected states of shapes {shapes}, got {found}")
    if tuple(rewards) != reward_shape:
        expected = f"expected rewards of shape {reward_shape}, got {tuple(rewards)}"
        raise StateError(-1, "load_state_dict", f"{expected}; use the same scalarize as saved")
    return content


def generators(device: torch.device) -> dict[str, bytes]:
    """Return the states of torch's generators, of the CPU and of a device such as CUDA or MPS."""
    found = {"torch_generator": torch.get_rng_state().numpy().tobytes()}
    if hasattr(library := _library_of(device), "get_rng_state"):
        state = library.get_rng_state(*_index_of(device))
        found[f"{device.type}_generator"] = state.cpu().numpy().tobytes()
    return found


def set_generators(state: Mapping[str, bytes], device: torch.device) -> None:
    torch.set_rng_state(byte_tensor(state["torch_generator"]))
    saved = state.get(f"{device.type}_generator")
    if saved is not None:
        _library_of(device).set_rng_state(byte_tensor(saved), *_index_of(device))


def _library_of(device: torch.device) -> Any:
    """Return the module of a device other than the CPU, such as ``torch.cuda``, or None."""
    return None if device.type == "cpu" else getattr(torch, device.type, None)


def _index_of(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # there is only one


def byte_tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())
