"""The requests of the protocol: what each may have, and within what bounds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from xuance_envs.remote.wire.protocol import MAX_SEED

__all__ = ["Call", "CreateEpisodes", "CreateSession", "Request", "Reset", "SessionRequest", "Step"]

MAX_ENVS = 100_000

EpisodeIds = Annotated[
    list[Annotated[int, Field(ge=0, le=2**53)]] | None,
    Field(
        min_length=1,
        max_length=MAX_ENVS,
        description="which episodes, all created by one request; null for all there are",
    ),
]
Seed = Annotated[int, Field(ge=0, lt=MAX_SEED)]
Sequence = Annotated[
    int | None,
    Field(
        ge=1,
        le=2**53,
        description="a number larger than that of the session's requests before. The last request "
        "repeated with its number is answered with its first answer, and not done again",
    ),
]


class Request(BaseModel):
    """What every request has in common: nothing is converted, and nothing else is taken."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class CreateSession(Request):
    """Opens a session, which belongs to the token."""

    share_frames: bool = Field(
        False, description="whether the status page may show what was rendered last"
    )


class SessionRequest(Request):
    """A request within a session."""

    session_id: Annotated[str, Field(max_length=64)]
    sequence: Sequence = None


class CreateEpisodes(SessionRequest):
    """Makes environments, each with one episode at a time."""

    env_id: str | None = Field(None, max_length=200, description="null for the only one served")
    num_envs: Annotated[int, Field(ge=1, le=MAX_ENVS)] = 1
    seed: Seed | None = Field(None, description="of the first; the others' are counted up")
    kwargs: dict[str, Any] = Field({}, description="keyword arguments the operator allows")
    auto_reset: bool = Field(
        False,
        description="true: all are stepped together, once, and one whose episode ends is reset in "
        "the same step. False: each repeats its action and stops when its episode ends",
    )


class Reset(SessionRequest):
    """Starts new episodes."""

    episode_ids: EpisodeIds = None
    seed: Seed | list[Seed | None] | None = Field(
        None, description="an int is counted up by the environment's place; a list has one each"
    )
    options: dict[str, Any] | None = None


class Step(SessionRequest):
    """Steps environments with one action each."""

    episode_ids: EpisodeIds = None
    actions: Any = Field(description="a batch of actions, as the action space has it")
    steps: Annotated[int, Field(ge=1, le=2**31)] = Field(
        1, description="how often each action is repeated at most; 1 with auto_reset"
    )


class Statistics(SessionRequest):
    """How long the steps of environments take; answered at any time, also during a step."""

    episode_ids: EpisodeIds = None


class Call(SessionRequest):
    """Calls a method, reads or sets an attribute, renders, or asks for masks of actions.

    Masks of actions then come with the answers to later steps and resets, too.
    """

    episode_ids: EpisodeIds = None
    operation: Literal["call", "get_attr", "set_attr", "render", "action_masks"]
    name: str = Field("", max_length=200, description="of the method or attribute")
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    values: list[Any] = Field([], description="one per episode, for set_attr")
    mode: str | None = Field(None, max_length=200, description="for render")
