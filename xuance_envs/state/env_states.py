"""Saved states of sub-environments of a vectorized environment, as one immutable value."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from xuance_envs.errors import StateError, counted
from xuance_envs.state import file_format
from xuance_envs.state.faults import FaultError
from xuance_envs.state.file_format import Facts, SavedEnv
from xuance_envs.state.pickling import dumps_plain, loads_plain

__all__ = ["EnvStates"]

_BOOLS = frozenset({bool, np.bool_})  # neither can be subclassed


class EnvStates:
    """Saved states of k environments; immutable.

    This is the result of ``save_state``. Any vectorized environment with the same kind of
    environments can load it; the backend and the number of workers may differ.

    Args:
        envs: state of each environment.
        facts: descriptions of environments and their library versions, by digest; each state has
            the ``digest`` of its description.
        shared: values that :meth:`adding` stored for all environments together, by name.
        trusted: True if the states may name classes of any module.

    Attributes:
        trusted (bool): True for states that were saved in this process or read with
            ``trusted=True``. Loading them may import classes of any module.

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
        raise AttributeError(f"cannot set {name!r}: EnvStates is immutable")

    def __reduce__(self) -> Any:
        self.check_here("pickle")
        return EnvStates, (self.envs, self.facts, self.shared, self.trusted)

    def __len__(self) -> int:
        return len(self.envs)

    def __getitem__(self, index: int | slice | Sequence[int]) -> EnvStates:
        """Return the states at an index, in a slice, or at a sequence of indices.

        Args:
            index: an index, a slice or a sequence of indices.

        Raises:
            TypeError: the index is something else, such as a boolean mask.
            IndexError: an index is out of range.
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
        """Build states from the results of workers.

        Args:
            saved: for each environment, its state, the digest of its description, and True if a
                restore replays actions.
            facts: packed descriptions of environments, by digest.
        """
        descriptions = {digest: loads_plain(fact, trusted=True) for digest, fact in facts.items()}
        return cls([SavedEnv(*one) for one in saved], descriptions)

    @classmethod
    def joined(cls, states: Sequence[EnvStates]) -> EnvStates:
        """Concatenate states, dropping shared values; the result is trusted if all states are."""
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
        """Size in memory, in bytes."""
        return sum(env.nbytes for env in self.envs) + sum(map(len, self.shared.values()))

    def __repr__(self) -> str:
        return f"EnvStates({counted(len(self), 'environment')}, {self.nbytes} bytes)"

    def adding(self, name: str, values: Sequence[Any], shared: Any = None) -> EnvStates:
        """Return a copy with a wrapper's own data.

        Args:
            name: name of the data, unique to the wrapper.
            values: one value for each environment: numbers, strings, arrays or containers of them.
            shared: a value for all environments together; None to add none.

        Raises:
            ValueError: the number of values differs from the number of environments.
        """
        if len(values) != len(self):
            raise ValueError(f"values: expected {len(self)} values, got {len(values)}")
        envs = [
            replace(env, extras={**env.extras, name: dumps_plain(value)})
            for env, value in zip(self.envs, values, strict=True)
        ]
        more = {} if shared is None else {name: dumps_plain(shared)}
        return EnvStates(envs, self.facts, {**self.shared, **more}, self.trusted)

    def extra(self, name: str) -> list[Any] | None:
        """Return each environment's value that :meth:`adding` stored; None if a value is missing.

        Args:
            name: name of the data.

        Raises:
            StateError: the data cannot be read, or it names an unsafe class in untrusted states.
        """
        if not all(name in env.extras for env in self.envs):
            return None
        return [self._read(env.extras[name]) for env in self.envs]

    def shared_extra(self, name: str) -> Any:
        """Return the shared value that :meth:`adding` stored, or None.

        Args:
            name: name of the data.

        Raises:
            StateError: the data cannot be read, or it names an unsafe class in untrusted states.
        """
        return self._read(self.shared[name]) if name in self.shared else None

    def _read(self, data: bytes) -> Any:
        try:
            return loads_plain(data, self.trusted)
        except FaultError as fault:
            raise StateError(-1, "load_state", str(fault)) from None

    def check_here(self, what: str) -> None:
        """Raise StateError if a state is stored in another process, such as an HTTP server.

        Args:
            what: the operation that needs the states, for the error.
        """
        for env in self.envs:
            if env.elsewhere:
                raise StateError(-1, what, env.elsewhere)

    def to_bytes(self) -> bytes:
        """Serialize all states, compressed; see :mod:`xuance_envs.state.file_format`.

        Raises:
            StateError: a state is stored in another process; see :meth:`check_here`.
        """
        self.check_here("to_bytes")
        return file_format.write(self.envs, self.facts, self.shared)

    @classmethod
    def from_bytes(cls, data: bytes, trusted: bool = False) -> EnvStates:
        """Read the bytes that :meth:`to_bytes` returned.

        Args:
            data: the bytes.
            trusted: True to allow classes of any module, which can run arbitrary code. By default,
                only classes that are known to be safe are read.

        Raises:
            StateError: the data is not in this format, is truncated, or names an unsafe class.
            TypeError: the data is not bytes.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data: expected bytes, got {type(data).__name__}")
        return cls(*file_format.read(bytes(data), trusted), trusted)

    def save(self, path: str | Path) -> None:
        """Write the states to a file atomically.

        Args:
            path: the file; its usual suffix is ``.xenvs``.

        Raises:
            StateError: a state is stored in another process; see :meth:`check_here`.
            OSError: the file cannot be written.
        """
        file_format.write_file(Path(path), self.to_bytes())

    @classmethod
    def load(cls, path: str | Path, trusted: bool = False) -> EnvStates:
        """Read a file that :meth:`save` wrote; see :meth:`from_bytes`.

        Args:
            path: the file.
            trusted: True to allow classes of any module, which can run arbitrary code.

        Raises:
            OSError: the file cannot be read.
            StateError: as in :meth:`from_bytes`.
        """
        try:
            return cls.from_bytes(Path(path).read_bytes(), trusted)
        except StateError as error:
            raise StateError(-1, "load_state", f"{path}: {error.reason}") from None


def list_of_ints(values: Iterable[Any]) -> list[int]:
    """Convert ints; other values, also bools, and iterators raise a TypeError."""
    # In the list of a tensor, bools are bools.
    given = values.tolist() if hasattr(values, "tolist") else values
    # Check bools first: operator.index accepts np.bool_ in NumPy 1.
    if isinstance(given, Iterator | bytes) or not _BOOLS.isdisjoint(map(type, given)):
        raise TypeError
    return list(map(operator.index, given))


def _indices(index: int | Sequence[int], count: int) -> list[int]:
    try:
        found = list_of_ints([index] if isinstance(index, (int, np.integer)) else index)
    except TypeError:
        message = f"index: expected an int, a slice or a sequence of ints, got {index!r}"
        raise TypeError(message) from None
    for i in found:
        if not -count <= i < count:
            raise IndexError(f"index: expected an index into {counted(count, 'state')}, got {i}")
    return found
