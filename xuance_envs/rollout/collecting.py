"""A collector in an actor of its own: environments, a copy of the agent, and what they are asked.

What it answers is a value, or an error that says where it was. Nothing here knows what brings it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium import Space

from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.engine.ray.messages import HOW_CODE_COMES
from xuance_envs.engine.serialization import loads, pack_error
from xuance_envs.errors import EnvError, WorkerDiedError, WorkerTimeoutError
from xuance_envs.rollout.collector import RolloutCollector
from xuance_envs.rollout.saved import SavedLoop
from xuance_envs.state.pickling import dumps_plain, loads_plain
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["STACKED", "CollectingActor", "CollectorPlan", "noise_of", "reseed", "set_noise"]

STACKED = ("actions", "rewards", "values", "log_probs", "done_flags", "trunc_flags")
"""The results of a rollout that have a row for each step, besides the states."""


@dataclass(frozen=True)
class CollectorPlan:
    """What a collector is made from.

    Attributes:
        number: which of the collectors it is.
        first: index of its first environment.
        num_envs: how many it has.
        env_fns: what makes its environments, pickled.
        seeds: of their first resets; None for none.
        processes: how many it has for them; with one and no limit, they are in its own.
        step_timeout: seconds each process has for a step; None for any time.
        start_timeout: seconds each has to make its environments; likewise.
        agent: the agent, pickled.
        weights: the agent's state dict, pickled, where it has changed since; None otherwise.
        random_state: the caller's state of torch's generator.
        lives: how many collectors there have been in its place.
        options: further arguments of its ``RolloutCollector``.
    """

    number: int
    first: int
    num_envs: int
    env_fns: bytes
    seeds: list[int | None] | None
    processes: int
    step_timeout: float | None
    start_timeout: float | None
    agent: bytes
    weights: bytes | None
    random_state: bytes
    lives: int
    options: Mapping[str, Any]

    @property
    def in_processes(self) -> bool:
        """Whether its environments are in processes of their own, as a limit on time needs them."""
        return self.processes > 1 or self.step_timeout is not None


class CollectingActor:
    """Plays rollouts.

    Args:
        plan: what it is made from.
    """

    def __init__(self, plan: CollectorPlan) -> None:
        self._plan = plan
        self._collector: RolloutCollector | None = None
        self._turn: int | None = None

    def build(self) -> tuple[bool, Any]:
        """Makes the environments and the agent, once.

        Returns:
            Whether that went well; then the spaces of one environment, of observations and of
            actions, and the parts of the first states; else the error, pickled.
        """
        return self._tried(self._built)

    def rollout(self, turn: int) -> tuple[bool, Any]:
        """Plays a rollout; the same one again is not played again, but told again.

        Args:
            turn: its number.

        Returns:
            Whether that went well; then what came of it, else the error, pickled.
        """
        return self._tried(lambda: self._played(turn))

    def update(self, weights: bytes) -> tuple[bool, Any]:
        """Gives the agent other weights, between two rollouts; likewise."""
        return self._tried(lambda: self._agent.load_state_dict(loads(weights)))

    def save(self) -> tuple[bool, Any]:
        """Tells the :class:`~xuance_envs.rollout.saved.SavedLoop` there is; likewise."""
        return self._tried(self._saved)

    def load(self, saved: SavedLoop) -> tuple[bool, Any]:
        """Goes on from one; likewise.

        Args:
            saved: of its environments; without noise, collector 0 goes on with the generator of
                torch that is in it, and others with one derived from it.
        """
        return self._tried(lambda: self._loaded(saved))

    def close(self) -> None:
        """Closes the environments."""
        if self._collector is not None:
            self._collector.close()

    def _tried(self, work: Callable[[], Any]) -> tuple[bool, Any]:
        try:
            return True, work()
        except Exception as error:
            return False, pack_error(self._told(error))

    def _told(self, error: Exception) -> Exception:
        """The same error by the environments' indices among those of all collectors."""
        plan = self._plan
        if isinstance(error, EnvError) and error.env_index >= 0:
            env = plan.first + error.env_index
            reason = f"{error.reason} (in collector {plan.number} on {self._where()})"
            told = type(error)(env, error.command, reason, *error.args[3:])
            told.__cause__ = error.__cause__
            return told
        if type(error) is RuntimeError:  # such as that spaces differ
            where = f"in collector {plan.number} on {self._where()}"
            return RuntimeError(f"{error} ({where}, whose environments count from {plan.first} on)")
        if isinstance(error, WorkerDiedError | WorkerTimeoutError):
            error.env_indices = tuple(plan.first + env for env in error.env_indices)
            error.env_index = None if error.env_index is None else plan.first + error.env_index
            where = f"It was in collector {plan.number} on {self._where()}."
            error.details = f"{error.details}\n{where}".lstrip()
        return error

    def _where(self) -> str:
        """Its machine, in words."""
        return "this machine"

    def _built(self) -> tuple[Any, Any, list[Any]]:
        if self._collector is None:
            plan = self._plan
            self._agent = self._here(plan.agent, "the agent")
            if plan.weights is not None:
                self._agent.load_state_dict(loads(plan.weights))
            vec_env = self._made(self._here(plan.env_fns, "what makes the environments"))
            try:
                self._collector = RolloutCollector(
                    vec_env, self._agent, seed=plan.seeds, device="cpu", **plan.options
                )
            except BaseException:
                vec_env.close()
                raise
            reseed(self._agent, plan.random_state, (plan.number, plan.lives))
        collector = self._collector
        states = _parts(collector.state_space, collector.t_states)
        return collector.state_space, collector.action_space, states

    def _here(self, packed: bytes, what: str) -> Any:
        """What was sent.

        Raises:
            ImportError: its code is not here.
        """
        try:
            return loads(packed)
        except (ImportError, AttributeError) as error:
            raise ImportError(
                f"{type(error).__name__}: {error}. {what[0].upper()}{what[1:]} could not be loaded "
                f"in collector {self._plan.number} on {self._where()}: the code has to be there, "
                f"{HOW_CODE_COMES}"
            ) from error

    def _made(self, functions: Sequence[Callable[..., Any]]) -> VecEnv:
        plan = self._plan
        if not plan.in_processes:
            return DummyVecEnv(functions, copy=False)
        return SubprocVecEnv(
            functions,
            in_series=-(-len(functions) // plan.processes),
            copy=False,
            step_timeout=plan.step_timeout,
            start_timeout=plan.start_timeout,
        )

    def _playing(self) -> RolloutCollector:
        """The collector, which has been built."""
        assert self._collector is not None
        return self._collector

    def _played(self, turn: int) -> dict[str, Any]:
        collector = self._playing()
        if turn != self._turn:
            self._turn = None
            collector.rollout()
            self._turn = turn
        masks = collector.action_masks
        states = ("states", "t_states", "end_states")
        return {
            **{name: getattr(collector, name).numpy() for name in STACKED},
            **{name: _parts(collector.state_space, getattr(collector, name)) for name in states},
            "action_masks": None if masks is None else masks.numpy(),
            "ep_counts": collector.ep_counts.numpy(),
            "statistics": collector.statistics.state(),
        }

    def _saved(self) -> SavedLoop:
        return replace(self._playing().saved(), noise=(noise_of(self._agent),))

    def _loaded(self, saved: SavedLoop) -> None:
        self._turn = None
        self._playing().load_saved(saved)
        if saved.noise:
            set_noise(self._agent, saved.noise[0])
        elif self._plan.number:
            state = saved.generators["torch_generator"]
            torch.manual_seed(_derived(state, (self._plan.number,)))


def _parts(space: Space[Any], states: Any) -> list[Any]:
    layout = SpaceLayout(space)
    found = [states] if layout.flat else layout.flatten(states)
    return [part.detach().numpy() for part in found]


def reseed(agent: Any, state: bytes, path: Sequence[int]) -> None:
    """Gives this process's generator, and those of an agent, noise of their own.

    Args:
        agent: whose generators those of torch and NumPy among its attributes are.
        state: of the generator of torch that all begin from.
        path: what tells this process from the others. Zeros go on with what there is.
    """
    begun = torch.frombuffer(bytearray(state), dtype=torch.uint8)
    torch.set_rng_state(begun)
    if not any(path):
        return
    torch.manual_seed(_derived(state, path))
    for generator in _generators_of(agent):
        if isinstance(generator, torch.Generator):
            own = generator.get_state().numpy().tobytes()
            generator.manual_seed(_derived(own, path))
        else:
            bits = generator.bit_generator
            bits.state = type(bits)(_derived(repr(bits.state).encode(), path)).state


def noise_of(agent: Any) -> bytes:
    """The states of this process's generator, and of those of an agent."""
    own = [
        generator.get_state().numpy().tobytes()
        if isinstance(generator, torch.Generator)
        else generator.bit_generator.state
        for generator in _generators_of(agent)
    ]
    return dumps_plain([torch.get_rng_state().numpy().tobytes(), *own])


def set_noise(agent: Any, noise: bytes) -> None:
    """Puts them back.

    Args:
        agent: whose generators.
        noise: what :func:`noise_of` gave.

    Raises:
        ValueError: the agent holds another number of generators.
    """
    shared, *own = loads_plain(noise, trusted=False)
    generators = list(_generators_of(agent))
    if len(own) != len(generators):
        raise ValueError(
            f"state: expected one of an agent with {len(generators)} generators, as this one, "
            f"got {len(own)}"
        )
    torch.set_rng_state(torch.frombuffer(bytearray(shared), dtype=torch.uint8))
    for generator, state in zip(generators, own, strict=True):
        if isinstance(generator, torch.Generator):
            generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        else:
            generator.bit_generator.state = state


def _generators_of(agent: Any) -> Iterator[Any]:
    holders = agent.modules() if isinstance(agent, torch.nn.Module) else [agent]
    for holder in holders:
        for value in getattr(holder, "__dict__", {}).values():
            if isinstance(value, torch.Generator | np.random.Generator):
                yield value


def _derived(state: bytes, path: Sequence[int]) -> int:
    digest = hashlib.sha256(state + repr(tuple(path)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
