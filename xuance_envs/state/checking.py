"""Checks that an environment continues exactly from a saved state."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from xuance_envs._deprecated import deprecated_aliases
from xuance_envs.errors import StateError, counted
from xuance_envs.event_loops import Finisher, finish
from xuance_envs.state.checkpointer import EnvCheckpointer
from xuance_envs.state.faults import FaultError, to_state_error, without_addresses
from xuance_envs.state.recorders import record

__all__ = ["check_saving", "describe_difference"]

__getattr__ = deprecated_aliases(__name__, difference="describe_difference")


def check_saving(env_fn: Callable[[], Any], *, steps: int = 200, seed: int = 0) -> list[str]:
    """Check that an environment continues exactly from a saved state.

    One environment takes random actions and is saved. A second environment with a different history
    loads the state. Both then take the same actions. All observations, rewards, flags and
    infos must be bitwise identical, also after resets. Only the wall-clock time ``episode["t"]``
    may differ.

    Args:
        env_fn: creates the environment; called twice.
        steps: number of steps before saving, and again after it.
        seed: seed of the first reset and of the actions.

    Returns:
        Names and types, as text, of resources that are not saved, such as windows, locks and
        open files.

    Raises:
        StateError: the environment cannot be saved, or the second environment continues
            differently. The error names the first result and the first attribute that differ.
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
    return _check_pair(env_fn(), env_fn(), steps, seed, 0, "check_saving")


VERIFIED_STEPS = 32
"""Steps before saving, and again after it, of :func:`verify_saving`."""


def verify_saving(make: Callable[[], Any], index: int) -> str:
    """Check saving with two new environments; return a warning, or ``""``."""
    made: list[Any] = []
    checking = False
    try:
        made.append(make())
        made.append(make())
        if made[0] is made[1]:
            raise RuntimeError("expected a new environment from each call, got the same object")
        env, twin = made
        checking = True
        _check_pair(env, twin, VERIFIED_STEPS, 0, index, "save_state")  # closes both
    except Exception as error:
        if checking and isinstance(error, StateError):
            raise
        failed = "a new environment failed with random actions"
        if not checking:
            failed = "creating two new environments failed"
            for each in made:
                finish(each.close())
        reason = f"{failed}: {type(error).__name__}: {error}"
        return f"saving environment {index} was not verified: {reason}"
    return ""


