"""The agents of an environment, with their spaces and groups."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from xuance_envs.engine.data.space_layout import BadValueError, SpaceLayout, describe

MASK = "action_mask"
"""Key of an agent's action mask in observations and infos."""

Groups = Mapping[str, Sequence[Any]]
"""Agents of each group, by the group's name."""


@dataclass(frozen=True)
class Group:
    """Agents with equal spaces."""

    name: str
    agents: tuple[Any, ...]
    places: tuple[int, ...]
    observation_space: Space[Any]
    action_space: Space[Any]
    mask: int | None


@dataclass(frozen=True)
class Team:
    """The agents of an environment."""

    agents: tuple[Any, ...]
    observation_spaces: tuple[Space[Any], ...]
    action_spaces: tuple[Space[Any], ...]
    groups: tuple[Group, ...]
    is_one: bool
    state_space: Space[Any] | None
    infos_by_agent: bool
    reward_space: spaces.Box | None = None

    def __repr__(self) -> str:
        groups = ", ".join(
            f"{group.name}: {list(group.agents)} with observations {group.observation_space} and "
            f"actions {group.action_space}"
            for group in self.groups
        )
        state = "" if self.state_space is None else f"; state {self.state_space}"
        rewards = "" if self.reward_space is None else f"; rewards {self.reward_space}"
        return f"<{groups}{state}{rewards}>"


def build_team(
    agents: Sequence[Hashable],
    observation_spaces: Mapping[Any, Space[Any]],
    action_spaces: Mapping[Any, Space[Any]],
    state_space: Space[Any] | None,
    groups: Groups | None,
    masks: bool | str,
    infos_by_agent: bool,
    reward_space: spaces.Box | None = None,
) -> Team:
    """Validate the agents' spaces and assign the agents to groups."""
    if not agents:
        raise BadValueError("expected at least one agent in possible_agents, got none")
    if len(set(agents)) != len(agents):
        raise BadValueError(f"expected each agent once in possible_agents, got {list(agents)}")
    for agent in agents:
        _check(f"agent {agent!r}: its observation space", observation_spaces[agent])
        _check(f"agent {agent!r}: its action space", action_spaces[agent])
    if state_space is not None:
        _check("its state space", state_space)
    if groups is None:
        named = _by_spaces(agents, observation_spaces, action_spaces)
    else:
        named = _by_given_groups(groups, agents, observation_spaces, action_spaces)
    place = {agent: i for i, agent in enumerate(agents)}
    return Team(
        tuple(agents),
        tuple(observation_spaces[agent] for agent in agents),
        tuple(action_spaces[agent] for agent in agents),
        tuple(
            Group(
                name,
                tuple(members),
                tuple(place[agent] for agent in members),
                observation_spaces[members[0]],
                action_spaces[members[0]],
                mask_size(action_spaces[members[0]]) if masks else None,
            )
            for name, members in named.items()
        ),
        groups is None and len(named) == 1,
        state_space,
        infos_by_agent,
        reward_space,
    )


def common_reward_space(env: Any, agents: Sequence[Any]) -> spaces.Box | None:
    """Return the space of the agents' vector rewards, from ``reward_spaces``; None for numbers."""
    given = getattr(env, "reward_spaces", None)
    if given is None:  # conversions of PettingZoo hide it
        given = getattr(getattr(env, "unwrapped", None), "reward_spaces", None)
    if not isinstance(given, Mapping):
        return None
    found = [given.get(agent) for agent in agents]
    shapes = {getattr(space, "shape", None) for space in found}
    first = found[0]
    if len(shapes) == 1 and isinstance(first, spaces.Box) and len(first.shape) == 1:
        return first
    if any(isinstance(space, spaces.Box) and space.shape for space in found):
        raise BadValueError(
            "reward_spaces: expected a Box of the same shape (k,) for each agent, got "
            f"{dict(zip(agents, found, strict=True))}"
        )
    return None


def agent_list(agents: Any) -> list[Any]:
    """Convert an environment's ``agents``, which may be a NumPy array, to a list."""
    try:
        return agents.tolist() if isinstance(agents, np.ndarray) else list(agents)
    except TypeError:
        raise BadValueError(
            f"expected agents to be a list of the active agents, got {describe(agents)}"
        ) from None


def mask_size(space: Space[Any]) -> int | None:
    """Return the length of an action mask of the space; None for spaces without masks."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return None


def _check(what: str, space: Any) -> None:
    if not isinstance(space, Space):
        raise BadValueError(f"{what}: expected a gymnasium.Space, got {space!r}")
    for leaf in SpaceLayout(space).leaves:
        if leaf.dtype is None:
            raise BadValueError(
                f"{what}: expected Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple "
                f"of these, got {leaf.space}" + (f" at {leaf.path}" if leaf.path else "")
            )


def _by_spaces(
    agents: Sequence[Any],
    observation_spaces: Mapping[Any, Space[Any]],
    action_spaces: Mapping[Any, Space[Any]],
) -> dict[str, list[Any]]:
    groups: list[list[Any]] = []
    for agent in agents:
        for group in groups:
            if _is_alike(agent, group[0], observation_spaces, action_spaces):
                group.append(agent)
                break
        else:
            groups.append([agent])
    named: dict[str, list[Any]] = {}
    for members in groups:
        stem = str(members[0]).rstrip("0123456789").rstrip("_-") or str(members[0])
        name = stem if stem not in named else str(members[0])
        named[name] = members
    return named


def _by_given_groups(
    groups: Groups,
    agents: Sequence[Any],
    observation_spaces: Mapping[Any, Space[Any]],
    action_spaces: Mapping[Any, Space[Any]],
) -> dict[str, list[Any]]:
    grouped_agents = [agent for members in groups.values() for agent in members]
    if (
        len(grouped_agents) != len(agents)
        or set(grouped_agents) != set(agents)
        or not all(groups.values())
    ):
        raise BadValueError(
            f"groups: expected each of the agents {list(agents)} in exactly one group, and no "
            f"empty group, got { {name: list(members) for name, members in groups.items()} }"
        )
    named = {name: sorted(members, key=agents.index) for name, members in groups.items()}
    for name, members in named.items():
        for agent in members:
            if not _is_alike(agent, members[0], observation_spaces, action_spaces):
                raise BadValueError(
                    f"groups: expected agents with equal spaces in group {name!r}, but those of "
                    f"{members[0]!r} and {agent!r} differ"
                )
    return named


def _is_alike(
    one: Any,
    other: Any,
    observation_spaces: Mapping[Any, Space[Any]],
    action_spaces: Mapping[Any, Space[Any]],
) -> bool:
    return bool(
        observation_spaces[one] == observation_spaces[other]
        and action_spaces[one] == action_spaces[other]
    )
