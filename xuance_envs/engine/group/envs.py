"""Environments of one process: made, asked single things, and closed."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any

from xuance_envs.engine.group.failures import failure_of
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.recorder import NOWHERE, Recorder
from xuance_envs.engine.group.single_env import (
    EnvDescription,
    attribute_of,
    check_distinct,
    checked_env,
    close,
    owner_of,
    render,
    setting_owner_of,
)
from xuance_envs.engine.serialization import copy_of
from xuance_envs.errors import EnvError, StateError
from xuance_envs.state.recording import record

__all__ = ["NOTHING", "Envs", "never"]

NOTHING = object()


def never(error: BaseException) -> bool:
    """No exception is an interrupt."""
    return False


class Envs:
    """Environments that are asked single things.

    Args:
        recipe: what they are made from.
        recorder: where to say which environment is at work.
        is_interrupt: whether what came out of an environment is not its own, but was raised for
            the process it is in, as by Ctrl-C. It is then passed on as it is; anything else is an
            :class:`~xuance_envs.errors.EnvError`. A process that is there for its environments
            alone has none.

    Raises:
        EnvError: a function raised, or what it returned is no environment.
        ValueError: two functions returned the same object.
    """

    def __init__(
        self,
        recipe: Recipe,
        recorder: Recorder,
        is_interrupt: Callable[[BaseException], bool] = never,
    ) -> None:
        self.envs: list[Any] = []
        self._recorder = recorder
        self._at = recorder.at
        self._first = recipe.first
        self._is_interrupt = is_interrupt
        self._doing = "construct"
        try:
            made_from = zip(recipe.env_fns, recipe.keywords, strict=True)
            for i, (env_fn, kwargs) in enumerate(made_from):
                self._at[0] = i + 1
                try:
                    self.envs.append(checked_env(env_fn(**kwargs)))
                    record(self.envs[-1])
                except BaseException as error:
                    raise self._failure(i, error) from error
            self._at[0] = NOWHERE
            check_distinct(self.envs, recipe.first)
        except BaseException:
            with contextlib.suppress(EnvError):
                self.close()
            raise

    def describe(self) -> list[tuple[int, EnvDescription]]:
        """Describes the group's first environment, and the first one that differs from it.

        Returns:
            The index of each in the vector environment, and its description in copies: spaces
            have generators.
        """
        first = EnvDescription.of(self.envs[0])
        other = next((i for i, env in enumerate(self.envs) if first.differs_in(env)), 0)
        described = [(self._first, first)]
        if other:
            described.append((self._first + other, EnvDescription.of(self.envs[other])))
        return copy.deepcopy(described)

    def call(self, places: Sequence[int], name: str, args: Any, kwargs: Any) -> list[Any]:
        """Calls a method of some environments, each with copies of the arguments."""

        def act(env: Any, _: Any) -> Any:
            own_args, own_kwargs = copy_of((args, kwargs))
            return attribute_of(env, name)(*own_args, **own_kwargs)

        return self._each("call", places, act, name)

    def get_attr(self, places: Sequence[int], name: str) -> list[Any]:
        """Reads an attribute of some environments, reaching through wrappers."""
        return self._each("get_attr", places, lambda env, _: attribute_of(env, name), name)

    def set_attr(self, places: Sequence[int], name: str, values: Sequence[Any]) -> list[None]:
        """Sets an attribute where it is, or else on the innermost environment, to a copy."""
        act = lambda env, value: setattr(env, name, copy_of(value))  # noqa: E731  # as its siblings
        return self._each("set_attr", places, act, name, values, setting_owner_of)

    def apply(
        self, places: Sequence[int], function: Callable[..., Any], arguments: Sequence[Any]
    ) -> list[Any]:
        """Calls ``function(env, *arguments)`` for some environments, each with own copies."""
        act = lambda env, values: function(env, *copy_of(values))  # noqa: E731  # as its siblings
        return self._each("call", places, act, None, arguments)

    def render(self, places: Sequence[int], mode: str | None) -> list[Any]:
        """Renders some environments."""
        return self._each("render", places, lambda env, _: render(env, mode), "render")

    def close(self) -> None:
        """Closes every environment, also after one of them failed to, or after an interrupt.

        Raises:
            EnvError: the first environment's that raised.
        """
        self._doing = "close"
        failure: EnvError | None = None
        interrupt: BaseException | None = None
        while self.envs:
            self._at[0] = len(self.envs)
            env = self.envs.pop()
            try:
                close(env)
            except BaseException as error:
                if self._is_interrupt(error):
                    interrupt = error
                    continue
                failure = self._failure(len(self.envs), error)
                failure.__cause__ = error
        if (raised := interrupt or failure) is not None:
            raise raised

    def each(
        self,
        command: str,
        places: Sequence[int],
        act: Callable[[Any], Any],
        values: Sequence[Any] | None = None,
    ) -> list[Any]:
        """Does something about some environments; says which it was where it fails.

        Args:
            command: what it is called.
            places: the environments.
            act: is given a value for each.
            values: these; None for the places.

        Returns:
            What came of it for each.
        """
        given = places if values is None else values
        return self._each(command, places, lambda _, value: act(value), None, given)

    def _each(
        self,
        command: str,
        places: Sequence[int],
        act: Callable[[Any, Any], Any],
        name: str | None = None,
        values: Sequence[Any] | None = None,
        find: Callable[[Any, str], Any] = owner_of,
    ) -> list[Any]:
        """Does something with some environments, or with what in each has the attribute."""
        doing, self._doing = self._doing, command
        results = []
        try:
            for k, i in enumerate(places):
                self._at[0] = i + 1
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
            self._doing = doing
            self._at[0] = NOWHERE
        return results

    def _failure(self, i: int, error: BaseException, result: Any = NOTHING) -> EnvError:
        """The error to raise for what environment i of the group raised or returned.

        Raises:
            BaseException: an interrupt, as it came.
        """
        if self._is_interrupt(error):
            raise error
        returned = () if result is NOTHING else (result,)
        return failure_of(self._first + i, self._doing, error, *returned)
