"""Inputs of other libraries' adapters, and the exception for libraries that are left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from xuance_envs.measure import Runner

MOST_PROCESSES = 256


class LeftOut(Exception):  # noqa: N818  # not an error: the benchmark continues without it
    """A library cannot take part; the message gives the reason for the report."""


@dataclass(frozen=True)
class Entry:
    """Environments and actions for an adapter.

    Attributes:
        env_id: id of the environments, for ``gymnasium.make``.
        num_envs: number of environments.
        actions: one array per vector step, the same for all implementations.
        stack: closes the objects that the adapter registers with it.
        note: records a sentence for the report.
        functions: environment functions; None for ``gymnasium.make``.
        quick_start: True if processes that import torch may be forked from one that has already
            imported it. False if the benchmark measures the start.
    """

    env_id: str
    num_envs: int
    actions: Sequence[Any]
    stack: ExitStack
    note: Callable[[str], None]
    functions: Sequence[Callable[[], Any]] | None = None
    quick_start: bool = True

    def env_fns(self) -> list[Callable[[], Any]]:
        if self.functions is not None:
            return list(self.functions)
        return [partial(gymnasium.make, self.env_id)] * self.num_envs

    def need_processes(self, most: int = MOST_PROCESSES) -> None:
        """Raise :class:`LeftOut` if one process per environment would be too many."""
        if self.num_envs > most:
            raise LeftOut(f"needs {self.num_envs} processes, one per environment")

    def need_registered(self) -> None:
        """Raise :class:`LeftOut` if the environments have no id."""
        if self.functions is not None:
            raise LeftOut("supports only environments with an id")


@dataclass(frozen=True)
class Peer:
    """A vectorized environment of a library.

    Attributes:
        title: its name in tables.
        make: the adapter, which returns a runner after its first reset.
        package: the package to install.
    """

    title: str
    make: Callable[[Entry], Runner]
    package: str = ""


def make_peer(peer: Peer, entry: Entry) -> Runner:
    """Create the library's runner and reset it.

    Raises:
        LeftOut: the library cannot take part, for any reason.
    """
    if not isinstance(entry.actions[0], np.ndarray):
        raise LeftOut("only arrays of actions are supported")
    try:
        return peer.make(entry)
    except ImportError as error:
        raise LeftOut(f"not installed ({error})") from error
    except LeftOut:
        raise
    except Exception as error:  # an error in a library must not end the run
        raise LeftOut(f"{type(error).__name__}: {error}") from error


def nearest_id(env_id: str, known: Sequence[str]) -> str:
    """Return the id of the same environment with the same version, else with the nearest one.

    Raises:
        LeftOut: no version of the environment is known.
    """
    name, version = _split_version(env_id)
    versions = {
        _split_version(other)[1]: other for other in known if _split_version(other)[0] == name
    }
    if not versions:
        raise LeftOut(f"has no {name}")
    return versions[min(versions, key=lambda other: abs(other - version))]


def _split_version(env_id: str) -> tuple[str, int]:
    """Split an id into name and version: ``ALE/Breakout-v5`` into ``("Breakout", 5)``."""
    match = re.fullmatch(r"(?:ALE/)?(.+?)(?:-v(\d+))?", env_id)
    assert match is not None, env_id
    return match[1], int(match[2] or 0)
