"""Saving and restoring one environment."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import numpy as np

from xuance_envs.state import box2d, mujoco, old_states  # noqa: F401  # they register handlers
from xuance_envs.state.faults import FaultError, type_name, type_phrase
from xuance_envs.state.handlers import Handler
from xuance_envs.state.pickling import StalePlanError, StatePickler
from xuance_envs.state.state_plan import StatePlan
from xuance_envs.state.unpickling import StateUnpickler, Target
from xuance_envs.state.values.constants import check as check_constants
from xuance_envs.state.values.graph import parts_of
from xuance_envs.state.values.held_values import Path

_VERSION = 2
_PARTS_OF_0_2 = 6
_STRING = frozenset({str})
_GENERATORS = np.random.Generator, np.random.RandomState, type(None)


class EnvCheckpointer:
    """Checkpoints of one environment: saving and restoring its state."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self._plan: StatePlan | None = None

    @property
    def plan(self) -> StatePlan:
        """The current plan, made again if a space or a kept object has changed."""
        plan = self._plan
        if plan is None or not plan.is_current():
            plan = self._plan = StatePlan(self.env)
        return plan

    @property
    def saved_plan(self) -> StatePlan:
        """Plan of the state that was saved last."""
        assert self._plan is not None
        return self._plan

    def save(self, seen: Any = None) -> bytes:
        """Serialize the environment's state and ``seen``, its latest result."""
        try:
            return self._save(self.plan, seen, is_fresh=False)
        except StalePlanError:
            plan = self._plan = StatePlan(self.env)
            return self._save(plan, seen, is_fresh=True)

    def _save(self, plan: StatePlan, seen: Any, is_fresh: bool) -> bytes:
        plan.check_resources()
        attributes: list[dict[str, Any] | None] = []
        for layer in plan.layers:
            if layer.saves_itself:
                attributes.append(None)
                continue
            values = dict(layer.items()) if layer.slots else layer.attributes.copy()
            for name in layer.excluded:
                del values[name]
            attributes.append(values)
        handled = [handler.save(obj, owner) for handler, obj, owner, _ in plan.handled]
        # The public property creates a missing generator, and has no setter.
        generators = {
            name: generator
            for name, space in plan.spaces.items()
            if (generator := space._np_random) is not None
        }
        content = None, _VERSION, plan.excluded_names, attributes, handled, generators, seen
        file = io.BytesIO()
        pickler = StatePickler(file, plan, is_fresh)
        try:
            pickler.dump(content)
            if facts := plan.facts(pickler.used):
                file.write(pickle.dumps(facts, pickle.HIGHEST_PROTOCOL))
        except StalePlanError:
            raise
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
            content = state.load()
            is_old = len(content) == _PARTS_OF_0_2
            if is_old:
                state.target.kept_table(plan.table)
                content = old_states.converted(content, plan)
            _, _, names, attributes, handled, generators, seen = content
            facts = state.load_facts()
        except FaultError:
            raise
        except Exception as error:
            raise FaultError("", f"cannot read the state: {type_name(error)}: {error}") from error
        target: Target = state.target
        if not is_old and facts != (here := plan.facts(target.used)):
            check_constants(facts, here)
        if not len(names) == len(attributes) == len(plan.layers):
            raise FaultError(
                "",
                f"expected {len(plan.layers)} sets of attributes and of excluded names (one per "
                f"environment or wrapper), got {len(attributes)} and {len(names)}",
            )
        pairs = target.handled(handled) if handled or plan.kept or is_old else []
        if not generators.keys() <= plan.spaces.keys():
            unknown, own = sorted(generators.keys() - plan.spaces.keys()), sorted(plan.spaces)
            raise FaultError("", f"expected generators of the spaces {own}, got those of {unknown}")
        checks = [one.check(obj, value) for one, obj, value, _ in pairs if one.check is not None]
        doubts = [doubt for doubt in checks if doubt]
        if not trusted:
            _check_untrusted(plan, names, attributes, generators)
        return PreparedRestore(plan, names, attributes, pairs, generators, seen, rng_fork, doubts)


@dataclass
class PreparedRestore:
    """Checked state that can be applied to an environment."""

    plan: StatePlan
    names: Sequence[str]
    attributes: Sequence[dict[str, Any] | None]
    handled: Sequence[tuple[Handler, Any, Any, Any]]
    generators: Mapping[str, Any]
    seen: Any
    rng_fork: RngFork | None
    doubts: Sequence[str] = ()

    def apply(self) -> None:
        plan, names = self.plan, self.names
        same_names = names == plan.excluded_names
        for k, values in enumerate(self.attributes):
            if values is not None:
                plan.layers[k].replace(values, None if same_names else names[k])
        for handler, obj, value, owner in self.handled:
            handler.load(obj, value, owner)
            if self.rng_fork is not None and handler.fork is not None:
                handler.fork(obj, self.rng_fork)
        for name, space in plan.spaces.items():
            space._np_random = self.generators.get(name)


