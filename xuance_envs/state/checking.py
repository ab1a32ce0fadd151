"""Test of whether an environment can be saved exactly."""

from __future__ import annotations

import copy
import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from xuance_envs._deprecated import deprecated_aliases
from xuance_envs.errors import StateError
from xuance_envs.state.checkpointer import EnvCheckpointer
from xuance_envs.state.faults import FaultError, to_state_error
from xuance_envs.state.recorders import record

__all__ = ["check_saving", "describe_difference"]

__getattr__ = deprecated_aliases(__name__, difference="describe_difference")


def check_saving(env_fn: Callable[[], Any], *, steps: int = 200, seed: int = 0) -> list[str]:
    """Check that an environment continues exactly from a saved state.

    One environment takes random actions, is saved, and takes more. The state is loaded into a
    second environment with a different history, which then takes the same actions. All
    observations, rewards, flags and infos must be bitwise identical, including those of resets.

    Args:
        env_fn: creates the environment; called twice.
        steps: number of steps before saving, and again after it.
        seed: seed of the first reset and of the actions.

    Returns:
        Names and types of the resources that are not saved and stay with each environment, such as
        windows, locks and open files.

    Raises:
        StateError: the environment cannot be saved, or continues differently; names the first
            difference.
        StateMismatchError: the two environments differ in something that a state cannot restore.

    Example:
        >>> import gymnasium, random
        >>> from xuance_envs import StateError, check_saving
        >>> check_saving(lambda: gymnasium.make("Acrobot-v1"))
        []
        >>> class Noisy(gymnasium.ObservationWrapper):
        ...     def observation(self, observation):
        ...         return observation * (1 + random.random())
        >>> try:
        ...     check_saving(lambda: Noisy(gymnasium.make("CartPole-v1")))
        ... except StateError as error:
        ...     print(error.reason.partition(":")[0])
        in step 1 after saving, the observation differs
    """
    env, twin = env_fn(), env_fn()
    try:
        for each in (env, twin):
            record(each)
        space = copy.deepcopy(env.action_space)
        space.seed(seed)
        actions = [space.sample() for _ in range(2 * steps)]
        env.reset(seed=seed)
        twin.reset(seed=seed + 1)
        _run_steps(env, actions[:steps])
        _run_steps(twin, actions[: steps // 2])
        try:
            source = EnvCheckpointer(env)
            data = source.save()
            expected = _run_steps(env, actions[steps:])
            EnvCheckpointer(twin).prepare(data, trusted=True).apply()
        except FaultError as fault:
            raise to_state_error(0, fault, "check_saving") from None
        found = _run_steps(twin, actions[steps:])
        _compare(expected, found)
        return source.saved_plan.resources
    finally:
        for each in (env, twin):
            each.close()


_Transcript = list[tuple[str, int, Any]]


def _run_steps(env: Any, actions: list[Any]) -> _Transcript:
    """Return everything that some steps and resets return, with names and step numbers."""
    seen: _Transcript = []
    names = "observation", "reward", "terminated", "truncated", "info"
    for number, action in enumerate(actions, 1):
        result = env.step(copy.deepcopy(action))
        seen += [(f"the {n}", number, _detached(v)) for n, v in zip(names, result, strict=True)]
        if result[2] or result[3]:
            observation, info = env.reset()
            seen.append(("the observation of a reset", number, _detached(observation)))
            seen.append(("the info of a reset", number, _detached(info)))
    return seen


def _detached(value: Any) -> Any:
    return copy.deepcopy(np.asarray(value) if hasattr(value, "__array__") else value)


def _compare(expected: _Transcript, found: _Transcript) -> None:
    for (what, number, one), (also, _, other) in zip(expected, found, strict=False):
        if what != also or (where := describe_difference(one, other)) is not None:
            where = where if what == also else ""
            raise StateError(
                0,
                "check_saving",
                f"in step {number} after saving, {what} differs{where}: expected "
                f"{_abbreviated(one)} as without saving, got {_abbreviated(other)} from the saved "
                "state. It depends on something outside the environment's attributes, such as the "
                "generators of random and numpy.random, module variables, or files",
            )


def _abbreviated(value: Any) -> str:
    text = repr(value).replace("\n", "")
    return text if len(text) < 200 else f"{text[:160]}... (crc {zlib.crc32(text.encode()):08x})"


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def describe_difference(one: Any, other: Any) -> str | None:
    """Describe where two values differ; None if they are bitwise identical.

    Args:
        one: first value.
        other: second value.

    Returns:
        Text that follows a name, such as ``" at ['x'] in its length (1, 2)"``; empty if the values
        differ as a whole.
    """
    return _difference(one, other, set())


def describe_info_difference(one: dict[Any, Any], other: dict[Any, Any]) -> str | None:
    """Describe where two infos differ, except in the wall-clock time of an episode.

    Args:
        one: first info.
        other: second info.

    Returns:
        The text of :func:`describe_difference`; None if the infos are bitwise identical.
    """
    return describe_difference(_without_clock(one), _without_clock(other))


def _without_clock(info: Any) -> Any:
    episode = info.get("episode") if isinstance(info, dict) else None
    if not isinstance(episode, dict) or "t" not in episode:
        return info
    return {**info, "episode": {key: value for key, value in episode.items() if key != "t"}}


def _difference(one: Any, other: Any, compared: set[tuple[int, int]]) -> str | None:
    if one is other:
        return None
    if type(one) is not type(other):
        return f" in its type ({type(one).__name__}, {type(other).__name__})"
    if isinstance(one, np.ndarray | np.generic):
        same = one.dtype == other.dtype and one.shape == other.shape
        if same and one.dtype.hasobject:
            return _difference(one.tolist(), other.tolist(), compared)
        return None if same and one.tobytes() == other.tobytes() else ""
    if isinstance(one, dict):
        if list(one) != list(other):
            return f" in its keys ({list(one)}, {list(other)})"
        pairs = ((f"[{key!r}]", one[key], other[key]) for key in one)
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            return f" in its length ({len(one)}, {len(other)})"
        pairs = ((f"[{k}]", a, b) for k, (a, b) in enumerate(zip(one, other, strict=True)))
    elif isinstance(one, float):
        return None if one.hex() == other.hex() else ""
    elif isinstance(one, set | frozenset):
        return None if one == other else ""
    elif hasattr(one, "__array__"):  # such as a tensor, whose repr may be incomplete
        return _difference(np.asarray(one), np.asarray(other), compared)
    elif not _has_equality(one) and (state := _state_of(one)) is not None:
        pairs = ((name, a, b) for name, a, b in [("", state, _state_of(other))])
    else:
        reprs = [_ADDRESS.sub("", repr(each)) for each in (one, other)]
        return None if reprs[0] == reprs[1] or one == other else ""
    if (id(one), id(other)) in compared:
        return None
    compared.add((id(one), id(other)))
    for key, a, b in pairs:
        if (where := _difference(a, b, compared)) is not None:
            return (
                f" at {key}{where.removeprefix(' at ')}"
                if where.startswith(" at")
                else f" at {key}{where}"
            )
    return None


def _has_equality(obj: Any) -> bool:
    equality: Any = type(obj).__eq__
    return equality is not object.__eq__


def _state_of(obj: Any) -> Any:
    """Return what an object's class pickles of it; None if it cannot be pickled."""
    try:
        return obj.__reduce_ex__(2)[1:]
    except Exception:
        return None
