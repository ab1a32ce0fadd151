"""The remote side of `RayRolloutCollector`: a collector with its environments and agent copy.

This module does not depend on Ray.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import Space

from xuance_envs.engine.data.space_layout import SpaceLayout, StepSpaces
from xuance_envs.engine.ray.messages import CODE_DISTRIBUTION_HINT
from xuance_envs.engine.serialization import loads, pack_error
from xuance_envs.errors import EnvError, WorkerDiedError, WorkerTimeoutError, counted
from xuance_envs.rollout.collector import RolloutCollector
from xuance_envs.rollout.loop_state import LoopState, byte_tensor
from xuance_envs.rollout.results import STACKED, STATES
from xuance_envs.state.checkpointer import RngFork
from xuance_envs.state.pickling import dumps_plain, loads_plain
from xuance_envs.state.values.graph import parts_of
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv

_GENERATORS = torch.Generator, np.random.Generator, np.random.RandomState, random.Random
_WITHOUT_GENERATORS = type, torch.Tensor, random.SystemRandom  # the last one has no state


@dataclass(frozen=True)
class CollectorPlan:
    number: int
    envs: range
    env_fns: bytes
    keywords: Sequence[Mapping[str, Any]]
    seeds: list[int | None] | None
    processes: int
    step_timeout: float | None
    start_timeout: float | None
    agent: bytes
    random_state: bytes
    options: Mapping[str, Any]
    weights: bytes | None = None
    version: int = 0
    restarts: int = 0

    @property
    def in_processes(self) -> bool:
        """True if the environments run in worker processes, which a step timeout requires."""
        return self.processes > 1 or self.step_timeout is not None


class CollectorActor:
    """A collector that plays rollouts on request; a repeated request has no further effect."""

    def __init__(self, plan: CollectorPlan) -> None:
        self._plan = plan
        self._collector: Any = None
        self._turn: int | None = None
        self._version = plan.version  # of the agent's weights
        self._played_version = 0

    def call(self, name: str, *arguments: Any) -> tuple[bool, Any]:
        """Call a method; return ``(True, result)`` or ``(False, packed error)``."""
        try:
            return True, getattr(self, name)(*arguments)
        except Exception as error:
            return False, pack_error(self._with_global_indices(error))

    def _with_global_indices(self, error: Exception) -> Exception:
        """Return the error with environment indices that count over all collectors."""
        # Not an index of `envs`: the agent may have a larger vec env of its own that failed.
        first = self._plan.envs.start
        if isinstance(error, EnvError) and error.env_index >= 0:
            reason = f"{error.reason} ({self._where()})"
            env = first + error.env_index
            remapped = type(error)(env, error.command, reason, *error.args[3:])
            remapped.__cause__ = error.__cause__
            return remapped
        if type(error) in (AttributeError, RuntimeError, ValueError):  # may name environments
            where = f"{self._where()}, whose first environment is {first}"
            return type(error)(f"{error} ({where})")
        if isinstance(error, WorkerDiedError | WorkerTimeoutError):
            error.env_indices = tuple(first + env for env in error.env_indices)
            error.env_index = None if error.env_index is None else first + error.env_index
            error.details = f"{error.details}\nIt ran {self._where()}.".lstrip()
        return error

    def _where(self) -> str:
        return f"in collector {self._plan.number} on {self._location()}"

    def _location(self) -> str:
        return "this machine"

    def build(self) -> tuple[StepSpaces, list[Any]]:
        """Create the collector, if it does not exist; return its spaces and first states."""
        if self._collector is None:
            plan = self._plan
            self._agent = self._unpickle(plan.agent, "The agent")
            if plan.weights is not None:
                self._agent.load_state_dict(loads(plan.weights))
            vec_env = self._make_vec_env(self._unpickle(plan.env_fns, "The environment functions"))
            try:
                self._collector = RolloutCollector(
                    vec_env, self._agent, seed=plan.seeds, device="cpu", **plan.options
                )
            except BaseException:
                vec_env.close()
                raise
            reseed(self._agent, plan.random_state, (plan.number, plan.restarts))
        made = self._collector
        spaces = StepSpaces(made.state_space, made.action_space, made.reward_space)
        return spaces, _parts(made, "t_states")

    def _unpickle(self, packed: bytes, what: str) -> Any:
        try:
            return loads(packed)
        except (ImportError, AttributeError) as error:
            raise ImportError(
                f"{type(error).__name__}: {error}. {what} could not be loaded {self._where()}: the "
                f"code must be available there, {CODE_DISTRIBUTION_HINT}"
            ) from error

    def _make_vec_env(self, functions: Sequence[Callable[..., Any]]) -> VecEnv:
        plan = self._plan
        makers = [
            partial(f, **given) if given else f
            for f, given in zip(functions, plan.keywords, strict=True)
        ]
        if not plan.in_processes:
            return DummyVecEnv(makers, copy=False)
        return SubprocVecEnv(
            makers,
            in_series=-(-len(makers) // plan.processes),
            copy=False,
            step_timeout=plan.step_timeout,
            start_timeout=plan.start_timeout,
        )

    def update(self, weights: bytes, version: int) -> None:
        """Load new agent weights, between two rollouts."""
        self._agent.load_state_dict(loads(weights))
        self._version = version

    def rollout(self, turn: int) -> dict[str, Any]:
        """Play a rollout, or return its results again if this turn was already played."""
        collector = self._collector
        if turn != self._turn:
            self._turn, self._played_version = None, self._version
            collector.rollout()
            self._turn = turn
        masks = collector.action_masks
        return {
            **{name: getattr(collector, name).numpy() for name in STACKED},
            **{name: _parts(collector, name) for name in STATES},
            "action_masks": None if masks is None else masks.numpy(),
            "ep_counts": collector.ep_counts.numpy(),
            "statistics": collector.statistics.state(),
            "version": self._played_version,
        }

    def save(self) -> LoopState:
        state: LoopState = self._collector.loop_state()
        return replace(state, rng_states=(get_rng_states(self._agent),))

    def load(self, loop_state: LoopState) -> None:
        self._turn = None
        self._collector.restore_loop(loop_state)
        if loop_state.rng_states:
            set_rng_states(self._agent, loop_state.rng_states[0])
        elif self._plan.number:
            state = loop_state.generators["torch_generator"]
            torch.manual_seed(_derive_seed(state, (self._plan.number,)))

    def close(self) -> None:
        if self._collector is not None:
            self._collector.close()


def _parts(collector: RolloutCollector, name: str) -> list[Any]:
    parts = SpaceLayout(collector.state_space).flatten(getattr(collector, name))
    return [part.detach().numpy() for part in parts]


def reseed(agent: Any, state: bytes, path: Sequence[int]) -> None:
    """Reseed torch's and the agent's generators for a collector number and restart count."""
    torch.set_rng_state(byte_tensor(state))
    if not any(path):
        return
    torch.manual_seed(_derive_seed(state, path))
    fork = RngFork(path)
    for generator in _iter_generators(agent):
        if isinstance(generator, torch.Generator):
            generator.manual_seed(_derive_seed(_get_state(generator), path))
        else:
            _set_state(generator, _get_state(fork(generator)))


def get_rng_states(agent: Any) -> bytes:
    """Return the states of torch's global generator and the agent's generators."""
    own = map(_get_state, _iter_generators(agent))
    return dumps_plain([torch.get_rng_state().numpy().tobytes(), *own])


def set_rng_states(agent: Any, rng_states: bytes) -> None:
    shared, *own = loads_plain(rng_states, trusted=False)
    generators = list(_iter_generators(agent))
    if len(own) != len(generators):
        raise ValueError(
            f"state: expected {counted(len(generators), 'agent generator')}, as many as this agent "
            f"has, got {len(own)}"
        )
    torch.set_rng_state(byte_tensor(shared))
    for generator, state in zip(generators, own, strict=True):
        _set_state(generator, state)


def _get_state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state(legacy=False)


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(byte_tensor(state) if isinstance(state, bytes) else state)


def _iter_generators(agent: Any) -> Iterator[Any]:
    """Yield the generators of the agent and its parts."""
    queue = deque(agent.modules() if isinstance(agent, torch.nn.Module) else [agent])
    seen: dict[int, Any] = {}
    while queue:
        value = queue.popleft()
        if id(value) in seen or isinstance(value, _WITHOUT_GENERATORS):
            continue
        seen[id(value)] = value
        if isinstance(value, _GENERATORS):
            yield value
        else:
            if isinstance(value, Space):
                _ = value.np_random  # the space creates it on first use
            queue.extend(getattr(value, "__dict__", {}).values())
            queue.extend(part for _, part in parts_of(value))


def _derive_seed(state: bytes, path: Sequence[int]) -> int:
    digest = hashlib.sha256(state + repr(tuple(path)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