class RngFork:
    """Function that reseeds the generators in a state, so that forks draw different numbers."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = list(numbers)
        self._count = count(1)

    def __call__(self, generator: Any) -> Any:
        """Return a reseeded generator or seed sequence, which may be the given object."""
        if isinstance(generator, np.random.BitGenerator):
            return type(generator)(self.seed_sequence(repr(generator.state)))
        if isinstance(generator, np.random.SeedSequence):
            return self.seed_sequence(repr(generator))
        if isinstance(generator, np.random.Generator):
            return np.random.Generator(self(generator.bit_generator))
        if isinstance(generator, np.random.RandomState):
            state: Any = generator.get_state(legacy=False)
            kind: Any = type(generator._bit_generator)
            drawn = kind(self.seed_sequence(repr(state))).state
            generator.set_state({**drawn, "has_gauss": 0, "gauss": 0.0})
        elif isinstance(generator, random.Random):
            state = random.Random.getstate(generator)
            generator.seed(int(self.seed_sequence(repr(state)).generate_state(1)[0]))
        else:  # of PyTorch
            state = generator.get_state().numpy().tobytes()
            generator.manual_seed(int(self.seed_sequence(state.hex()).generate_state(1)[0]))
        return generator

    def seed_sequence(self, state: str) -> Any:
        """Derive a seed from a generator's state, the fork, and the number of earlier calls."""
        return np.random.SeedSequence([*state.encode(), *self._numbers, next(self._count)])


def _check_untrusted(
    plan: StatePlan, names: Any, attributes: Sequence[Any], generators: Mapping[str, Any]
) -> None:
    types: Any = [*map(type, attributes)]
    if types != plan.attribute_types:
        expected = plan.attribute_types
        raise FaultError("", f"expected attributes of the types {expected}, got {types}")
    types = {*map(type, chain(names, *filter(None, attributes)))}
    if not types <= _STRING:
        raise FaultError("", f"expected attribute names as strings, got the types {types}")
    for generator in generators.values():
        if not isinstance(generator, _GENERATORS):
            given = type_name(generator)
            raise FaultError("", f"expected a NumPy generator for a space, got {given}")


def _explain_failure(
    plan: StatePlan, attributes: Any, handled: Any, error: Exception
) -> FaultError:
    """Return a fault that names the attribute that cannot be saved."""
    held = [(k, *item) for k, values in enumerate(attributes) for item in (values or {}).items()]
    for k, name, value in held:
        if _pickling_error(plan, value) is not None:
            path, inner, why = _innermost(plan, (k, name), value)
            return plan.fault(path, inner, f"cannot be saved: {why}")
    for n, (k, name, value) in enumerate(held):
        reason = _pickling_error(plan, held[: n + 1])
        if reason is not None:  # it fails only together with the attributes before it
            return plan.fault((k, name), value, f"cannot be saved: {reason}")
    for (_, obj, _, path), value in zip(plan.handled, handled, strict=True):
        reason = _pickling_error(plan, value)
        if reason is not None:
            return FaultError(
                plan.text(path[:2]),
                f"the state returned for {type_phrase(obj)} cannot be saved: {reason}",
            )
    return error if isinstance(error, FaultError) else FaultError("", f"cannot be saved: {error}")


def _innermost(plan: StatePlan, path: Path, value: Any) -> tuple[Path, Any, str | None]:
    """Return the path of the innermost part that cannot be saved, the part, and the reason."""
    seen = {id(value)}
    while True:
        reason = _error_of(StatePickler(io.BytesIO(), plan).reducer_override, value)
        if reason is not None:
            return path, value, reason
        for step, part in parts_of(value):
            if id(part) not in seen and _pickling_error(plan, part) is not None:
                seen.add(id(part))
                path, value = (*path, step), part
                break
        else:
            return path, value, _pickling_error(plan, value)


def _pickling_error(plan: StatePlan, value: Any) -> str | None:
    return _error_of(StatePickler(io.BytesIO(), plan).dump, value)


def _error_of(save: Callable[[Any], Any], value: Any) -> str | None:
    try:
        save(value)
    except FaultError as fault:
        return fault.reason
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
