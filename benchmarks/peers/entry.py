"""What an adapter of another library gets, and how it says that it cannot take part."""

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


class LeftOut(Exception):  # noqa: N818  # no error: a contender that cannot take part
    """Why a peer cannot take part; the message is for the report."""


@dataclass(frozen=True)
class Entry:
    """What a peer is to step.

    Attributes:
        env_id: the environment, as ``gymnasium.make`` takes it.
        num_envs: how many of them.
        actions: an array per vector step, the same for every contender.
        stack: closes what the adapter registers with it.
        note: takes a sentence for the report.
        functions: what makes each environment; None for ``gymnasium.make``.
        quick_start: whether processes that each import torch may be forked from one that has it
            instead, where their start is not what is measured.
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
        """Raises :class:`LeftOut` where a process per environment would be too many."""
        if self.num_envs > most:
            raise LeftOut(f"needs {self.num_envs} processes, one per environment")

    def need_registered(self) -> None:
        """Raises :class:`LeftOut` where the environments are none that an id stands for."""
        if self.functions is not None:
            raise LeftOut("it only takes part with environments that have an id")


@dataclass(frozen=True)
class Peer:
    """One way of another library to step many environments.

    Attributes:
        title: its name in tables.
        make: the adapter: its runner, after the first reset.
        package: what is installed for it.
    """

    title: str
    make: Callable[[Entry], Runner]
    package: str = ""


def make_peer(peer: Peer, entry: Entry) -> Runner:
    """The peer after its first reset.

    Raises:
        LeftOut: when it cannot take part, whatever the reason.
    """
    if not isinstance(entry.actions[0], np.ndarray):
        raise LeftOut("the peers are only driven with arrays of actions")
    try:
        return peer.make(entry)
    except ImportError as error:
        raise LeftOut(f"not installed ({error})") from error
    except LeftOut:
        raise
    except Exception as error:  # another library's trouble must not end the run
        raise LeftOut(f"{type(error).__name__}: {error}") from error


def nearest_id(env_id: str, known: Sequence[str]) -> str:
    """The id of the same environment with the same version, or else the nearest version.

    Raises:
        LeftOut: when there is no version of it at all.
    """
    name, version = _split_version(env_id)
    versions = {
        _split_version(other)[1]: other for other in known if _split_version(other)[0] == name
    }
    if not versions:
        raise LeftOut(f"has no {name}")
    return versions[min(versions, key=lambda other: abs(other - version))]


def _split_version(env_id: str) -> tuple[str, int]:
    """``ALE/Breakout-v5`` as ``("Breakout", 5)``."""
    match = re.fullmatch(r"(?:ALE/)?(.+?)(?:-v(\d+))?", env_id)
    assert match is not None, env_id
    return match[1], int(match[2] or 0)
