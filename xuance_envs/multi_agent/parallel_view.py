"""PettingZoo view of one environment of a vectorized environment."""

from __future__ import annotations

from itertools import compress
from operator import itemgetter
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from xuance_envs.engine.data.reward_rows import as_python_values
from xuance_envs.engine.data.space_layout import map_batch
from xuance_envs.extras import missing_extra
from xuance_envs.multi_agent.agent_actions import AgentActions
from xuance_envs.multi_agent.infos import infos_by_agent
from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.multi_agent.team import MASK
from xuance_envs.vector_envs.arguments import is_int

__all__ = ["as_parallel_env"]


def as_parallel_env(envs: MultiAgentVecEnv, index: int = 0) -> Any:
    """Return a PettingZoo parallel environment that controls one environment of ``envs``.

    The view steps only this environment, in its worker, and never resets it automatically. Use the
    view for tests and evaluation. ``envs`` does not track these steps: reset the environment in
    ``envs`` before you step it there again.

    Args:
        envs: the vectorized environment; closing the view does not close it.
        index: index of the environment.

    Raises:
        ImportError: PettingZoo is not installed.
        ValueError: ``index`` is out of range.

    Example:
        >>> from xuance_envs import as_parallel_env, make_multi_agent_vec
        >>> with make_multi_agent_vec("mpe2:simple_spread_v3", 2, backend="dummy") as envs:
        ...     env = as_parallel_env(envs, 1)
        ...     observations, infos = env.reset(seed=0)
        ...     _, rewards, *_ = env.step({agent: 0 for agent in env.agents})
        >>> env.agents, rewards.keys()
        (['agent_0', 'agent_1', 'agent_2'], dict_keys(['agent_0', 'agent_1', 'agent_2']))
    """
    try:
        from pettingzoo import ParallelEnv
    except ImportError as error:
        raise missing_extra("as_parallel_env", "multi-agent", error) from error
    if not (is_int(index) and 0 <= index < envs.num_envs):
        expected = "0" if envs.num_envs == 1 else f"an int from 0 to {envs.num_envs - 1}"
        raise ValueError(f"index: expected {expected}, got {index!r}")
    kind = type("ParallelView", (_ParallelView, ParallelEnv), {})
    return kind(envs, index)


class _ParallelView:
    """Implementation of the view, without PettingZoo's base class."""

    def __init__(self, envs: MultiAgentVecEnv, index: int) -> None:
        self._envs = envs
        self._at = [index]
        self._alive: NDArray[np.bool_] = np.zeros((1, envs.num_agents), np.bool_)
        self._actions = AgentActions(envs.record, self._alive, False)
        self.metadata = {"name": "view", **envs.metadata}
        self.render_mode = envs.render_mode
        self.possible_agents = list(envs.agents)
        self.agents: list[Any] = []
        self.state_space = envs.state_space
        if envs.reward_space is not None:
            self.reward_spaces = dict.fromkeys(envs.agents, envs.reward_space)
        self._state: Any = None

    def observation_space(self, agent: Any) -> Space[Any]:
        return self._envs.observation_space[agent]

    def action_space(self, agent: Any) -> Space[Any]:
        return self._envs.action_space[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[Any, Any], dict[Any, Any]]:
        given = {"seed": seed, "options": options}
        ((flat, info),) = self._envs.call(
            "reset", env_ids=self._at, **{k: v for k, v in given.items() if v is not None}
        )
        return self._take(flat, info)[:2]

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        self._actions.put([actions])
        ((flat, _, _, _, info),) = self._envs.call(
            "step", self._actions.records[0], env_ids=self._at
        )
        observations, infos, batch = self._take(flat, info)
        (acted,) = batch["acted"]
        columns = (batch[name][0] for name in ("rewards", "terminated", "truncated"))
        results = [
            dict(compress(zip(self.possible_agents, as_python_values(each), strict=True), acted))
            for each in columns
        ]
        return observations, *results, infos

    def state(self) -> Any:
        if self.state_space is None:
            raise NotImplementedError(
                "the environment has no state, or was created with state=False"
            )
        return self._state

    def render(self) -> Any:
        return self._envs.render(env_ids=self._at)[0]

    def _take(
        self, flat: NDArray[np.uint8], info: dict[Any, Any]
    ) -> tuple[dict[Any, Any], dict[Any, Any], NDArray[Any]]:
        """Store the view's state; return the observations, the infos and the structured record."""
        record = self._envs.record
        batch = record.structured(np.array(flat)[np.newaxis])
        self._alive[...] = batch["alive"]
        (acted,), (alive,) = batch["acted"], batch["alive"]
        self.agents = list(compress(self.possible_agents, alive))
        states = record.states(batch)
        self._state = None if states is None else map_batch(itemgetter(0), states)
        observed: dict[Any, Any] = {}
        for fields in record.groups:
            parts, layout = fields.observations.parts(batch), fields.observations.layout
            for i, agent in enumerate(fields.group.agents):
                observed[agent] = layout.unflatten([part[0, i] for part in parts])
        shown = compress(self.possible_agents, acted | alive)
        present = acted if acted.any() else alive
        infos = infos_by_agent(info, record.team, present)
        for fields in record.groups if batch["gives_masks"][0] else ():
            group, masks = fields.group, fields.read_masks(batch)
            if masks is not None and not group.observes_mask:
                for agent, place, mask in zip(group.agents, group.places, masks[0], strict=True):
                    if present[place] or (alive[place] and not mask.all()):
                        infos.setdefault(agent, {})[MASK] = mask
        return {agent: observed[agent] for agent in shown}, infos, batch
