"""Deserialization of an environment's attributes."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

from xuance_envs._override import override
from xuance_envs.state import rebuild
from xuance_envs.state.faults import FaultError, type_name
from xuance_envs.state.state_plan import BEGINS_WITH_PRELUDE, StatePlan
from xuance_envs.state.target import SAFE_CLASSES, InspectionTarget, Target, unsafe_class_error

_REBUILD = "xuance_envs.state.rebuild"
_RANDOM = "bit_generator", "seeded_generator", "seed_sequence", "random_state", "python_random"
"""Functions that create generators and seeds, which a fork reseeds."""


class StateUnpickler(pickle.Unpickler):
    """Unpickler that reads a state for one environment."""

    def __init__(
        self,
        data: bytes,
        plan: StatePlan | None,
        trusted: bool,
        spawn: Callable[[Any], Any] | None = None,
    ) -> None:
        file = io.BytesIO(data)
        super().__init__(file)
        self._begins_with_prelude = file.read(1) == BEGINS_WITH_PRELUDE
        if not self._begins_with_prelude:  # a state of version 0.2
            file.seek(0)
        self._rest = file, len(data)
        self._trusted = trusted
        self._known = rebuild.PLAIN_FUNCTIONS
        if spawn is not None:
            self._known = self._known | {n: _then_fork(self._known[n], spawn) for n in _RANDOM}
            self._known["random_state_on"] = _without_gauss
        # Bound methods of the unpickler itself would form a reference cycle that keeps the state's
        # bytes in memory.
        self._target = InspectionTarget(trusted) if plan is None else Target(plan, trusted, spawn)

    @override
    def load(self) -> Any:
        if self._begins_with_prelude:
            super().load()
        return super().load()

    def load_facts(self) -> Any:
        """Return the constants, which follow the state; states of version 0.2 have none."""
        file, size = self._rest
        return _FactsUnpickler(file).load() if file.tell() < size else {}

    @property
    def resolved(self) -> Target:
        """The target environment, with the references resolved so far."""
        assert isinstance(self._target, Target)
        return self._target

    @property
    def unsafe_class(self) -> tuple[str, str] | None:
        """The first unsafe class that an inspected state names."""
        return getattr(self._target, "unsafe", None)

    @override
    def find_class(self, module: str, name: str) -> Any:
        if module == _REBUILD:
            if name in self._known:
                return self._known[name]
            if name in rebuild.TARGET_FUNCTIONS:
                return getattr(self._target, name)
        elif (module, name) in SAFE_CLASSES or self._trusted:
            return super().find_class(module, name)
        raise unsafe_class_error(module, name)


class _FactsUnpickler(pickle.Unpickler):
    """Unpickler of constants, which are tuples of strings and numbers."""

    @override
    def find_class(self, module: str, name: str) -> Any:
        raise unsafe_class_error(module, name)


def check_safe(data: bytes) -> None:
    """Raise a fault if an untrusted state names an unsafe class or cannot be read."""
    reader = StateUnpickler(data, None, trusted=False)
    try:
        reader.load()
        reader.load_facts()
    except FaultError:
        raise
    except Exception as error:
        if (unsafe := reader.unsafe_class) is not None:
            raise unsafe_class_error(*unsafe) from None
        reason = f"cannot read the state of an environment: {type_name(error)}: {error}"
        raise FaultError("", reason) from error


def _without_gauss(bits: Any, *_: Any) -> Any:
    """Return a RandomState without a cached normal number."""
    return rebuild.random_state_on(bits, 0, 0.0)


def _then_fork(make: Callable[..., Any], spawn: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *given: spawn(make(*given))
