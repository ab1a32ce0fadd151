"""Results of multi-agent steps, and their conversion from records."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xuance_envs._deprecated import warn_renamed
from xuance_envs.engine.data.space_layout import map_batch
from xuance_envs.engine.data.step_arrays import as_float32
from xuance_envs.engine.data.step_infos import EpisodeEnds, StepInfos
from xuance_envs.multi_agent.infos import MultiAgentInfos
from xuance_envs.multi_agent.record_layout import RecordLayout
from xuance_envs.vector_envs.options import AutoBool

__all__ = ["MultiAgentStart", "MultiAgentStep", "StepReader"]


class MultiAgentStart(NamedTuple):
    """Policy inputs for the next actions in k environments with A agents each.

    Attributes:
        env_ids: ``(k,)`` int: indices of the environments.
        obs: ``(k, A, *shape)`` in the space's dtype, or a dict of such arrays by group, as in
            :class:`MultiAgentStep`. In the result of :meth:`MultiAgentStep.next`, an agent
            that ended while its episode continues has its last observation.
        alive: ``(k, A)`` bool: agents that act next.
        state: ``(k, *state_shape)`` in the dtype of ``state_space``; None if environments have no
            state.
        action_masks: ``(k, A, m)`` bool, as in :class:`MultiAgentStep`; None if there are no masks.
        infos: sequence of k dicts, as in :class:`MultiAgentStep`.

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
    action_masks: Any
    infos: MultiAgentInfos

    def __repr__(self) -> str:
        return _summary(self)

    @property
    def action_mask(self) -> Any:
        """Deprecated name of ``action_masks``."""
        warn_renamed("action_mask", "action_masks")
        return self.action_masks


class MultiAgentStep(NamedTuple):
    """Results of a step of k environments with A agents each.

    In the step in which an agent ends, its row has its last observation, last reward and flags.
    Afterwards, its rows are zeros without flags; in XuanCe environments, they are the values that
    the environment returns. If an episode ended, the environment has been reset: ``first``
    describes the start of the next episode, all other fields the ended one.

    Attributes:
        obs: ``(k, A, *shape)`` in the space's dtype, with agents in the order of
            ``possible_agents``. A dict ``{group: (k, A_group, *shape)}`` if agents have different
            spaces or ``groups`` was given. Dicts and tuples of arrays for Dict and Tuple spaces.
        rewards: ``(k, A)`` float32, even with groups; ``(k, A, n)`` for vector rewards of n
            components.
        terminated: ``(k, A)`` bool: agents that the environment terminated in this step. See
            :meth:`ends` for agents that ended without a flag.
        truncated: ``(k, A)`` bool: agents that were truncated in this step.
        acted: ``(k, A)`` bool: agents that were active in this step. Learn only from their rows.
        alive: ``(k, A)`` bool: agents that act in the next step of the episode, if it goes on.
        episode_over: ``(k,)`` bool: whether the episode ended for all agents.
        state: ``(k, *state_shape)`` in the dtype of ``state_space``: states of the environments;
            None if they have none.
        action_masks: ``(k, A, m)`` bool for m actions, or a dict by group: actions allowed next;
            all True for agents without a mask. If the episode ended, the masks belong to its final
            state. For MultiDiscrete, m is ``sum(nvec)``: the masks of the components, concatenated.
            None if masks are not returned; see ``action_masks`` of ``MultiAgentVecEnv``.
        infos: sequence of k dicts, each built on first access. For PettingZoo environments, a dict
            of infos by agent; for XuanCe environments, the environment's info.
        first: start of the next episode in each environment whose episode ended, or None.
        env_ids: ``(k,)`` int: indices of the environments. They are ascending after ``step`` and
            ``recv``; otherwise in the order of the ids that were given.

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
    action_masks: Any
    infos: MultiAgentInfos
    first: MultiAgentStart | None
    env_ids: NDArray[np.intp]

    def __repr__(self) -> str:
        return _summary(self)

    @property
    def action_mask(self) -> Any:
        """Deprecated name of ``action_masks``."""
        warn_renamed("action_mask", "action_masks")
        return self.action_masks

    def ends(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return ``(terminated, truncated)``, including agents that ended without a flag.

        An agent has ended if it acted and is no longer alive. It counts as terminated unless it is
        flagged as truncated.
        """
        unflagged = self.acted & ~(self.alive | self.truncated)
        return self.terminated | unflagged, self.truncated

    def next(self) -> MultiAgentStart:
        """Return the inputs for the next actions in all k environments.

        These are the step's own values, or the values of ``first`` for environments whose episode
        ended.
        """
        current = MultiAgentStart(
            self.env_ids, self.obs, self.alive, self.state, self.action_masks, self.infos
        )
        first = self.first
        if first is None:
            return current
        rows = self.env_ids.searchsorted(first.env_ids)

        def replaced(array: Any, part: Any) -> Any:
            if array is None:
                return None
            array = array.copy()
            array[rows] = part
            return array

        obs, alive, state, masks = map_batch(replaced, current[1:5], first[1:5])
        infos = self.infos.replaced(rows, first.infos)
        return MultiAgentStart(self.env_ids, obs, alive, state, masks, infos)


