"""Vector environments in a process that is forked: those whose groups are elsewhere stay behind."""

from __future__ import annotations

import os
import weakref
from typing import Any, NoReturn, Protocol

from xuance_envs.errors import WrongProcessError

__all__ = ["WrongProcessProxy", "close_after_fork"]


class _ForkAware(Protocol):
    def close_in_child(self, owner: int) -> None: ...


_registered: weakref.WeakKeyDictionary[_ForkAware, int] = weakref.WeakKeyDictionary()


def close_after_fork(groups: _ForkAware) -> None:
    """Has groups left to this process by any that is forked from it."""
    _registered[groups] = os.getpid()


def _close_in_child() -> None:
    for groups, owner in list(_registered.items()):
        groups.close_in_child(owner)
    _registered.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


class WrongProcessProxy:
    """Stands for whatever another process alone may use; using it in any way is an error."""

    def __init__(self, name: str, owner: int) -> None:
        self._message = (
            f"this {name} belongs to process {owner}, from which process {os.getpid()} was "
            "forked: make another one here"
        )

    def raise_error(self) -> NoReturn:
        """Says so."""
        raise WrongProcessError(self._message)

    def __getattr__(self, name: str) -> Any:
        self.raise_error()
