"""Tells what went wrong in an environment."""

from __future__ import annotations

from typing import Any

from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.serialization import told, traceback_of
from xuance_envs.errors import EnvError

__all__ = ["failure_of"]


def failure_of(env: int, command: str, error: BaseException, *returned: Any) -> EnvError:
    """The error to raise for what an environment raised, or for what it returned.

    Args:
        env: its index in the vector environment.
        command: what it was asked for.
        error: what was raised, by it or over what it returned.
        *returned: what it returned, if it did.
    """
    own_frame = error.__traceback__ is not None and error.__traceback__.tb_next is None
    if isinstance(error, BadValueError):
        reason = str(error)
    elif command == "step" and own_frame and returned:
        reason = _why_not_a_step(*returned) or told(error)
    else:
        reason = told(error)
    return EnvError(env, command, reason, traceback_of(error))


def _why_not_a_step(result: Any) -> str | None:
    if isinstance(result, tuple) and len(result) == 5:
        return None
    reason = (
        "step: expected a tuple (observation, reward, terminated, truncated, info), "
        f"got {describe(result)}"
    )
    if isinstance(result, tuple) and len(result) == 4:
        reason += "; Gym_Env(..., library='gym') adapts environments of the older gym"
    return reason
