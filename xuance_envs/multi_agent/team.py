"""The agents of an environment, with their spaces and groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from xuance_envs.engine.data.mask_layout import mask_width
from xuance_envs.engine.data.space_layout import BadValueError, SpaceLayout, describe

MASK = "action_mask"  # key of an agent's action mask in observations and infos

Groups = Mapping[str, Sequence[Any]]  # agents of each group, by the group's name


@dataclass(frozen=True)
class Group:
    """Agents with equal spaces."""

    name: str
    agents: tuple[Any, ...]
    places: tuple[int, ...]
    observation_space: Space[Any]
    action_space: Space[Any]
    mask: int | None

    @property
    def observes_mask(self) -> bool:
        """True if the agents' masks are part of their observations."""
        space = self.observation_space
        return isinstance(space, spaces.Dict) and MASK in space.spaces


@dataclass(frozen=True)
class Team:
    agents: tuple[Any, ...]
    observation_spaces: Mapping[Any, Space[Any]]
    action_spaces: Mapping[Any, Space[Any]]
    groups: tuple[Group, ...]
    is_one: bool
    state_space: Space[Any] | None
    infos_by_agent: bool
    reward_space: spaces.Box | None = None
    leaves: tuple[str, ...] = ()  # paths in order: Dict spaces are equal in any order of their keys

    def __repr__(self) -> str:
        groups = ", ".join(
            f"{group.name}: {list(group.agents)} with observations {group.observation_space} and "
            f"actions {group.action_space}"
            for group in self.groups
        )
        state = "" if self.state_space is None else f"; state {self.state_space}"
        rewards = "" if self.reward_space is None else f"; rewards {self.reward_space}"
        # The fingerprints of saved states have this text, and records depend on the masks.
        masks = [group.mask for group in self.groups]
        unmasked = masks != [mask_width(group.action_space) for group in self.groups]
        return f"<{groups}{state}{rewards}{'; no action masks' if unmasked else ''}>"


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
    leaves: list[str] = []
    for agent in agents:
        for kind, given in (("observation", observation_spaces), ("action", action_spaces)):
            leaves += _checked_leaves(f"agent {agent!r}: its {kind} space", given[agent])
    if state_space is not None:
        leaves += _checked_leaves("its state space", state_space)
    spaces_of = {agent: (observation_spaces[agent], action_spaces[agent]) for agent in agents}
    named = _by_spaces(spaces_of) if groups is None else _by_given_groups(groups, spaces_of)
    place = {agent: i for i, agent in enumerate(agents)}
    built = []
    for name, members in named.items():
        observation_space, action_space = spaces_of[members[0]]
        places = tuple(place[agent] for agent in members)
        mask = mask_width(action_space) if masks else None
        built.append(Group(name, tuple(members), places, observation_space, action_space, mask))
    return Team(
        tuple(agents),
        {agent: observation_spaces[agent] for agent in agents},
        {agent: action_spaces[agent] for agent in agents},
        tuple(built),
        groups is None and len(named) == 1,
        state_space,
        infos_by_agent,
        reward_space,
        tuple(leaves),
    )


def agent_list(agents: Any) -> list[Any]:
    """Convert an environment's ``agents``, which may be a NumPy array, to a list."""
    try:
        return agents.tolist() if isinstance(agents, np.ndarray) else list(agents)
    except TypeError:
        raise BadValueError(
            f"expected agents to be a list of the active agents, got {describe(agents)}"
        ) from None


def _checked_leaves(what: str, space: Any) -> list[str]:
    """Return the paths of a space's leaves; raise if a record cannot hold one of them."""
    if not isinstance(space, Space):
        raise BadValueError(f"{what}: expected a gymnasium.Space, got {space!r}")
    leaves = SpaceLayout(space).leaves
    for leaf in leaves:
        if leaf.dtype is None:
            raise BadValueError(
                f"{what}: expected Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple "
                f"of these, got {leaf.space}" + (f" at {leaf.path}" if leaf.path else "")
            )
    return [leaf.path for leaf in leaves]


def _by_spaces(spaces_of: Mapping[Any, tuple[Any, Any]]) -> dict[str, list[Any]]:
    """Group agents with equal spaces, each group named after its first agent."""
    named: dict[str, list[Any]] = {}
    for agent, own in spaces_of.items():
        members = next((each for each in named.values() if own == spaces_of[each[0]]), None)
        if members is None:
            first = str(agent)
            stem = first.rstrip("0123456789").rstrip("_-") or first
            names = chain((stem, first), (f"{first}_{k}" for k in count(2)))
            members = named[next(name for name in names if name not in named)] = []
        members.append(agent)
    return named


def _by_given_groups(
    groups: Groups, spaces_of: Mapping[Any, tuple[Any, Any]]
) -> dict[str, list[Any]]:
    agents = list(spaces_of)
    grouped_agents = [agent for members in groups.values() for agent in members]
    if Counter(grouped_agents) != Counter(agents) or not all(groups.values()):
        raise BadValueError(
            f"groups: expected each of the agents {agents} in exactly one group, and no "
            f"empty group, got { {name: list(members) for name, members in groups.items()} }"
        )
    named = {name: sorted(members, key=agents.index) for name, members in groups.items()}
    for name, members in named.items():
        first = members[0]
        for agent in members:
            if spaces_of[agent] != spaces_of[first]:
                raise BadValueError(
                    f"groups: expected agents with equal spaces in group {name!r}, got "
                    f"{spaces_of[first]} for {first!r} and {spaces_of[agent]} for {agent!r}"
                )
    return named
