"""Vector environments in a process that is forked: those whose groups are elsewhere stay behind."""

from __future__ import annotations

import os
import weakref
from typing import Any, NoReturn, Protocol

from xuance_envs.errors import WrongProcessError

__all__ = ["Elsewhere", "stays_behind"]


class _StayingBehind(Protocol):
    def leave_to(self, owner: int) -> None: ...


_staying: weakref.WeakKeyDictionary[_StayingBehind, int] = weakref.WeakKeyDictionary()


def stays_behind(groups: _StayingBehind) -> None:
    """Has groups left to this process by any that is forked from it."""
    _staying[groups] = os.getpid()


def _leave_behind() -> None:
    for groups, owner in list(_staying.items()):
        groups.leave_to(owner)
    _staying.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_behind)


class Elsewhere:
    """Stands for whatever another process alone may use; using it in any way is an error.

    Args:
        name: of the vector environment's class.
        owner: the process it belongs to.
    """

    def __init__(self, name: str, owner: int) -> None:
        self._told = (
            f"this {name} belongs to process {owner}, from which process {os.getpid()} was "
            "forked: make another one here"
        )

    def refuse(self) -> NoReturn:
        """Says so.

        Raises:
            WrongProcessError: always.
        """
        raise WrongProcessError(self._told)

    def __getattr__(self, name: str) -> Any:
        self.refuse()
