"""What is asked of an agent, and the checks of what it answers."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray

__all__ = [
    "ASKED",
    "ActionLayout",
    "Agent",
    "MultiAgent",
    "check_plays_many",
    "check_weights",
    "checked_answer",
    "checked_numbers",
    "device_of",
    "on_cpu",
    "squeezed",
    "takes_masks",
    "weight_shapes",
]

ASKED = "agent.get_actions_and_values"
ANSWER = ("actions", "log_probs", "values", "entropy")


class Agent(Protocol):
    """Chooses actions and estimates values.

    It may have an attribute ``device``, or be a :class:`torch.nn.Module`, whose first parameter
    then tells the device. Where its ``get_actions_and_values`` takes ``masks``, too, it is given
    those of the actions, ``(n, m)`` bools as
    :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.action_masks` has them; if it has a default
    for them, only where the environments have some.
    """

    def get_actions_and_values(
        self, states: Any, actions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Acts in some states.

        Args:
            states: ``(n, *state_shape)`` on the agent's device; for a Dict space a dict of such.
            actions: None to choose actions, or ``(n, *action_shape)`` to judge those.

        Returns:
            ``(actions, log_probs, values, entropy)``: the actions ``(n, *action_shape)``, for a
            Discrete space also ``(n, 1)``, their log-probabilities ``(n,)`` and the values of the
            states ``(n,)``. The entropy, in whatever form, is for the agent's training only.
        """


class MultiAgent(Protocol):
    """Chooses the actions of all agents, and estimates values.

    It may have an attribute ``device``, or be a :class:`torch.nn.Module`, whose first parameter
    then tells the device.
    """

    def get_actions_and_values(
        self, obs: Any, states: Any, masks: Any, actions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Acts for the agents of n environments.

        Args:
            obs: ``(n, A, *shape)``; for Dict and Tuple spaces dicts and tuples of such.
            states: ``(n, *state_shape)``, of the environments; None where there are none.
            masks: ``(n, A, k)`` bool, which actions may be taken; None where there are none.
            actions: None to choose actions, or ``(n, A, *action_shape)`` to judge those.

        Returns:
            ``(actions, log_probs, values, entropy)``: the actions ``(n, A, *action_shape)``, their
            log-probabilities and the values, both ``(n, A)``. The entropy, in whatever form, is for
            the training only.
        """


def takes_masks(agent: Any) -> tuple[bool, bool]:
    """Whether an agent takes masks of actions, and whether it insists on them."""
    try:
        parameters = inspect.signature(agent.get_actions_and_values).parameters
    except (AttributeError, TypeError, ValueError):  # without a signature
        return False, False
    masks = parameters.get("masks")
    return masks is not None, masks is not None and masks.default is inspect.Parameter.empty


def check_plays_many(agent: Any) -> None:
    """Sees whether an agent can be asked for many agents.

    Raises:
        TypeError: it takes other arguments.
    """
    try:
        signature = inspect.signature(agent.get_actions_and_values)
    except (TypeError, ValueError):  # without a signature
        return
    try:
        signature.bind(None, None, None)
    except TypeError:
        raise TypeError(
            f"{ASKED}: expected (obs, states, masks, actions=None) where environments have many "
            f"agents, got {signature}"
        ) from None


def device_of(agent: Any, device: torch.device | str | None) -> torch.device:
    """The device to use: as given, else the agent's, else CUDA when there is one, else the CPU."""
    found = device if device is not None else getattr(agent, "device", None)
    if found is None and isinstance(agent, torch.nn.Module):
        parameter = next(agent.parameters(), None)
        found = None if parameter is None else parameter.device
    if found is None:
        found = "cuda" if torch.cuda.is_available() else "cpu"
    # A tensor's own device has an index where devices of its kind are counted.
    return torch.empty(0, device=found).device


def checked_answer(
    answer: Any, rows: tuple[int, ...], action_shape: tuple[int, ...], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The actions, log-probabilities and values of an agent's answer, once they are in order.

    Args:
        answer: the agent's.
        rows: for how many it is: of environments, or of environments and agents.
        action_shape: of one action.
        device: where it is to be.

    Raises:
        ValueError: a wrong number of outputs, a wrong shape, or another device.
        TypeError: something is not a tensor.
    """
    if not isinstance(answer, tuple | list) or len(answer) != len(ANSWER):
        got = f"{len(answer)}" if isinstance(answer, tuple | list) else type(answer).__name__
        raise ValueError(
            f"{ASKED}: expected {len(ANSWER)} outputs ({', '.join(ANSWER)}), got {got}"
        )
    actions, log_probs, values, _ = answer
    if isinstance(actions, torch.Tensor):
        actions = squeezed(actions, (*rows, *action_shape), action_shape)
    _check("actions", actions, (*rows, *action_shape), device)
    _check("log_probs", log_probs, rows, device)
    _check("values", values, rows, device)
    return actions, log_probs, values


def squeezed(
    actions: torch.Tensor, shape: tuple[int, ...], action_shape: tuple[int, ...]
) -> torch.Tensor:
    """Actions that are single numbers as ``(n,)``, also where they come as a column, ``(n, 1)``."""
    is_column = not action_shape and actions.ndim == len(shape) + 1 and actions.shape[-1] == 1
    return actions.squeeze(-1) if is_column else actions


def _check(name: str, tensor: Any, shape: tuple[int, ...], device: torch.device) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{ASKED}: {name}: expected a torch.Tensor, got a {type(tensor).__name__}")
    if tensor.shape != shape:
        raise ValueError(f"{ASKED}: {name}: expected shape {shape}, got {tuple(tensor.shape)}")
    if tensor.device != device:
        raise ValueError(
            f"{ASKED}: {name}: expected a tensor on {device}, got one on {tensor.device}; move the "
            f"agent there, or give the collector device={str(tensor.device)!r}"
        )


def checked_numbers(name: str, values: torch.Tensor) -> None:
    """Checks that a rollout's values, ``(T, N)``, are numbers.

    Raises:
        ValueError: there is a NaN among them; says at which step and in which environments.
    """
    wrong = torch.isnan(values)
    if not wrong.any():
        return
    places = wrong.nonzero()
    step = int(places[0, 0])
    envs = sorted({env for t, env, *_ in places.tolist() if t == step})
    raise ValueError(
        f"{ASKED}: {name}: expected numbers, got NaN from step {step} of the "
        f"rollout on, there for environments {envs}"
    )


class ActionLayout:
    """How an agent's actions are stored and given to environments.

    Args:
        space: the action space of one environment.

    Raises:
        ValueError: it is not Discrete, MultiDiscrete, MultiBinary or Box.

    Attributes:
        shape (tuple[int, ...]): of one action.
        dtype (torch.dtype): of stored actions: float32 for Box, else int32.
    """

    def __init__(self, space: Space[Any]) -> None:
        counted = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
        if not isinstance(space, (spaces.Box, *counted)):
            raise ValueError(
                f"expected an action space that is Discrete, MultiDiscrete, MultiBinary or Box, "
                f"got {space}"
            )
        assert space.shape is not None
        assert space.dtype is not None
        self.shape: tuple[int, ...] = space.shape
        self.dtype = torch.float32 if isinstance(space, spaces.Box) else torch.int32
        self._counted = isinstance(space, counted)
        self._env_dtype: np.dtype[Any] = np.dtype(space.dtype)

    def for_envs(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Actions in the dtype that environments take, if that loses nothing.

        Raises:
            ValueError: there is a NaN among them, or a fraction where an integer is wanted.
        """
        if actions.dtype.kind == "f":
            self._check_floats(actions)
        if actions.dtype == self._env_dtype:
            return actions
        if actions.dtype.kind == "f" and not self._counted:
            actions = actions.astype(np.float32)  # as they are stored
        elif actions.dtype.kind == "f":
            actions = actions.astype(np.int32)
        if np.can_cast(actions.dtype, self._env_dtype, "safe"):
            return actions.astype(self._env_dtype)
        return actions  # the vector environment says whether they fit

    def _check_floats(self, actions: NDArray[Any]) -> None:
        wrong = np.isnan(actions)
        what = "numbers, got NaN"
        if not wrong.any() and self._counted:
            wrong = actions != actions.round()
            what = f"whole numbers, got {actions[wrong][:1].tolist()}"
        if wrong.any():
            envs: Sequence[int] = np.unique(wrong.nonzero()[0]).tolist()
            raise ValueError(f"{ASKED}: actions: expected {what} for environments {envs}")


def on_cpu(agent: Any) -> Any:
    """The agent, or a copy whose parameters any machine has room for."""
    if isinstance(agent, torch.nn.Module) and any(
        tensor.device.type != "cpu" for tensor in agent.state_dict().values()
    ):
        return copy.deepcopy(agent).cpu()
    return agent


def weight_shapes(agent: Any) -> dict[str, Any] | None:
    """The shapes of an agent's parameters by name; None where it cannot be given other ones."""
    state_dict = getattr(agent, "state_dict", None)
    if not callable(state_dict) or not callable(getattr(agent, "load_state_dict", None)):
        return None
    return {name: getattr(value, "shape", None) for name, value in state_dict().items()}


def check_weights(state_dict: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
    """Sees whether weights fit an agent.

    Args:
        state_dict: the weights.
        shapes: those of the agent, as :func:`weight_shapes` tells them.

    Raises:
        ValueError: a parameter is missing, unknown, or of another shape; says which.
    """
    for name, shape in shapes.items():
        if name not in state_dict:
            raise ValueError(f"update_agent: expected parameter {name!r}, which is missing")
        got = getattr(state_dict[name], "shape", None)
        if got != shape:
            told = [None if s is None else tuple(s) for s in (shape, got)]
            raise ValueError(
                f"update_agent: parameter {name!r}: expected shape {told[0]}, got {told[1]}"
            )
    for name in state_dict:
        if name not in shapes:
            raise ValueError(f"update_agent: got parameter {name!r}, which the agent does not have")
