"""States that version 0.2 saved.

They lack closures of functions, pygame's objects, and class attributes other than those of the
environment and its wrappers. Environments whose functions hold state in closures reject these
states.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any

from xuance_envs.state.faults import FaultError, MismatchError
from xuance_envs.state.fingerprint import is_space
from xuance_envs.state.handlers import handler_of
from xuance_envs.state.state_plan import StatePlan
from xuance_envs.state.values.functions import cell_content, full_name

_FUNCTION, _CLASS_ATTRIBUTE = "function: ", "class attribute: "
_CONSTANT = type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType


def converted(content: tuple[Any, ...], plan: StatePlan) -> tuple[Any, ...]:
    """Convert the content of a state of version 0.2 to the current form."""
    names, digests, attributes, handled, generators, seen = content
    _check_functions(plan)
    _check_digests(digests, plan)
    objects = list(_handled_objects(plan))
    for what, own, given in (
        ("spaces", plan.spaces, generators),
        ("objects with handlers", objects, handled),
    ):
        if len(own) != len(given):
            raise FaultError("", f"expected the state of {len(own)} {what}, got {len(given)}")
    found = zip(plan.spaces, generators, strict=True)
    values = {id(obj): value for obj, value in zip(objects, handled, strict=True)}
    states = [values.get(id(obj)) for _, obj, _, _ in plan.handled]
    return plan.table, 0, names, attributes, states, dict(found), seen


def _check_functions(plan: StatePlan) -> None:
    for function in plan.held.functions:
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            value = cell_content(cell)
            is_constant = isinstance(value, _CONSTANT) or is_space(value)
            if id(value) not in plan.known and not is_constant:
                raise FaultError(
                    "",
                    f"the state is of version 0.2, which did not save the variable {name!r} of the "
                    f"function {full_name(function)}: save the environment again "
                    "with this version",
                )


def _check_digests(digests: Mapping[str, tuple[int, str]], plan: StatePlan) -> None:
    values = {f"{layer.name}.{n}": value for layer in plan.layers for n, value in layer.items()}
    classes = {kind.__qualname__: kind for la in plan.layers for kind in type(la.obj).__mro__}
    for key, (_, saved) in digests.items():
        here = saved
        if key.startswith(_FUNCTION):
            here = full_name(values.get(key.removeprefix(_FUNCTION)))
        elif key.startswith(_CLASS_ATTRIBUTE):
            name, _, attribute = key.removeprefix(_CLASS_ATTRIBUTE).rpartition(".")
            if "0x" not in saved and "{" not in saved:  # no address, no set
                here = repr(getattr(classes.get(name), attribute, None))[:200]
        if saved != here:
            raise MismatchError(key, saved, here)


def _handled_objects(plan: StatePlan) -> Iterator[Any]:
    """Yield the objects whose states version 0.2 saved, in the saved order."""
    seen: set[int] = set()
    for layer in plan.layers:
        items = [value for _, value in layer.items()]
        for value in [layer.obj] if layer.saves_itself else items:
            is_layer = len(plan.known.get(id(value), ())) == 1 and value is not layer.obj
            if not is_layer and id(value) not in seen and handler_of(type(value)) is not None:
                seen.add(id(value))
                yield value
