"""One environment saved and loaded."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xuance_envs.state import box2d, mujoco  # noqa: F401  # what they handle
from xuance_envs.state.faults import FaultError, MismatchError, kind_of
from xuance_envs.state.pickling import StatePickler, StateUnpickler
from xuance_envs.state.plan import FUNCTION, Plan

__all__ = ["Prepared", "StateOfEnv"]


class StateOfEnv:
    """Takes the state of an environment, and puts others in.

    Args:
        env: the environment.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._plan: Plan | None = None

    @property
    def plan(self) -> Plan:
        """What of it is state, as it is now."""
        plan = self._plan
        if plan is None or not plan.is_current():
            plan = self._plan = Plan(self._env)
        return plan

    def save(self, seen: Any = None, plan: Plan | None = None) -> bytes:
        """Its state.

        Args:
            seen: what is to be kept with it.
            plan: what :attr:`plan` just was; None to look.

        Raises:
            FaultError: something in it cannot be saved.
        """
        plan = self.plan if plan is None else plan
        whole = plan.whole
        attributes: list[dict[str, Any] | None] = []
        for k, (layer, kept) in enumerate(zip(plan.layers, plan.kept, strict=True)):
            if k in whole:
                attributes.append(None)
                continue
            values = dict(layer.items()) if layer.slots else layer.attributes.copy()
            for name in kept:
                del values[name]
            attributes.append(values)
        handled = [handler.save(obj, plan.owner(path)) for handler, obj, path in plan.handled]
        # The public name would make one where there is none yet, and cannot be assigned to.
        generators = [space._np_random for space in plan.spaces]
        around = plan.around(lambda file: StatePickler(file, plan))
        content = (plan.kept_names, around, attributes, handled, generators, seen)
        file = io.BytesIO()
        try:
            StatePickler(file, plan).dump(content)
        except Exception as error:
            raise _why_not(plan, attributes, handled, error) from error
        return file.getvalue()

    def prepare(
        self,
        data: bytes,
        trusted: bool,
        fork: Sequence[int] | None = None,
        plan: Plan | None = None,
    ) -> Prepared:
        """Reads a state and sees whether it can be put in; changes nothing.

        Args:
            data: the state.
            trusted: whether it may name classes of any module.
            fork: numbers that its generators are derived from anew; None leaves them.
            plan: what :attr:`plan` just was; None to look.

        Raises:
            FaultError: it cannot be read.
            MismatchError: it is of an environment that is not like this one.
        """
        plan = self.plan if plan is None else plan
        spawn = None if fork is None else Fork(fork)
        try:
            state = StateUnpickler(data, plan, trusted, spawn)
            names, around, attributes, handled, generators, seen = state.load()
        except FaultError:
            raise
        except Exception as error:
            raise FaultError("", f"cannot read the state: {kind_of(error)}: {error}") from error
        now = plan.around(lambda file: StatePickler(file, plan))
        if around != now:
            _check_around(around, now)
        if not len(names) == len(attributes) == len(plan.layers) or len(handled) != len(
            plan.handled
        ):
            raise FaultError("", "the state has another number of wrappers than the environment")
        if len(generators) != len(plan.spaces):
            raise FaultError("", "the state has another number of spaces than the environment")
        for (handler, obj, _), value in zip(plan.handled, handled, strict=True):
            if handler.check is not None:
                handler.check(obj, value)
        return Prepared(plan, names, attributes, handled, generators, state.contents, seen, spawn)


@dataclass
class Prepared:
    """A state that can be put into an environment.

    Attributes:
        seen: what was kept with it.
    """

    plan: Plan
    names: Sequence[str]
    attributes: Sequence[dict[str, Any] | None]
    handled: Sequence[Any]
    generators: Sequence[Any]
    contents: Sequence[tuple[Any, bytes]]
    seen: Any
    spawn: Fork | None

    def put_in(self) -> None:
        """Puts it in."""
        plan, names = self.plan, self.names
        alike = names == plan.kept_names
        for k, values in enumerate(self.attributes):
            if values is not None:
                plan.layers[k].replace(values, plan.kept[k], None if alike else names[k])
        for (handler, obj, path), value in zip(plan.handled, self.handled, strict=True):
            handler.load(obj, value, plan.owner(path))
            if self.spawn is not None and handler.fork is not None:
                handler.fork(obj, self.spawn)
        for space, generator in zip(plan.spaces, self.generators, strict=True):
            space._np_random = generator
        for array, content in self.contents:
            if array.flags.writeable:
                array[...] = np.frombuffer(content, array.dtype).reshape(array.shape)


class Fork:
    """Derives other generators from those of a state.

    Args:
        numbers: what tells this environment from others that the state is put into.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = list(numbers)
        self._count = 0
        self._made: dict[int, Any] = {}

    def __call__(self, generator: Any) -> Any:
        """Gives a generator of NumPy's or Python's another state."""
        if isinstance(generator, np.random.Generator):
            bits = generator.bit_generator
            if id(bits) not in self._made:
                new = type(bits)(self.sequence(repr(bits.state)))
                bits.state = new.state
                self._made[id(bits)] = bits
        elif isinstance(generator, np.random.RandomState):
            state = generator.get_state(legacy=False)
            drawn: Any = np.random.MT19937(self.sequence(repr(state))).state
            generator.set_state(drawn)
        else:
            generator.seed(int(self.sequence(repr(generator.getstate())).generate_state(1)[0]))
        return generator

    def sequence(self, state: str) -> Any:
        """A seed that follows from a state and the numbers."""
        self._count += 1
        return np.random.SeedSequence([*state.encode(), *self._numbers, self._count])


def _check_around(then: Mapping[str, tuple[int, str]], now: Mapping[str, tuple[int, str]]) -> None:
    """Compares what :meth:`~xuance_envs.state.plan.Plan.around` gave.

    Raises:
        MismatchError: something is another one.
    """
    for name in {**then, **now}:
        if name.startswith(FUNCTION) and FUNCTION not in then:
            continue  # it was saved before these were told
        before, here = then.get(name, (0, "nothing")), now.get(name, (0, "nothing"))
        if before[0] != here[0]:
            raise MismatchError(name, before[1], here[1])


def _why_not(plan: Plan, attributes: Any, handled: Any, error: Exception) -> FaultError:
    """Finds what could not be saved."""
    for layer, values in zip(plan.layers, attributes, strict=True):
        for name, value in (values or {}).items():
            reason = _refusal(plan, value)
            if reason is not None:
                return FaultError(
                    f"{layer.name}.{name}",
                    f"a {kind_of(value)} cannot be saved: {reason}. Give {layer.name} "
                    "__env_state__ and __set_env_state__, or use register_state",
                )
    for (_, obj, path), value in zip(plan.handled, handled, strict=True):
        reason = _refusal(plan, value)
        if reason is not None:
            owner = plan.layers[path[0]].name
            where = owner if len(path) == 1 else f"{owner}.{path[1]}"
            return FaultError(
                where, f"what a {kind_of(obj)} gave for its state cannot be saved: {reason}"
            )
    return FaultError("", f"cannot be saved: {error}")


def _refusal(plan: Plan, value: Any) -> str | None:
    try:
        StatePickler(io.BytesIO(), plan).dump(value)
    except FaultError as fault:
        return fault.reason
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
