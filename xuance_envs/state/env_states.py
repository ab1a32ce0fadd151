"""The states of some environments of a vector environment, as a value."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from xuance_envs.errors import StateError
from xuance_envs.state import file_format
from xuance_envs.state.pickling import dumps_plain, loads_plain
from xuance_envs.state.saved_env import Facts, SavedEnv

__all__ = ["EnvStates"]

_BOOLS = frozenset({bool, np.bool_})


class EnvStates:
    """The states of k environments: a value that never changes.

    It is what ``save_state`` returns and ``load_state`` takes, of any vector environment with
    environments of the same kind, whatever its backend and however these are split.

    Args:
        envs: one for each environment.
        facts: by its digest, what an environment was, and the versions of its libraries.
        shared: by name, what is kept for all of them together.
        trusted: whether they may name classes of any module.

    Attributes:
        trusted (bool): whether they may name classes of any module: true of what was saved by this
            process, and of what was read with ``trusted=True``.
        nbytes (int): bytes they take.

    Example:
        >>> from xuance_envs import DummyVecEnv_Gym, EnvStates, Gym_Env
        >>> with DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v1")] * 3) as envs:
        ...     _ = envs.reset(seed=0)
        ...     state = envs.save_state()
        ...     one = envs.step([0, 1, 0])[0]
        ...     _ = envs.load_state(EnvStates.from_bytes(state.to_bytes()))
        ...     other = envs.step([0, 1, 0])[0]
        >>> len(state), len(state[2]), bool((one == other).all())
        (3, 1, True)
    """

    __slots__ = ("envs", "facts", "shared", "trusted")

    envs: tuple[SavedEnv, ...]
    facts: Facts
    shared: Mapping[str, bytes]
    trusted: bool

    def __init__(
        self,
        envs: Sequence[SavedEnv],
        facts: Facts,
        shared: Mapping[str, bytes] | None = None,
        trusted: bool = True,
    ) -> None:
        given = {"envs": tuple(envs), "facts": dict(facts), "shared": dict(shared or {})}
        for name, value in {**given, "trusted": trusted}.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("an EnvStates never changes")

    def __reduce__(self) -> Any:
        self.check_here("pickle")
        return EnvStates, (self.envs, self.facts, self.shared, self.trusted)

    def __len__(self) -> int:
        return len(self.envs)

    def __getitem__(self, index: int | slice | Sequence[int]) -> EnvStates:
        """The states of some of the environments: of one, of a slice, or of those listed.

        Raises:
            TypeError: it is none of these, such as a mask.
            IndexError: there is no such environment.
        """
        if isinstance(index, slice):
            envs = self.envs[index]
        else:
            envs = tuple(self.envs[i] for i in _indices(index, len(self)))
        return EnvStates(envs, self.facts, self.shared, self.trusted)

    def __iter__(self) -> Iterator[EnvStates]:
        return (self[i] for i in range(len(self)))

    @classmethod
    def from_groups(
        cls, saved: Sequence[tuple[bytes, bytes, bool]], facts: Mapping[bytes, bytes]
    ) -> EnvStates:
        """Those that groups of environments have told.

        Args:
            saved: of each, its state, the digest of what it was saved from, and whether it is put
                in by repeating what led to it.
            facts: by the digests, packed, what these are.
        """
        about = {digest: loads_plain(fact, trusted=True) for digest, fact in facts.items()}
        return cls([SavedEnv(*one) for one in saved], about)

    @classmethod
    def joined(cls, states: Sequence[EnvStates]) -> EnvStates:
        """Those of several as one, in their order.

        What was kept for all environments of one together is left out.

        Args:
            states: at least one.
        """
        envs = [env for one in states for env in one.envs]
        facts = {digest: fact for one in states for digest, fact in one.facts.items()}
        return cls(envs, facts, trusted=all(one.trusted for one in states))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EnvStates):
            return NotImplemented
        return (self.envs, self.shared) == (other.envs, other.shared)

    def __hash__(self) -> int:
        return hash(tuple(env.env for env in self.envs))

    @property
    def nbytes(self) -> int:
        """Bytes they take in memory."""
        return sum(env.nbytes for env in self.envs) + sum(map(len, self.shared.values()))

    def __repr__(self) -> str:
        return f"EnvStates({len(self)} environments, {self.nbytes} bytes)"

    # -- what is kept besides -----------------------------------------------------------

    def adding(self, name: str, values: Sequence[Any], shared: Any = None) -> EnvStates:
        """The same with something more: for wrappers of vector environments, about their own.

        Args:
            name: a name of the wrapper's own.
            values: one for each environment, of numbers, strings, arrays and containers of them.
            shared: something for all of them together.
        """
        envs = [
            replace(env, extras={**env.extras, name: dumps_plain(value)})
            for env, value in zip(self.envs, values, strict=True)
        ]
        more = {} if shared is None else {name: dumps_plain(shared)}
        return EnvStates(envs, self.facts, {**self.shared, **more}, self.trusted)

    def extra(self, name: str) -> list[Any] | None:
        """What was added for each environment; None where nothing was.

        Args:
            name: what it was added under.

        Raises:
            FaultError: it names classes that nobody vouches for.
        """
        if not all(name in env.extras for env in self.envs):
            return None
        return [loads_plain(env.extras[name], self.trusted) for env in self.envs]

    def shared_extra(self, name: str) -> Any:
        """What was added for all environments together; None where nothing was.

        Args:
            name: what it was added under.
        """
        return loads_plain(self.shared[name], self.trusted) if name in self.shared else None

    # -- as bytes -----------------------------------------------------------------------

    def check_here(self, what: str) -> None:
        """Raises where states are kept elsewhere, as those of environments on a server are.

        Args:
            what: what they are needed for.

        Raises:
            StateError: one is; says why it stays there.
        """
        for env in self.envs:
            if env.elsewhere:
                raise StateError(-1, what, env.elsewhere)

    def to_bytes(self) -> bytes:
        """All of it, compressed; see :mod:`xuance_envs.state.file_format`.

        Raises:
            StateError: a server keeps it; see :meth:`check_here`.
        """
        self.check_here("to_bytes")
        return file_format.write(self.envs, self.facts, self.shared)

    @classmethod
    def from_bytes(cls, data: bytes, trusted: bool = False) -> EnvStates:
        """What :meth:`to_bytes` gave.

        Args:
            data: the bytes.
            trusted: whether it may name classes of any module, which can do anything when they are
                read. Otherwise only what is known to hold data and do nothing.

        Raises:
            StateError: the data is not what :meth:`to_bytes` gave, is cut off, or names something
                else.
        """
        return cls(*file_format.read(data, trusted), trusted)

    def save(self, path: str | Path) -> None:
        """Writes it to a file, whole or not at all.

        Args:
            path: where to; ``.xenvs`` is the usual suffix.
        """
        file_format.write_file(Path(path), self.to_bytes())

    @classmethod
    def load(cls, path: str | Path, trusted: bool = False) -> EnvStates:
        """Reads a file that :meth:`save` wrote; see :meth:`from_bytes`.

        Args:
            path: the file.
            trusted: whether it may name classes of any module.
        """
        return cls.from_bytes(Path(path).read_bytes(), trusted)


def _indices(index: int | Sequence[int], count: int) -> list[int]:
    given = [index] if isinstance(index, (int, np.integer)) else index
    try:
        if not _BOOLS.isdisjoint(map(type, given)):
            raise TypeError
        found = list(map(operator.index, given))
    except TypeError:
        raise TypeError(
            f"expected an index, a slice or a sequence of indices, got {index!r}"
        ) from None
    for i in found:
        if not -count <= i < count:
            raise IndexError(f"expected indices of {count} states, got {i}")
    return found
