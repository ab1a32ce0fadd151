"""Saving and restoring one environment."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xuance_envs.state import box2d, mujoco  # noqa: F401  # they register handlers
from xuance_envs.state.faults import FaultError, MismatchError, type_name
from xuance_envs.state.pickling import StatePickler, StateUnpickler
from xuance_envs.state.state_plan import FUNCTION_KEY, StatePlan


class EnvCheckpointer:
    """Saves and restores the state of one environment."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._plan: StatePlan | None = None

    @property
    def plan(self) -> StatePlan:
        """Plan of what is state, rebuilt if the environment's attributes have been replaced."""
        plan = self._plan
        if plan is None or not plan.is_current():
            plan = self._plan = StatePlan(self._env)
        return plan

    def save(self, seen: Any = None, plan: StatePlan | None = None) -> bytes:
        """Serialize the environment's state and ``seen``, its last result."""
        plan = self.plan if plan is None else plan
        self_saving_layers = plan.self_saving_layers
        attributes: list[dict[str, Any] | None] = []
        for k, (layer, excluded) in enumerate(zip(plan.layers, plan.excluded, strict=True)):
            if k in self_saving_layers:
                attributes.append(None)
                continue
            values = dict(layer.items()) if layer.slots else layer.attributes.copy()
            for name in excluded:
                del values[name]
            attributes.append(values)
        handled = [handler.save(obj, plan.owner(path)) for handler, obj, path in plan.handled]
        # The public property would create a missing generator, and cannot be assigned to.
        generators = [space._np_random for space in plan.spaces]
        context_digests = plan.context_digests(lambda file: StatePickler(file, plan))
        content = (plan.excluded_names, context_digests, attributes, handled, generators, seen)
        file = io.BytesIO()
        try:
            StatePickler(file, plan).dump(content)
        except Exception as error:
            raise _explain_failure(plan, attributes, handled, error) from error
        return file.getvalue()

    def prepare(
        self,
        data: bytes,
        trusted: bool,
        fork: Sequence[int] | None = None,
        plan: StatePlan | None = None,
    ) -> PreparedRestore:
        """Read and check a state without changing the environment."""
        plan = self.plan if plan is None else plan
        rng_fork = None if fork is None else RngFork(fork)
        try:
            state = StateUnpickler(data, plan, trusted, rng_fork)
            names, context_digests, attributes, handled, generators, seen = state.load()
        except FaultError:
            raise
        except Exception as error:
            raise FaultError("", f"cannot read the state: {type_name(error)}: {error}") from error
        now = plan.context_digests(lambda file: StatePickler(file, plan))
        if context_digests != now:
            _check_context_digests(context_digests, now)
        if not len(names) == len(attributes) == len(plan.layers) or len(handled) != len(
            plan.handled
        ):
            raise FaultError(
                "",
                f"expected the state of {len(plan.layers)} wrappers and {len(plan.handled)} "
                "objects with state handlers, got a different number of them",
            )
        if len(generators) != len(plan.spaces):
            raise FaultError(
                "",
                f"expected the state of {len(plan.spaces)} spaces, got that of {len(generators)}",
            )
        doubts: list[str] = []
        for (handler, obj, _), value in zip(plan.handled, handled, strict=True):
            if handler.check is not None and (doubt := handler.check(obj, value)):
                doubts.append(doubt)
        if not trusted:
            _check_untrusted(plan, names, attributes, generators, state.foreign_arrays)
        return PreparedRestore(
            plan,
            names,
            attributes,
            handled,
            generators,
            state.foreign_arrays,
            seen,
            rng_fork,
            doubts,
        )


@dataclass
class PreparedRestore:
    """Checked state that can be applied to an environment."""

    plan: StatePlan
    names: Sequence[str]
    attributes: Sequence[dict[str, Any] | None]
    handled: Sequence[Any]
    generators: Sequence[Any]
    foreign_arrays: Sequence[tuple[Any, bytes]]
    seen: Any
    rng_fork: RngFork | None
    doubts: Sequence[str] = ()

    def apply(self) -> None:
        """Write the state into the environment."""
        plan, names = self.plan, self.names
        same_names = names == plan.excluded_names
        for k, values in enumerate(self.attributes):
            if values is not None:
                plan.layers[k].replace(values, plan.excluded[k], None if same_names else names[k])
        for (handler, obj, path), value in zip(plan.handled, self.handled, strict=True):
            handler.load(obj, value, plan.owner(path))
            if self.rng_fork is not None and handler.fork is not None:
                handler.fork(obj, self.rng_fork)
        for space, generator in zip(plan.spaces, self.generators, strict=True):
            space._np_random = generator
        for array, content in self.foreign_arrays:
            if array.flags.writeable:
                array[...] = np.frombuffer(content, array.dtype).reshape(array.shape)


