"""Request messages of the protocol, with their fields and bounds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from xuance_envs.remote.wire.bounds import TooManyNodesError
from xuance_envs.remote.wire.constants import MAX_SEED
from xuance_envs.remote.wire.failures import RefusedError
from xuance_envs.remote.wire.formats import WireFormat, loads
from xuance_envs.remote.wire.nodes import WireError, shortened

MAX_ENVS = 100_000
MAX_ID = 64
MAX_INLINE_BODY = 1024  # maximum bytes of a body that serves as its own digest
MAX_FIELDS = 20  # checked before validation, because pydantic reports every invalid field
MAX_NAMES = 1000  # keyword arguments, options or positional arguments per request


def _at_most(length: int, is_item: Callable[[Any], bool] | None = None) -> BeforeValidator:
    """Return a validator that stops at the first error; pydantic would collect all of them."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict):
            if len(value) > length:
                raise ValueError(f"expected at most {length} items, got {len(value)}")
            if is_item is not None and isinstance(value, list):
                for index, item in enumerate(value):
                    if not is_item(item):
                        raise ValueError(f"item {index} is invalid: {shortened(item)}")
            if isinstance(value, dict) and not all(type(key) is str for key in value):
                raise ValueError("expected strings as keys")
        return value

    return BeforeValidator(check)


Id = Annotated[str, Field(max_length=MAX_ID)]
Number = Annotated[int, Field(ge=1, le=2**53)]
Seed = Annotated[int, Field(ge=0, lt=MAX_SEED)]
EpisodeIds = Annotated[
    list[Id] | None,
    Field(
        min_length=1,
        max_length=MAX_ENVS,
        description="ids of episodes that one request created; null for all episodes",
    ),
    _at_most(MAX_ENVS, lambda item: type(item) is str and len(item) <= MAX_ID),
]
Seeds = Annotated[
    Seed | list[Seed | None] | None,
    _at_most(MAX_ENVS, lambda item: item is None or (type(item) is int and 0 <= item < MAX_SEED)),
]
StateNumbers = Annotated[
    list[Number], _at_most(MAX_ENVS, lambda item: type(item) is int and 1 <= item <= 2**53)
]
Values = Annotated[list[Any], _at_most(MAX_ENVS)]
Arguments = Annotated[list[Any], _at_most(MAX_NAMES)]
Named = Annotated[dict[str, Any], _at_most(MAX_NAMES)]


class RequestModel(BaseModel):
    """Base of all requests: values are not converted, and unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class CreateSession(RequestModel):
    """Open a session, which belongs to the token."""

    share_frames: bool = Field(
        False, description="whether the status page may show the last rendered frame"
    )
    nonce: Annotated[str, Field(min_length=16, max_length=MAX_ID)] | None = Field(
        None,
        description="random text chosen by the client. A repeated request with the same nonce "
        "returns the session that is already open",
    )


class SessionRequestModel(RequestModel):
    """Base of requests within a session."""

    session_id: Id
    sequence: Number | None = Field(
        None,
        description="a number larger than in the session's previous requests. If the client "
        "repeats its last request with the same number, the server only repeats the reply",
    )


class CreateEpisodes(SessionRequestModel):
    """Create environments, each with one episode at a time."""

    env_id: str | None = Field(
        None, max_length=200, description="null if the server offers only one environment id"
    )
    num_envs: Annotated[int, Field(ge=1, le=MAX_ENVS)] = 1
    seed: Seed | None = Field(None, description="environment i is seeded with seed + i")
    kwargs: Named = Field({}, description="keyword arguments that the operator allows")
    auto_reset: bool = Field(
        False,
        description="true: a request steps all environments once and resets those whose episode "
        "ends. false: each environment repeats its action and stops when its episode ends",
    )
    num_workers: Annotated[int, Field(ge=1, le=MAX_ENVS)] = Field(
        1, description="processes that step the environments in parallel; the operator limits them"
    )


class Reset(SessionRequestModel):
    """Start new episodes."""

    episode_ids: EpisodeIds = None
    seed: Seeds = Field(
        None, description="an int seeds environment i with seed + i; a list has a seed per episode"
    )
    options: Named | None = None


class Step(SessionRequestModel):
    """Step environments, each with its own action."""

    episode_ids: EpisodeIds = None
    actions: Any = Field(description="one action per episode, as a batch of the action space")
    steps: Annotated[int, Field(ge=1, le=2**31)] = Field(
        1, description="maximum repetitions of each action; 1 with auto_reset"
    )
    layout: Annotated[int, Field(ge=0, le=2**53)] | None = Field(
        None,
        description="only for replies in msgpack: number of the last frame layout that the client "
        "has received, or 0. With this field, the reply is a frame if all its values are numbers "
        "or arrays",
    )


class Statistics(SessionRequestModel):
    """Return step times of environments, even while a step runs."""

    episode_ids: EpisodeIds = None


class States(SessionRequestModel):
    """Save environment states on the server, load them into environments, clone or drop them."""

    operation: Literal["save", "load", "clone", "drop"]
    episode_ids: EpisodeIds = Field(
        None,
        description="episodes to save, to load states into, or to overwrite with clones; null for "
        "all episodes",
    )
    states: StateNumbers = Field(
        [], description="for load, one state number per episode; for drop, any state numbers"
    )
    sources: EpisodeIds = Field(
        None, description="for clone: episodes to copy, one for all targets or one per target"
    )
    fork_rng: bool = Field(
        False, description="for clone: whether each copy continues with its own random streams"
    )


class Call(SessionRequestModel):
    """Call a method, get or set an attribute, render, or get action masks.

    After the first ``action_masks``, replies to steps and resets contain action masks.
    """

    episode_ids: EpisodeIds = None
    operation: Literal["call", "get_attr", "set_attr", "render", "action_masks"]
    name: str = Field("", max_length=200, description="name of the method or attribute")
    args: Arguments = []
    kwargs: Named = {}
    values: Values = Field([], description="for set_attr: one value per episode")
    mode: str | None = Field(None, max_length=200, description="for render: the render mode")


M = TypeVar("M", bound=RequestModel)


def decode(model: type[M], wire_format: WireFormat, max_nodes: int, body: bytes) -> tuple[M, bytes]:
    """Return the message in a body, and a digest that identifies it."""
    digest = body if len(body) <= MAX_INLINE_BODY else hashlib.blake2b(body).digest()
    try:
        node = loads(body, wire_format, max_nodes)
        if isinstance(node, dict) and len(node) > MAX_FIELDS:
            expected = f"expected only the fields {', '.join(model.model_fields)}"
            raise RefusedError(422, "invalid", f"{expected}, got {len(node)} fields")
        return model.__pydantic_validator__.validate_python(node), digest  # model_validate calls it
    except TooManyNodesError as error:
        raise RefusedError(413, "nodes", str(error)) from None
    except WireError as error:
        raise RefusedError(400, "malformed", str(error)) from None
    except ValidationError as error:
        raise RefusedError(422, "invalid", _faults(error)) from None


def _faults(error: ValidationError) -> str:
    """Describe validation errors without repeating the client's input."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    descriptions = [
        f"{'.'.join(str(part)[:40] for part in fault['loc']) or 'message'}: {fault['msg']}"
        for fault in faults[:5]
    ]
    return ascii("; ".join(descriptions))[1:-1][:1000]
