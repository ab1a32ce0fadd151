"""Infos of multi-agent environments: merged into one dict in workers, split by agent on access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import BadValueError
from xuance_envs.engine.data.step_infos import LazyInfos, StepInfos
from xuance_envs.multi_agent.team import Team

_RESET_KEYS = ("reset_obs", "reset_info")


@dataclass(eq=False, repr=False)
class MultiAgentInfos(LazyInfos):
    """Infos of one step: one dict per environment, built on first access.

    For PettingZoo environments, ``infos[i]`` is ``{agent: {...}}`` with an entry for each agent
    that acted (after a reset, for each active agent). Infos that belong to no agent, such as all
    infos of XuanCe environments, are in ``infos[i]`` unchanged. Action masks are only in the step's
    ``action_masks``. Repeated access returns the same dict, and ``infos[i] = {...}`` replaces it.
    """

    _infos: StepInfos
    _team: Team
    _acted: NDArray[np.bool_]
    _alive: NDArray[np.bool_]
    _built: dict[int, dict[Any, Any]] = field(default_factory=dict)
    _replaced: tuple[NDArray[np.intp], MultiAgentInfos] | None = None

    @property
    def are_empty(self) -> bool:
        """True if no environment returned any info."""
        batch, _ = self._infos.parts
        return not batch.rest and not any(layout.keys for layout in batch.layouts)

    def column(self, *path: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return ``(values, mask)``. ``path`` is an agent and a key, or a key without agent."""
        if len(path) == 1 and isinstance(path[0], tuple):
            (path,) = path
        place, agents = -1, self._team.agents
        if len(path) != 1:
            agent, _ = path
            if agent not in agents:
                raise KeyError(f"no agent {agent!r}: expected one of {list(agents)}")
            place = agents.index(agent)
        values, mask = self._infos.column(merged_key(place, path[-1]))
        if place < 0 and not mask.any():
            # Keys that the engine adds, such as "worker_restarted", have no colon.
            values, mask = self._infos.column(path[0])
        if self._replaced is None:
            return values, mask
        rows, others = self._replaced
        mask = mask.copy()
        mask[rows] = False
        columns = [(values, mask), others.column(path)]
        order = np.arange(len(mask))
        order[rows] = len(mask) + np.arange(len(rows))
        joined = np.concatenate([mask for _, mask in columns])
        return np.concatenate(_alike(columns))[order], joined[order]

    def columns(self, key: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return ``(values, mask)`` of a key in k environments: ``(k, A, *shape)``, ``(k, A)``."""
        found = [self.column(agent, key) for agent in self._team.agents]
        return np.stack(_alike(found), axis=1), np.stack([mask for _, mask in found], axis=1)

    def replaced(self, rows: NDArray[np.intp], others: MultiAgentInfos) -> MultiAgentInfos:
        """Return a copy with ``others`` as the infos at positions ``rows``."""
        built = {**self._built, **dict(zip(rows.tolist(), others, strict=True))}
        return replace(self, _built=built, _replaced=(rows, others))

    def __len__(self) -> int:
        return len(self._infos)

    def __iter__(self) -> Iterator[dict[Any, Any]]:
        list(self._infos)  # building them together is faster
        return (self[i] for i in range(len(self)))

    def _build(self, position: int) -> dict[Any, Any]:
        acted, alive = self._acted[position], self._alive[position]
        return infos_by_agent(self._infos[position], self._team, acted if acted.any() else alive)


def _alike(columns: Sequence[tuple[NDArray[Any], NDArray[np.bool_]]]) -> list[NDArray[Any]]:
    """Convert the columns' values to a common dtype and shape, ignoring columns without values."""
    given = [values for values, mask in columns if mask.any()] or [columns[0][0]]
    if any([values.shape[1:] != given[0].shape[1:] for values in given]):
        return [np.fromiter(values, object, len(values)) for values, _ in columns]
    shape, dtype = given[0].shape[1:], np.result_type(*given)
    return [
        values.astype(dtype) if mask.any() else np.zeros((len(values), *shape), dtype)
        for values, mask in columns
    ]


def infos_by_agent(
    info: Mapping[Any, Any], team: Team, present: NDArray[np.bool_]
) -> dict[Any, Any]:
    """Split a merged info by agent: restore the info that the environment returned."""
    by_agent: dict[Any, Any] = {}
    if team.infos_by_agent:
        by_agent = {agent: {} for agent in compress(team.agents, present)}
    for name, value in info.items():
        place, key = _split_key(name)
        if place >= 0:
            by_agent.setdefault(team.agents[place], {})[key] = value
        elif key not in _RESET_KEYS:
            by_agent[key] = value
    return by_agent


def merged_key(place: int, key: Any) -> Any:
    """Return the merged key of an info entry of the agent at ``place``; -1 means no agent."""
    return _merged_name(place, key) if isinstance(key, str) else (place, key)


@lru_cache(16_384)  # only for strings: other equal keys differ, such as 1 and True
def _merged_name(place: int, key: str) -> str:
    return f"{'' if place < 0 else place}:{str.__str__(key)}"  # an enum formats itself differently


def shared_info_key(key: Any) -> Any:
    """Return the key, in the merged infos, of an entry that belongs to no agent."""
    if key in _RESET_KEYS:
        raise BadValueError(
            f"info key {key!r} is reserved for the start of the next episode: rename it in the "
            "environment"
        )
    return f":{key}" if type(key) is str else merged_key(-1, key)


def original_info_key(name: Any) -> Any:
    """Return the key in the environment's info for a key of the merged info."""
    return _split_key(name)[1]


def _split_key(name: Any) -> tuple[int, Any]:
    """Split a merged key into place and key; the place is -1 for keys that belong to no agent."""
    if isinstance(name, tuple):
        return name[0], name[1]
    place, colon, key = name.partition(":")
    return (int(place or -1), key) if colon else (-1, name)
