"""Errors for exceptions and invalid results of environments."""

from __future__ import annotations

from typing import Any

from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.serialization import describe_error, traceback_of
from xuance_envs.errors import EnvError


def make_env_error(env: int, command: str, error: BaseException, *returned: Any) -> EnvError:
    """Build the error for an exception that an environment raised, or for its invalid result."""
    own_frame = error.__traceback__ is not None and error.__traceback__.tb_next is None
    if isinstance(error, BadValueError):
        reason = str(error)
    elif command == "step" and own_frame and returned:
        reason = _step_format_error(*returned) or describe_error(error)
    else:
        reason = describe_error(error)
    return EnvError(env, command, reason, traceback_of(error))


def _step_format_error(result: Any) -> str | None:
    if isinstance(result, tuple) and len(result) == 5:
        return None
    reason = (
        "step: expected a tuple (observation, reward, terminated, truncated, info), "
        f"got {describe(result)}"
    )
    if isinstance(result, tuple) and len(result) == 4:
        reason += "; use Gym_Env(..., library='gym') for environments of legacy gym"
    return reason
