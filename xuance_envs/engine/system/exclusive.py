"""Errors for the use of one vectorized environment by two threads at the same time.

``self._groups.users`` has an entry for each thread that has called a decorated method: True while
the thread is in one. Decorated methods must not call each other. Entries stay until another thread
calls a method, because a dict whose keys come and go is rebuilt every few steps. Entries are set by
plain assignments, because an interrupt in a function call could prevent the assignment.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from time import monotonic, sleep
from typing import Any, Concatenate, ParamSpec, TypeVar

from xuance_envs.errors import VecEnvError

_CHECK_INTERVAL = 0.005  # seconds between checks for a running call

_Self = TypeVar("_Self")
_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


def exclusive(
    method: Callable[Concatenate[_Self, _Params], _Result],
) -> Callable[Concatenate[_Self, _Params], _Result]:
    """Decorate a method so that it raises while another thread is in a decorated method."""

    @functools.wraps(method)
    def checked(self: Any, /, *args: Any, **kwargs: Any) -> _Result:
        users, thread = self._groups.users, get_ident()
        try:
            users[thread] = True
            if len(users) > 1:
                _check_alone(self._groups, thread)
            return method(self, *args, **kwargs)
        finally:
            users[thread] = False

    return checked


def exclusive_start(method: Callable[[_Self, Any], None]) -> Callable[[_Self, Any], None]:
    """Decorate a method that starts a step, with a third of the overhead of :func:`exclusive`."""

    @functools.wraps(method)
    def checked(self: Any, actions: Any) -> None:
        users, thread = self._groups.users, get_ident()
        try:
            users[thread] = True
            if len(users) > 1:
                _check_alone(self._groups, thread)
            method(self, actions)
        finally:
            users[thread] = False

    return checked


def exclusive_wait(method: Callable[[_Self], _Result]) -> Callable[[_Self], _Result]:
    """Decorate a method that finishes a step, as :func:`exclusive` does."""

    @functools.wraps(method)
    def checked(self: Any) -> _Result:
        users, thread = self._groups.users, get_ident()
        try:
            users[thread] = True
            if len(users) > 1:
                _check_alone(self._groups, thread)
            return method(self)
        finally:
            users[thread] = False

    return checked


def _others_are_inside(users: dict[int, bool], thread: int) -> bool:
    """Return whether another thread is in a decorated method; drop threads that are not."""
    for other, is_inside in list(users.items()):
        if other != thread:
            if is_inside:
                return True
            users.pop(other, None)
    return False


def wait_for_others(users: dict[int, bool], timeout: float) -> float:
    """Wait until no other thread is in a decorated method; return the seconds that are left."""
    deadline, thread = monotonic() + timeout, get_ident()
    while (left := deadline - monotonic()) > 0 and _others_are_inside(users, thread):
        sleep(_CHECK_INTERVAL)
    return left


def _check_alone(groups: Any, thread: int) -> None:
    if _others_are_inside(groups.users, thread):
        raise VecEnvError(
            f"another thread is using this {groups.name}; use a vectorized environment from "
            "one thread at a time, for example with a lock"
        )
