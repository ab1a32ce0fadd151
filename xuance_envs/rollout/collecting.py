"""A collector in an actor of its own: environments, a copy of the agent, and what they are asked.

What it answers is a value, or an error that says where it was. Nothing here knows what brings it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.engine.serialization import loads, pack_error
from xuance_envs.errors import EnvError, WorkerDiedError, WorkerTimeoutError
from xuance_envs.rollout.collector import RolloutCollector
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["STACKED", "CollectingActor", "CollectorPlan", "reseed"]

STACKED = ("actions", "rewards", "values", "log_probs", "done_flags", "trunc_flags")
"""The results of a rollout that have a row for each step, besides the states."""


@dataclass(frozen=True)
class CollectorPlan:
    """What a collector is made from.

    Attributes:
        number: which of the collectors it is.
        first: index of its first environment.
        env_fns: what makes its environments, pickled.
        seeds: of their first resets; None for none.
        processes: how many it has for them; with one, they are in its own.
        agent: the agent, pickled.
        weights: the agent's state dict, pickled, where it has changed since; None otherwise.
        random_state: the caller's state of torch's generator.
        lives: how many collectors there have been in its place.
        options: further arguments of its ``RolloutCollector``.
    """

    number: int
    first: int
    env_fns: bytes
    seeds: list[int | None] | None
    processes: int
    agent: bytes
    weights: bytes | None
    random_state: bytes
    lives: int
    options: Mapping[str, Any]


class CollectingActor:
    """Plays rollouts.

    Args:
        plan: what it is made from.
    """

    def __init__(self, plan: CollectorPlan) -> None:
        self._plan = plan
        self._collector: RolloutCollector | None = None

    def build(self) -> tuple[bool, Any]:
        """Makes the environments and the agent, once.

        Returns:
            Whether that went well; then the number of environments, else the error, pickled.
        """
        return self._tried(self._built)

    def rollout(self) -> tuple[bool, Any]:
        """Plays a rollout.

        Returns:
            Whether that went well; then what came of it, else the error, pickled.
        """
        return self._tried(self._played)

    def update(self, weights: bytes) -> tuple[bool, Any]:
        """Gives the agent other weights, between two rollouts; likewise."""
        return self._tried(lambda: self._agent.load_state_dict(loads(weights)))

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
        if isinstance(error, EnvError):
            env = plan.first + error.env_index
            reason = f"{error.reason} (in collector {plan.number} on {self._where()})"
            told: Exception = EnvError(env, error.command, reason, error.env_traceback)
            told.__cause__ = error.__cause__
            return told
        if isinstance(error, WorkerDiedError | WorkerTimeoutError):
            error.env_indices = tuple(plan.first + env for env in error.env_indices)
            error.env_index = None if error.env_index is None else plan.first + error.env_index
            where = f"It was in collector {plan.number} on {self._where()}."
            error.details = f"{error.details}\n{where}".lstrip()
        return error

    def _where(self) -> str:
        """Its machine, in words."""
        return "this machine"

    def _built(self) -> int:
        if self._collector is None:
            plan = self._plan
            self._agent = loads(plan.agent)
            if plan.weights is not None:
                self._agent.load_state_dict(loads(plan.weights))
            functions = loads(plan.env_fns)
            vec_env: VecEnv
            if plan.processes == 1:
                vec_env = DummyVecEnv(functions, copy=False)
            else:
                size = -(-len(functions) // plan.processes)
                vec_env = SubprocVecEnv(functions, in_series=size, copy=False)
            try:
                self._collector = RolloutCollector(
                    vec_env, self._agent, seed=plan.seeds, device="cpu", **plan.options
                )
            except BaseException:
                vec_env.close()
                raise
            reseed(self._agent, plan.random_state, (plan.number, plan.lives))
        return self._collector.num_envs

    def _played(self) -> dict[str, Any]:
        collector = self._collector
        assert collector is not None
        collector.rollout()
        layout = SpaceLayout(collector.state_space)

        def parts(states: Any) -> list[Any]:
            found = [states] if layout.flat else layout.flatten(states)
            return [part.detach().numpy() for part in found]

        statistics = collector.statistics
        masks = collector.action_masks
        return {
            **{name: getattr(collector, name).numpy() for name in STACKED},
            "states": parts(collector.states),
            "t_states": parts(collector.t_states),
            "end_states": parts(collector.end_states),
            "action_masks": None if masks is None else masks.numpy(),
            "ep_counts": collector.ep_counts.numpy(),
            "returns": statistics.returns,
            "lengths": statistics.lengths,
            "finished": statistics.ends,
        }


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


def _generators_of(agent: Any) -> Iterator[Any]:
    holders = agent.modules() if isinstance(agent, torch.nn.Module) else [agent]
    for holder in holders:
        for value in getattr(holder, "__dict__", {}).values():
            if isinstance(value, torch.Generator | np.random.Generator):
                yield value


def _derived(state: bytes, path: Sequence[int]) -> int:
    digest = hashlib.sha256(state + repr(tuple(path)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