class RngFork:
    """Derives new random streams from the generators of a state."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = list(numbers)
        self._count = 0
        self._made: dict[int, Any] = {}

    def __call__(self, generator: Any) -> Any:
        """Reseed a generator of NumPy or Python from its own state."""
        if isinstance(generator, np.random.Generator):
            bits = generator.bit_generator
            if id(bits) not in self._made:
                new = type(bits)(self.seed_sequence(repr(bits.state)))
                bits.state = new.state
                self._made[id(bits)] = bits
        elif isinstance(generator, np.random.RandomState):
            state = generator.get_state(legacy=False)
            drawn: Any = np.random.MT19937(self.seed_sequence(repr(state))).state
            generator.set_state(drawn)
        else:
            generator.seed(int(self.seed_sequence(repr(generator.getstate())).generate_state(1)[0]))
        return generator

    def seed_sequence(self, state: str) -> Any:
        """Return a seed derived from a state and the fork's numbers."""
        self._count += 1
        return np.random.SeedSequence([*state.encode(), *self._numbers, self._count])


def _check_context_digests(
    saved: Mapping[str, tuple[int, str]], current: Mapping[str, tuple[int, str]]
) -> None:
    """Compare digests of :meth:`~xuance_envs.state.state_plan.StatePlan.context_digests`."""
    for name in {**saved, **current}:
        if name.startswith(FUNCTION_KEY) and FUNCTION_KEY not in saved:
            continue  # saved by a version that did not record functions
        before, here = saved.get(name, (0, "nothing")), current.get(name, (0, "nothing"))
        if before[0] != here[0]:
            raise MismatchError(name, before[1], here[1])


def _check_untrusted(
    plan: StatePlan,
    names: Any,
    attributes: Sequence[Any],
    generators: Sequence[Any],
    foreign_arrays: Sequence[tuple[Any, Any]],
) -> None:
    """Check the types in a state of unknown origin."""
    for k, values in enumerate(attributes):
        if (values is None) != (k in plan.self_saving_layers) or not isinstance(
            values, dict | None
        ):
            raise FaultError("", f"expected attributes in a dict, got a {type_name(values)}")
    for name in [*names, *(name for values in attributes for name in values or ())]:
        if not isinstance(name, str):
            raise FaultError("", f"expected attribute names as strings, got {name!r}")
    for generator in generators:
        if not isinstance(generator, np.random.Generator | np.random.RandomState | None):
            raise FaultError(
                "", f"expected a NumPy generator for a space, got a {type_name(generator)}"
            )
    for array, content in foreign_arrays:
        if not isinstance(content, bytes) or len(content) != array.nbytes:
            raise FaultError("", f"expected {array.nbytes} bytes for an array, got {content!r}")


def _explain_failure(
    plan: StatePlan, attributes: Any, handled: Any, error: Exception
) -> FaultError:
    """Find the attribute that cannot be saved."""
    for layer, values in zip(plan.layers, attributes, strict=True):
        for name, value in (values or {}).items():
            reason = _pickling_error(plan, value)
            if reason is not None:
                return FaultError(
                    f"{layer.name}.{name}",
                    f"a {type_name(value)} cannot be saved: {reason}. Define __env_state__ and "
                    f"__set_env_state__ in {layer.name}, or use register_state",
                )
    for (_, obj, path), value in zip(plan.handled, handled, strict=True):
        reason = _pickling_error(plan, value)
        if reason is not None:
            owner = plan.layers[path[0]].name
            where = owner if len(path) == 1 else f"{owner}.{path[1]}"
            return FaultError(
                where, f"the state returned for a {type_name(obj)} cannot be saved: {reason}"
            )
    return FaultError("", f"cannot be saved: {error}")


def _pickling_error(plan: StatePlan, value: Any) -> str | None:
    try:
        StatePickler(io.BytesIO(), plan).dump(value)
    except FaultError as fault:
        return fault.reason
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
