"""Closing of vectorized environments that a forked process inherits."""

from __future__ import annotations

import os
import weakref
from typing import Any, NoReturn

from xuance_envs.engine.system.current import system
from xuance_envs.errors import WrongProcessError

_registered: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def close_after_fork(groups: Any) -> None:
    """Call ``groups.close_in_child`` in every process forked from this one."""
    _registered[groups] = os.getpid()


def _close_in_child() -> None:
    for groups, owner in list(_registered.items()):
        groups.close_in_child(owner)
    _registered.clear()


system.after_fork(_close_in_child)


class WrongProcessProxy:
    """Replacement for an object inherited from the parent process; attribute access raises."""

    def __init__(self, name: str, owner: int) -> None:
        self._message = (
            f"this {name} belongs to process {owner}, from which process {os.getpid()} was "
            "forked: create a new one in this process"
        )

    def raise_error(self) -> NoReturn:
        raise WrongProcessError(self._message)

    def __getattr__(self, name: str) -> Any:
        self.raise_error()