def _summary(result: MultiAgentStart | MultiAgentStep) -> str:
    """Return a result's ``repr``: shapes and dtypes instead of values."""
    fields = zip(result._fields, map(_short, result), strict=True)
    return f"{type(result).__name__}({', '.join(f'{name}={text}' for name, text in fields)})"


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_short(part)}" for key, part in value.items()) + "}"
    if value is None or isinstance(value, MultiAgentStart):
        return repr(value)
    return f"<{len(value)} {'dicts' if isinstance(value, MultiAgentInfos) else 'values'}>"


class StepReader:
    """Reader that converts records to step results."""

    def __init__(self, record: RecordLayout, num_envs: int, action_masks: AutoBool) -> None:
        self._record = record
        self._team = record.team
        self._shows_masks = bool(action_masks)
        # With "auto": environments whose first reset was not read yet; None after the decision.
        self._unread = np.ones(num_envs, np.bool_) if action_masks == "auto" else None
        self.alive = np.zeros((num_envs, len(record.team.agents)), np.bool_)
        # Latest rewards, one row per environment; and agents that acted, or XuanCe's agent masks.
        self.rewards: NDArray[np.float64] = np.zeros(num_envs, record.dtype)["rewards"]
        self._mask = self.alive.copy()

    @property
    def agent_mask(self) -> NDArray[np.bool_]:
        """Mask ``(num_envs, A)`` of active agents: see :attr:`MultiAgentVecEnv.agent_mask`."""
        mask = self._mask
        if not self._team.infos_by_agent:
            return mask
        return np.where(mask.any(axis=1, keepdims=True), mask, self.alive)  # none acts in a reset

    def start(
        self, records: NDArray[np.uint8], infos: StepInfos, envs: NDArray[np.intp] | None
    ) -> MultiAgentStep:
        """Read records after a reset or restore of ``envs``; None for all environments."""
        return self._read(records, np.zeros(len(records), np.bool_), infos, None, envs)

    def step(
        self,
        records: NDArray[np.uint8],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        infos: StepInfos,
        envs: NDArray[np.intp] | None = None,
    ) -> MultiAgentStep:
        """Read the results of a step; ``truncated`` marks environments whose worker failed."""
        over, ends = terminated, infos.ends
        if ends is not None and truncated.any():
            over, records = terminated | truncated, records.copy()
            batch = self._record.structured(records)
            batch["truncated"][truncated] = batch["alive"][truncated]  # the agents of the episode
            for name in ("rewards", "terminated", "acted", "alive"):
                batch[name][truncated] = 0
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
        alive, acted, rewards = batch["alive"], batch["acted"], batch["rewards"]
        # Copies, because the user may change the records, and later steps overwrite views.
        shown = acted.copy(), alive.copy()
        mask = shown[0] if self._team.infos_by_agent else batch["agent_mask"]
        if envs is None:
            envs = np.arange(len(batch))
            self.alive[...] = alive
            self.rewards, self._mask = rewards, mask
        else:
            self.alive[envs] = alive
            self.rewards, self._mask = self.rewards.copy(), self._mask.copy()
            self.rewards[envs], self._mask[envs] = rewards, mask
        if self._unread is not None:
            any_mask = bool((batch["gives_masks"] & self._unread[envs]).any())
            self._unread[envs] = False
            if any_mask or not self._unread.any():
                self._shows_masks, self._unread = any_mask, None
        return MultiAgentStep(
            record.observations(batch),
            as_float32(rewards),
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
        alive = self.alive[envs] = batch["alive"].copy()
        return MultiAgentStart(
            envs,
            self._record.observations(batch),
            batch["alive"],
            self._record.states(batch),
            self._record.masks(batch) if self._shows_masks else None,
            MultiAgentInfos(StepInfos(reset_infos, envs.copy()), self._team, alive, alive),
        )
