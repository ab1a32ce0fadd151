"""Spaces in messages: Gymnasium's spaces and the record spaces of multi-agent environments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from xuance_envs.multi_agent.record_layout import ActionRecord, ObservationRecord
from xuance_envs.multi_agent.team import Team, build_team
from xuance_envs.remote.wire.nodes import (
    MAX_DEPTH,
    TaggedArray,
    WireError,
    array_from_wire,
    dtype_from_wire,
    shape_from_wire,
    shortened,
)
from xuance_envs.remote.wire.values import from_wire, to_wire

T = TypeVar("T")
# Encoder from a space to message fields; decoder from message fields and nesting depth.
_Codec = tuple[Callable[[Any], dict[str, Any]], Callable[[Any, int], Space[Any]]]

_BOUNDED = "bounded_below", "bounded_above"  # attributes of Box
MAX_SPACE_ELEMENTS = 2**28  # even a small message could declare more


def space_to_wire(space: Space[Any]) -> dict[str, Any]:
    kind = type(space)
    if kind in _SPACES:
        return {"type": kind.__name__, **_SPACES[kind][0](space)}
    raise WireError(
        f"cannot send a space of type {kind.__name__}: expected one of the spaces {_NAMES}"
    )


def space_from_wire(node: Any, depth: int = 0) -> Space[Any]:
    if depth > MAX_DEPTH:
        raise WireError(f"expected spaces nested at most {MAX_DEPTH} levels deep, got more levels")
    name = node.get("type") if isinstance(node, dict) else None
    for kind, (_, decode) in _SPACES.items():
        if name == kind.__name__:
            try:
                return decode(node, depth + 1)
            except WireError:
                raise
            except KeyError as error:
                raise WireError(f"{name}: missing field {error}") from None
            except Exception as error:  # any error of the space's constructor
                raise WireError(f"{name}: {error}") from None
    raise WireError(f"expected one of the space types {_NAMES}, got {shortened(name)}")


def reward_space_from_wire(answer: Mapping[str, Any]) -> spaces.Box | None:
    """Decode the reward space, which replies contain only if rewards are vectors."""
    if "reward_space" not in answer:
        return None
    space = space_from_wire(answer["reward_space"])
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise WireError(f"expected a reward_space of shape (k,), got {space}")
    return space


def _box_to_wire(space: spaces.Box) -> dict[str, Any]:
    names = ["low", "high"]
    if space.low.dtype.kind in "iu" and not all(getattr(space, name).all() for name in _BOUNDED):
        names += _BOUNDED  # an integer bound does not show that it stands for infinity
    bounds = {name: _bound_to_wire(getattr(space, name)) for name in names}
    return {**bounds, "dtype": _dtype_to_wire(space), "shape": list(space.shape)}


def _box_from_wire(node: Any, depth: int) -> spaces.Box:
    dtype, shape = dtype_from_wire(node["dtype"]), _limited_shape(node["shape"])
    low, high = (_bound_from_wire(node[name], dtype, shape) for name in ("low", "high"))
    space = spaces.Box(low, high, shape, dtype.type)
    for name in _BOUNDED:
        if name in node:
            setattr(space, name, _bound_from_wire(node[name], np.dtype(np.bool_), shape))
    return space


def _bound_to_wire(bound: NDArray[Any]) -> Any:
    """Encode a bound, as one number if all its elements are equal."""
    if bound.size and bound.tobytes() == np.full_like(bound, bound.flat[0]).tobytes():
        bound = np.array(bound.flat[0])
    return TaggedArray(bound)


def _bound_from_wire(node: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if isinstance(node, dict) and node.get("shape") == []:
        return np.full(shape, array_from_wire(node, dtype, ()))
    return array_from_wire(node, dtype, shape)


def _dtype_to_wire(space: Space[Any]) -> str:
    return dtype_from_wire(np.dtype(space.dtype).name).name  # raises if messages cannot contain it


def _limited_shape(node: Any) -> tuple[int, ...]:
    shape = shape_from_wire(node)
    if math.prod(shape) > MAX_SPACE_ELEMENTS:
        raise WireError(f"expected at most {MAX_SPACE_ELEMENTS} elements, got the shape {shape}")
    return shape


def _discrete_to_wire(space: spaces.Discrete) -> dict[str, Any]:
    return {"n": int(space.n), "start": int(space.start), "dtype": _dtype_to_wire(space)}


def _discrete_from_wire(node: Any, depth: int) -> spaces.Discrete:
    n, start, dtype = _field(node, "n", int), _field(node, "start", int), node["dtype"]
    space = spaces.Discrete(n, start=start)
    if (wanted := dtype_from_wire(dtype)) != space.dtype:  # older Gymnasium has no dtype argument
        space = spaces.Discrete(n, start=start, dtype=wanted.type)
    return space


def _multi_discrete_to_wire(space: spaces.MultiDiscrete) -> dict[str, Any]:
    form = {"dtype": _dtype_to_wire(space), "shape": list(space.shape)}
    nvec, start = (TaggedArray(np.asarray(part, np.int64)) for part in (space.nvec, space.start))
    return {"nvec": nvec, "start": start, **form}


def _multi_discrete_from_wire(node: Any, depth: int) -> spaces.MultiDiscrete:
    dtype, shape = dtype_from_wire(node["dtype"]), _limited_shape(node["shape"])
    int64 = np.dtype(np.int64)
    nvec, start = (array_from_wire(node[name], int64, shape) for name in ("nvec", "start"))
    return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)


def _multi_binary_from_wire(node: Any, depth: int) -> spaces.MultiBinary:
    n = node["n"]
    shape = _limited_shape(n if isinstance(n, list) else [n])
    return spaces.MultiBinary(shape if isinstance(n, list) else n)


def _dict_from_wire(node: Any, depth: int) -> spaces.Dict:
    pairs = _field(node, "spaces", list)
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise WireError(f"Dict: expected [key, space] pairs, got {shortened(pair)}")
    # Pairs, because Gymnasium sorts a dict by its keys.
    return spaces.Dict([(from_wire(key), space_from_wire(inner, depth)) for key, inner in pairs])


def _optional_to_wire(space: Space[Any] | None) -> dict[str, Any] | None:
    return None if space is None else space_to_wire(space)


def _optional_from_wire(node: Any, depth: int) -> Space[Any] | None:
    return None if node is None else space_from_wire(node, depth)


def _compound(kind: Callable[[Any], Space[Any]]) -> _Codec:
    return (
        lambda space: {"spaces": [space_to_wire(inner) for inner in space.spaces]},
        lambda node, depth: kind(
            [space_from_wire(inner, depth) for inner in _field(node, "spaces", list)]
        ),
    )


def _record_to_wire(space: ObservationRecord | ActionRecord) -> dict[str, Any]:
    team = space.team
    groups = [[group.name, list(group.places)] for group in team.groups]
    return {
        "agents": [to_wire(agent) for agent in team.agents],
        "observation_spaces": [space_to_wire(each) for each in team.observation_spaces.values()],
        "action_spaces": [space_to_wire(each) for each in team.action_spaces.values()],
        "groups": None if team.is_one else groups,
        "masks": any(group.mask is not None for group in team.groups),
        "state_space": _optional_to_wire(team.state_space),
        "infos_by_agent": team.infos_by_agent,
        **({} if team.reward_space is None else {"reward_space": space_to_wire(team.reward_space)}),
    }


def _team_from_wire(node: Any, depth: int) -> Team:
    agents, groups = [from_wire(agent) for agent in node["agents"]], node["groups"]
    observations, actions = (
        dict(zip(agents, [space_from_wire(each, depth) for each in node[name]], strict=True))
        for name in ("observation_spaces", "action_spaces")
    )
    return build_team(
        agents,
        observations,
        actions,
        _optional_from_wire(node["state_space"], depth),
        None if groups is None else {name: [agents[i] for i in at] for name, at in groups},
        bool(node["masks"]),
        bool(node["infos_by_agent"]),
        reward_space_from_wire(node),
    )


_SPACES: dict[type, _Codec] = {
    spaces.Box: (_box_to_wire, _box_from_wire),
    spaces.Discrete: (_discrete_to_wire, _discrete_from_wire),
    spaces.MultiDiscrete: (_multi_discrete_to_wire, _multi_discrete_from_wire),
    spaces.MultiBinary: (lambda space: {"n": np.array(space.n).tolist()}, _multi_binary_from_wire),
    spaces.Text: (
        lambda space: {
            "min_length": space.min_length,
            "max_length": space.max_length,
            "charset": space.characters,
        },
        lambda node, depth: spaces.Text(
            _field(node, "max_length", int),
            min_length=_field(node, "min_length", int),
            charset=_field(node, "charset", str),
        ),
    ),
    spaces.Dict: (
        lambda space: {"spaces": [[to_wire(k), space_to_wire(v)] for k, v in space.items()]},
        _dict_from_wire,
    ),
    spaces.Tuple: _compound(spaces.Tuple),
    spaces.OneOf: _compound(spaces.OneOf),
    spaces.Sequence: (
        lambda space: {"space": space_to_wire(space.feature_space), "stack": bool(space.stack)},
        lambda node, depth: spaces.Sequence(
            space_from_wire(node["space"], depth), stack=_field(node, "stack", bool)
        ),
    ),
    spaces.Graph: (
        lambda space: {
            "nodes": space_to_wire(space.node_space),
            "edges": _optional_to_wire(space.edge_space),
        },
        lambda node, depth: spaces.Graph(
            space_from_wire(node["nodes"], depth), _optional_from_wire(node["edges"], depth)
        ),
    ),
    ObservationRecord: (
        _record_to_wire,
        lambda node, depth: ObservationRecord(_team_from_wire(node, depth)),
    ),
    ActionRecord: (_record_to_wire, lambda node, depth: ActionRecord(_team_from_wire(node, depth))),
}
_NAMES = ", ".join(kind.__name__ for kind in _SPACES)


def _field(node: Any, name: str, kind: type[T]) -> T:
    value = node[name]
    if type(value) is not kind:
        expected = f"{node['type']}: expected {name} of type {kind.__name__}"
        raise WireError(f"{expected}, got {shortened(value)}")
    return value