def _check_pair(env: Any, twin: Any, steps: int, seed: int, index: int, command: str) -> list[str]:
    """Check that the twin continues like the environment; close both; return the resources."""
    finish_result = Finisher()
    try:
        for each in (env, twin):
            record(each)
        player = _Player(env.action_space, seed, finish_result)
        _, info = player.finish(env.reset(seed=seed))
        _, other_info = player.finish(twin.reset(seed=seed + 1))
        info = player.run(env, info, steps)
        player.run(twin, other_info, steps // 2)
        source, target = EnvCheckpointer(env), EnvCheckpointer(twin)
        try:
            saved, here = source.plan.fingerprint, target.plan.fingerprint
            if saved.digest != here.digest:
                here.check(saved.parts, saved.versions)
            target.prepare(source.save(), trusted=True).apply()
            resources = source.saved_plan.resources
        except FaultError as fault:
            raise to_state_error(index, fault, command) from None
        difference = _compare_continuations(source, target, player, info, steps)
        if difference is not None:
            raise StateError(index, command, difference)
        return resources
    finally:
        for each in (env, twin):
            finish_result(each.close())
        finish_result.stop()


_Transcript = list[tuple[str, Any]]


class _Player:
    """Random player that respects action masks from infos or from an environment's method."""

    def __init__(self, space: Any, seed: int, finish_result: Finisher) -> None:
        self._space = copy.deepcopy(space)
        self._space.seed(seed)
        self.finish = finish_result

    def sample(self, env: Any, info: Any) -> Any:
        mask = info.get("action_mask") if isinstance(info, dict) else None
        layer = env
        while mask is None and layer is not None:
            method = getattr(type(layer), "action_masks", None)
            mask = None if method is None else method(layer)
            layer = getattr(layer, "env", None)
        if mask is None:
            return self._space.sample()
        return self._space.sample(np.asarray(mask, np.int8))

    def run(self, env: Any, info: Any, steps: int) -> Any:
        """Take some steps; return the last info."""
        for _ in range(steps):
            _, info = self.step(env, self.sample(env, info))
        return info

    def step(self, env: Any, action: Any) -> tuple[_Transcript, Any]:
        """Step, and reset after an episode's end; return the named results and the last info."""
        names = "observation", "reward", "terminated", "truncated", "info"
        result = self.finish(env.step(copy.deepcopy(action)))
        info = result[4]
        seen = [(f"the {n}", _detached(v)) for n, v in zip(names, result, strict=True)]
        if result[2] or result[3]:
            observation, info = self.finish(env.reset())
            seen.append(("the observation of a reset", _detached(observation)))
            seen.append(("the info of a reset", _detached(info)))
        return seen, info


def _compare_continuations(
    source: EnvCheckpointer, target: EnvCheckpointer, player: _Player, info: Any, steps: int
) -> str | None:
    """Take the same steps in both environments; describe the first difference."""
    cause = _differing_attribute(source, target, "right after loading")
    for number in range(1, steps + 1):
        action = player.sample(source.env, info)
        expected, info = player.step(source.env, action)
        found, _ = player.step(target.env, action)
        if cause is None:
            cause = _differing_attribute(source, target, f"after {counted(number, 'step')}")
        for (what, one), (other_what, other) in zip(expected, found, strict=False):
            where = describe_info_difference(one, other) if what == other_what else ""
            if where is None:
                continue
            return (
                f"in step {number} after saving, {what} differs{where}: expected "
                f"{_abbreviated(one)}, as without saving, got {_abbreviated(other)} from the saved "
                f"state. {cause or _NO_ATTRIBUTE}"
            )
    return None


_NO_ATTRIBUTE = (
    "No attribute differed before this step. The result depends on something outside the "
    "attributes, such as the generators of random and numpy.random, module variables, or files"
)

_CLOCKS = tuple(f"RecordEpisodeStatistics.{n}" for n in ("episode_start_time", "time_queue"))
"""Attributes with the wall-clock time, on which only ``episode["t"]`` depends."""


def _differing_attribute(source: EnvCheckpointer, target: EnvCheckpointer, when: str) -> str | None:
    """Describe the first attribute that differs; None if none does or the comparison fails."""
    difference = None
    with suppress(FaultError):
        difference = source.plan.first_difference(target.plan, ignoring=_CLOCKS)
    if difference is None:
        return None
    path, one, other = difference
    return (
        f"The first attribute that differs {when} is {path}: {one} without saving, {other} with "
        "the saved state"
    )


def _detached(value: Any) -> Any:
    return copy.deepcopy(np.asarray(value) if hasattr(value, "__array__") else value)


def _abbreviated(value: Any) -> str:
    text = repr(value).replace("\n", "")
    return text if len(text) < 200 else f"{text[:160]}... (crc {zlib.crc32(text.encode()):08x})"


def describe_difference(one: Any, other: Any) -> str | None:
    """Describe where two values differ; None if they are bitwise identical.

    The text continues the value's name: for example ``" at ['x'] in its length (1, 2)"``, or ``""``
    for two numbers.
    """
    return _difference(one, other, set())


def describe_info_difference(one: dict[Any, Any], other: dict[Any, Any]) -> str | None:
    """Describe where two infos differ, ignoring ``episode["t"]``; None if they are identical."""
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
        pairs: Iterable[Any] = ((f"[{key!r}]", one[key], other[key]) for key in one)
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
        pairs = [("", state, _state_of(other))]
    else:
        same = without_addresses(repr(one)) == without_addresses(repr(other))
        return None if same or one == other else ""
    if (id(one), id(other)) in compared:
        return None
    compared.add((id(one), id(other)))
    for key, a, b in pairs:
        if (where := _difference(a, b, compared)) is not None:
            return f" at {key}{where.removeprefix(' at ')}"
    return None


def _has_equality(obj: Any) -> bool:
    equality: Any = type(obj).__eq__
    return equality is not object.__eq__


def _state_of(obj: Any) -> Any:
    """Return the data in an object's pickle; None if it cannot be pickled."""
    try:
        return obj.__reduce_ex__(2)[1:]
    except Exception:
        return None
