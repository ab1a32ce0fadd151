"""The requests of the protocol: what each may have, and within what bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from xuance_envs.remote.failures import RefusedError
from xuance_envs.remote.wire.constants import MAX_SEED
from xuance_envs.remote.wire.nodes import shortened

__all__ = [
    "Call",
    "CreateEpisodes",
    "CreateSession",
    "RequestModel",
    "Reset",
    "SessionRequestModel",
    "States",
    "Statistics",
    "Step",
    "message_of",
]

MAX_ENVS = 100_000
MAX_ID = 64
MAX_FIELDS = 20
"""The most fields of a message that are looked at: pydantic collects the faults of all."""

MAX_NAMES = 1000
"""The most keyword arguments, options or arguments of one request."""


def _at_most(length: int, is_item: Callable[[Any], bool] | None = None) -> BeforeValidator:
    """Ends at the first thing wrong with a list or dict: pydantic collects the faults of all."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict):
            if len(value) > length:
                raise ValueError(f"expected at most {length}, got {len(value)}")
            if is_item is not None and isinstance(value, list):
                for place, item in enumerate(value):
                    if not is_item(item):
                        raise ValueError(f"expected a valid item at {place}, got {shortened(item)}")
            if isinstance(value, dict) and not all(type(key) is str for key in value):
                raise ValueError("expected strings as keys")
        return value

    return BeforeValidator(check)


def _is_id(item: Any) -> bool:
    return type(item) is str and len(item) <= MAX_ID


def _is_seed(item: Any) -> bool:
    return item is None or (type(item) is int and 0 <= item < MAX_SEED)


def _is_number(item: Any) -> bool:
    return type(item) is int and 1 <= item <= 2**53


EpisodeIds = Annotated[
    list[Annotated[str, Field(max_length=MAX_ID)]] | None,
    Field(
        min_length=1,
        max_length=MAX_ENVS,
        description="which episodes, all created by one request; null for all there are",
    ),
    _at_most(MAX_ENVS, _is_id),
]
Seed = Annotated[int, Field(ge=0, lt=MAX_SEED)]
Seeds = Annotated[Seed | list[Seed | None] | None, _at_most(MAX_ENVS, _is_seed)]
StateNumbers = Annotated[
    list[Annotated[int, Field(ge=1, le=2**53)]], _at_most(MAX_ENVS, _is_number)
]
Values = Annotated[list[Any], _at_most(MAX_ENVS)]
Arguments = Annotated[list[Any], _at_most(MAX_NAMES)]
Named = Annotated[dict[str, Any], _at_most(MAX_NAMES)]
Sequence = Annotated[
    int | None,
    Field(
        ge=1,
        le=2**53,
        description="a number larger than that of the session's requests before. The last request "
        "repeated with its number is answered with its first answer, and not done again",
    ),
]


class RequestModel(BaseModel):
    """What every request has in common: nothing is converted, and nothing else is taken."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class CreateSession(RequestModel):
    """Opens a session, which belongs to the token."""

    share_frames: bool = Field(
        False, description="whether the status page may show what was rendered last"
    )
    nonce: Annotated[
        str | None,
        Field(
            min_length=16,
            max_length=MAX_ID,
            description="any text of the client's own: where an answer was lost, the same again is "
            "answered with the session that was opened",
        ),
    ] = None


class SessionRequestModel(RequestModel):
    """A request within a session."""

    session_id: Annotated[str, Field(max_length=MAX_ID)]
    sequence: Sequence = None


class CreateEpisodes(SessionRequestModel):
    """Makes environments, each with one episode at a time."""

    env_id: str | None = Field(None, max_length=200, description="null for the only one served")
    num_envs: Annotated[int, Field(ge=1, le=MAX_ENVS)] = 1
    seed: Seed | None = Field(None, description="of the first; the others' are counted up")
    kwargs: Named = Field({}, description="keyword arguments the operator allows")
    auto_reset: bool = Field(
        False,
        description="true: all are stepped together, once, and one whose episode ends is reset in "
        "the same step. False: each repeats its action and stops when its episode ends",
    )


class Reset(SessionRequestModel):
    """Starts new episodes."""

    episode_ids: EpisodeIds = None
    seed: Seeds = Field(
        None, description="an int is counted up by the environment's place; a list has one each"
    )
    options: Named | None = None


class Step(SessionRequestModel):
    """Steps environments with one action each."""

    episode_ids: EpisodeIds = None
    actions: Any = Field(description="a batch of actions, as the action space has it")
    steps: Annotated[int, Field(ge=1, le=2**31)] = Field(
        1, description="how often each action is repeated at most; 1 with auto_reset"
    )


class Statistics(SessionRequestModel):
    """How long the steps of environments take; answered at any time, also during a step."""

    episode_ids: EpisodeIds = None


class States(SessionRequestModel):
    """Keeps states of environments at the server, puts them into environments, or drops them."""

    operation: Literal["save", "load", "clone", "drop"]
    episode_ids: EpisodeIds = Field(
        None,
        description="whose states are kept, which ones they are put into, or which ones become "
        "like others; null for all there are",
    )
    states: StateNumbers = Field(
        [], description="for load, the number of a state for each episode; for drop, any"
    )
    sources: EpisodeIds = Field(
        None, description="for clone: whom the episodes become like, one for all or one for each"
    )
    fork_rng: bool = Field(
        False, description="for clone: whether each goes on with random streams of its own"
    )


class Call(SessionRequestModel):
    """Calls a method, reads or sets an attribute, renders, or asks for masks of actions.

    Masks of actions then come with the answers to later steps and resets, too.
    """

    episode_ids: EpisodeIds = None
    operation: Literal["call", "get_attr", "set_attr", "render", "action_masks"]
    name: str = Field("", max_length=200, description="of the method or attribute")
    args: Arguments = []
    kwargs: Named = {}
    values: Values = Field([], description="one per episode, for set_attr")
    mode: str | None = Field(None, max_length=200, description="for render")


M = TypeVar("M", bound=RequestModel)


def message_of(model: type[M], node: Any) -> M:
    """A decoded message, checked."""
    if isinstance(node, dict) and len(node) > MAX_FIELDS:
        raise RefusedError(
            422,
            "invalid",
            f"expected no more than the fields {', '.join(model.model_fields)}, got {len(node)}",
        )
    try:
        return model.__pydantic_validator__.validate_python(node)  # type: ignore[no-any-return]  # what model_validate calls
    except ValidationError as error:
        raise RefusedError(422, "invalid", _faults(error)) from None


def _faults(error: ValidationError) -> str:
    """What is wrong with a request, without repeating what it had."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    told = [
        f"{'.'.join(str(part)[:40] for part in fault['loc']) or 'message'}: {fault['msg']}"
        for fault in faults[:5]
    ]
    return ascii("; ".join(told))[1:-1][:1000]
