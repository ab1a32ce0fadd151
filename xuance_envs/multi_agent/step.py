"""What a step of many agents returns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xuance_envs.multi_agent.infos import MultiAgentInfos

__all__ = ["MultiAgentStart", "MultiAgentStep"]


class MultiAgentStart(NamedTuple):
    """What agents act on in k environments.

    Attributes:
        env_ids: ``(k,)`` int: which environments they are.
        obs: ``(k, A, *shape)``, or a dict of such arrays by group; of agents that do not live
            zeros, or the last one of an agent that has just ended.
        alive: ``(k, A)`` bool: who plays.
        state: ``(k, *state_shape)``; None where none is carried.
        action_mask: ``(k, A, n)`` bool, by group where observations are; None where environments
            give none.
        infos: a sequence of k dicts by agent.

    Example:
        >>> from xuance_envs import make_multi_agent_vec
        >>> with make_multi_agent_vec("mpe2:simple_spread_v3", 4, backend="dummy") as envs:
        ...     step = envs.reset(seed=0)
        ...     while step.first is None:
        ...         step = envs.step([{agent: 0 for agent in envs.agents}] * 4)
        >>> step.first.env_ids, step.first.obs.shape, step.next().alive.all()
        (array([0, 1, 2, 3]), (4, 3, 18), np.True_)
    """

    env_ids: NDArray[np.intp]
    obs: Any
    alive: NDArray[np.bool_]
    state: Any
    action_mask: Any
    infos: MultiAgentInfos


class MultiAgentStep(NamedTuple):
    """What came of a step of k environments with A agents each.

    In the step in which an agent ends, its row has its last observation, its last reward and its
    flags; afterwards its rows are zeros with no flags. Where an episode ended, what is here is of
    the episode that ended, and the environment has been reset: ``first`` has the first
    observations of the next one.

    Attributes:
        obs: ``(k, A, *shape)`` in the space's own dtype, of the agents in the order of
            ``possible_agents``. A dict of such arrays by group, ``{group: (k, A_group, *shape)}``,
            where agents have different spaces or groups were told. For Dict and Tuple spaces dicts
            and tuples of arrays.
        rewards: ``(k, A)`` float32.
        terminated: ``(k, A)`` bool: whose part ended in this step.
        truncated: ``(k, A)`` bool: whose part was cut off in this step.
        acted: ``(k, A)`` bool: who lived before the step. Its row is a transition to learn from.
        alive: ``(k, A)`` bool: who plays on.
        episode_over: ``(k,)`` bool: where the episode ended for all.
        state: ``(k, *state_shape)``, the environments' states; None where none is carried.
        action_mask: ``(k, A, n)`` bool, which actions may be taken next, by group where
            observations are; all of them for an agent without a mask. None where environments give
            none.
        infos: a sequence of k dicts by agent, each built when it is looked at.
        first: what the next episodes start from, where one ended; None where none did.
        env_ids: ``(k,)`` int, ascending: which environments they are.

    Example:
        >>> from xuance_envs import make_multi_agent_vec
        >>> with make_multi_agent_vec("mpe2:simple_spread_v3", 4, backend="dummy") as envs:
        ...     _ = envs.reset(seed=0)
        ...     step = envs.step([{agent: 0 for agent in envs.agents}] * 4)
        >>> step.obs.shape, step.acted[0], step.episode_over
        ((4, 3, 18), array([ True,  True,  True]), array([False, False, False, False]))
    """

    obs: Any
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    acted: NDArray[np.bool_]
    alive: NDArray[np.bool_]
    episode_over: NDArray[np.bool_]
    state: Any
    action_mask: Any
    infos: MultiAgentInfos
    first: MultiAgentStart | None
    env_ids: NDArray[np.intp]

    def next(self) -> MultiAgentStart:
        """What the agents of these environments act on next.

        It is what the step has, and where an episode ended what ``first`` has.
        """
        here = MultiAgentStart(
            self.env_ids, self.obs, self.alive, self.state, self.action_mask, self.infos
        )
        first = self.first
        if first is None:
            return here
        rows = self.env_ids.searchsorted(first.env_ids)
        infos = self.infos.replaced(rows, first.infos)
        obs, alive, state, mask = [
            _replaced(mine, rows, its) for mine, its in zip(here[1:5], first[1:5], strict=True)
        ]
        return MultiAgentStart(self.env_ids, obs, alive, state, mask, infos)


def _replaced(whole: Any, rows: NDArray[np.intp], part: Any) -> Any:
    """A copy of a batch, with some of its rows replaced."""
    if whole is None:
        return None
    if isinstance(whole, dict):
        return {key: _replaced(value, rows, part[key]) for key, value in whole.items()}
    if isinstance(whole, tuple):
        return tuple(_replaced(a, rows, b) for a, b in zip(whole, part, strict=True))
    copy = whole.copy()
    copy[rows] = part
    return copy
