"""What a step of many agents returns, and how it is read out of records."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.step_arrays import as_float32
from xuance_envs.engine.data.step_infos import EpisodeEnds, StepInfos
from xuance_envs.multi_agent.infos import MultiAgentInfos
from xuance_envs.multi_agent.record_layout import RecordLayout

__all__ = ["MultiAgentStart", "MultiAgentStep", "StepReader"]


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


class StepReader:
    """Reads what comes of commands out of records.

    Args:
        record: how these are laid out.
        num_envs: how many environments there are.
        action_mask: whether masks are shown: True, False, or ``"auto"`` for those of environments
            that have given one when they are first reset.

    Attributes:
        every: the environments.
        alive: ``(num_envs, A)`` bool: whose actions come next.
    """

    def __init__(self, record: RecordLayout, num_envs: int, action_mask: bool | str) -> None:
        self._record = record
        self._team = record.team
        self._shows_masks: bool | None = None if action_mask == "auto" else bool(action_mask)
        shape = num_envs, len(record.team.agents)
        self.every = np.arange(num_envs)
        self.alive = np.zeros(shape, np.bool_)
        self._last: NDArray[Any] = np.zeros(num_envs, record.dtype)  # what all showed together

    @property
    def rewards(self) -> NDArray[np.float64]:
        """``(num_envs, A)`` float64, of the last step of all."""
        rewards: NDArray[np.float64] = self._last["rewards"]
        return rewards

    @property
    def agent_mask(self) -> NDArray[np.bool_]:
        """``(num_envs, A)`` bool: who was alive in it, as XuanCe's infos have it."""
        mask: NDArray[np.bool_]
        if not self._team.infos_by_agent:
            mask = self._last["agent_mask"]
        else:
            acted, alive = self._last["acted"], self._last["alive"]
            mask = acted if acted.any() else alive
        return mask

    def start(
        self, records: NDArray[np.uint8], infos: StepInfos, envs: NDArray[np.intp] | None
    ) -> MultiAgentStep:
        """What some environments show that have not been stepped; None stands for all."""
        return self._read(records, np.zeros(len(records), np.bool_), infos, None, envs)

    def step(
        self,
        records: NDArray[np.uint8],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        infos: StepInfos,
        envs: NDArray[np.intp] | None = None,
    ) -> MultiAgentStep:
        """What came of a step.

        Args:
            records: of the environments.
            terminated: where an episode ended.
            truncated: where a worker was lost.
            infos: of the environments.
            envs: which they are; None for all.
        """
        over = terminated
        _, ends = infos.parts
        if ends is not None and truncated.any():
            over = terminated | truncated
            records = self._truncate_failed_envs(records, truncated)
        return self._read(records, over, infos, ends, envs)

    def _read(
        self,
        records: NDArray[np.uint8],
        over: NDArray[np.bool_],
        infos: StepInfos,
        ends: EpisodeEnds | None,
        envs: NDArray[np.intp] | None,
    ) -> MultiAgentStep:
        record = self._record
        batch = record.structured(records)
        alive, acted = batch["alive"], batch["acted"]
        if envs is None:
            envs = self.every
            self.alive[...] = alive
            self._last = batch
        else:
            self.alive[envs] = alive
        if self._shows_masks is None:
            self._shows_masks = bool(batch["gives_masks"].any())
        # Looked at after later steps, infos still show their own.
        shown = (acted, alive) if records.flags.writeable else (acted.copy(), alive.copy())
        return MultiAgentStep(
            record.observations(batch),
            as_float32(batch["rewards"]),
            batch["terminated"],
            batch["truncated"],
            acted,
            alive,
            over,
            record.states(batch),
            record.masks(batch) if self._shows_masks else None,
            MultiAgentInfos(infos, self._team, *shown),
            None if ends is None else self._first(ends),
            envs,
        )

    def _first(self, ends: EpisodeEnds) -> MultiAgentStart:
        envs, reset_infos = ends.resets()
        batch = self._record.structured(np.stack(ends.observations(envs)))
        alive = self.alive[envs] = batch["alive"]
        return MultiAgentStart(
            envs,
            self._record.observations(batch),
            alive,
            self._record.states(batch),
            self._record.masks(batch) if self._shows_masks else None,
            MultiAgentInfos(StepInfos(reset_infos, envs), self._team, alive, alive),
        )

    def _truncate_failed_envs(
        self, records: NDArray[np.uint8], lost: NDArray[np.bool_]
    ) -> NDArray[np.uint8]:
        """A copy in which the agents of environments that lost their worker are cut off.

        What is there is what these acted on.
        """
        records = records.copy()
        batch = self._record.structured(records)
        batch["truncated"][lost] = batch["alive"][lost]
        for name in ("rewards", "terminated", "acted", "alive"):
            batch[name][lost] = 0
        return records
