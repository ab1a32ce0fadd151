"""Construction, attribute access, method calls and closing of a group's environments."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.single_env import (
    EnvDescription,
    check_distinct,
    check_env_api,
    close,
    find_layer,
    find_setattr_layer,
    get_attribute,
    render,
    spaces_of,
)
from xuance_envs.engine.group.step_clock import NO_ACTIVE_ENV, ProgressRecord
from xuance_envs.engine.serialization import copy_of, describe_error, traceback_of
from xuance_envs.errors import EnvError, StateError
from xuance_envs.event_loops import finish
from xuance_envs.state.recorders import record

NO_RESULT = object()


class AttributeSetter(partial[Any]):
    """Function of (env, name, value), which is called again in a restarted worker."""


class BaseEnvGroup:
    """Environments of one group, without the code that steps them.

    ``freeze`` turns a value into a copy or a pickle, which later steps cannot change.
    """

    def __init__(
        self,
        recipe: Recipe,
        freeze: Callable[[Any], Any],
        recorder: ProgressRecord | None = None,
        is_interrupt: Callable[[BaseException], bool] = lambda error: False,
        thaw: Callable[[Any], Any] = copy_of,
        freeze_info: Callable[[Any], Any] | None = None,
        envs: Sequence[Any] = (),
    ) -> None:
        self.envs: list[Any] = list(envs)
        self.thaw = thaw
        self._freeze, self._freeze_info = freeze, freeze_info or freeze
        self._progress = recorder or ProgressRecord()
        self._active_env = self._progress.at
        self.recipe = recipe
        self._first, self._autoreset = recipe.first, recipe.autoreset
        self._is_interrupt = is_interrupt
        self._command = "construct"
        if not envs:
            self._make_envs()

    def _make_envs(self) -> None:
        recipe = self.recipe
        try:
            made_from = zip(recipe.env_fns, recipe.keywords, strict=True)
            for i, (env_fn, kwargs) in enumerate(made_from):
                self._active_env[0] = i + 1
                try:
                    self.envs.append(check_env_api(env_fn(**kwargs)))
                    record(self.envs[-1])
                except BaseException as error:
                    raise self._failure(i, error) from error
            self._active_env[0] = NO_ACTIVE_ENV
            check_distinct(self.envs, recipe.first)
        except BaseException:
            with contextlib.suppress(EnvError):
                self.close()
            raise

    def describe(self) -> list[tuple[int, EnvDescription]]:
        differs = spaces_of(self.envs[0]).differing
        others = [i for i, env in enumerate(self.envs) if differs(spaces_of(env))]
        described = [(self._first + i, EnvDescription.of(self.envs[i])) for i in [0, *others[:1]]]
        return copy.deepcopy(described)

    def call(self, places: Sequence[int], name: str, args: Any, kwargs: Any) -> list[Any]:
        """Call a method of some environments, each with its own copy of the arguments."""

        def act(env: Any, _: Any) -> Any:
            own_args, own_kwargs = copy_of((args, kwargs))
            return get_attribute(env, name)(*own_args, **own_kwargs)

        return self.each("call", places, act, name)

    def get_attr(self, places: Sequence[int], name: str) -> list[Any]:
        """Read an attribute of some environments through their wrappers."""
        return self.each("get_attr", places, lambda env, _: get_attribute(env, name), name)

    def set_attr(self, places: Sequence[int], name: str, values: Sequence[Any]) -> list[None]:
        """Set an attribute on the layer that has it, else on the innermost environment."""
        act = lambda env, value: setattr(env, name, copy_of(value))  # noqa: E731  # like the other methods
        return self.each("set_attr", places, act, name, values, find_setattr_layer)

    def apply(
        self, places: Sequence[int], function: Callable[..., Any], arguments: Sequence[Any]
    ) -> list[Any]:
        """Call ``function`` for some environments, each with a new copy of its own arguments."""
        act = lambda env, values: function(env, *copy_of(values))  # noqa: E731  # like the other methods
        return self.each("call", places, act, None, arguments)

    def render(self, places: Sequence[int], mode: str | None) -> list[Any]:
        return self.each("render", places, lambda env, _: render(env, mode), "render")

    def close(self) -> None:
        """Close all environments; raise an exception or an interrupt only at the end."""
        self._command = "close"
        failure: EnvError | None = None
        interrupt: BaseException | None = None
        while self.envs:
            self._active_env[0] = len(self.envs)
            env = self.envs.pop()
            try:
                self._close(env)
            except BaseException as error:
                if self._is_interrupt(error):
                    interrupt = error
                    continue
                failure = self._failure(len(self.envs), error)
                failure.__cause__ = error
        if (raised := interrupt or failure) is not None:
            raise raised

    def _close(self, env: Any) -> None:
        finish(close(env))

    def each(
        self,
        command: str,
        places: Sequence[int],
        act: Callable[[Any, Any], Any],
        name: str | None = None,
        values: Sequence[Any] | None = None,
        find: Callable[[Any, str], Any] = find_layer,
    ) -> list[Any]:
        """Call ``act(env, value)``; given ``name``, ``env`` is the layer with this attribute."""
        previous, self._command = self._command, command
        results = []
        try:
            for k, i in enumerate(places):
                self._active_env[0] = i + 1
                env = self.envs[i]
                try:
                    owner = env if name is None else find(env, name)
                    if owner is not None:
                        results.append(act(owner, None if values is None else values[k]))
                        continue
                except StateError:
                    raise
                except BaseException as error:
                    raise self._failure(i, error) from error
                raise AttributeError(
                    f"environment {self._first + i} ({env}) has no attribute {name!r}"
                )
        finally:
            self._command = previous
            self._active_env[0] = NO_ACTIVE_ENV
        return results

    def _failure(self, i: int, error: BaseException, result: Any = NO_RESULT) -> EnvError:
        """Return the error for an exception or an invalid result; re-raise an interrupt."""
        if self._is_interrupt(error):
            raise error
        returned = () if result is NO_RESULT else (result,)
        return make_env_error(self._first + i, self._command, error, *returned)


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
