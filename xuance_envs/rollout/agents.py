"""Agent interfaces, and checks of agent outputs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray

from xuance_envs.errors import name_envs

__all__ = ["Agent", "MultiAgent"]

AgentOutputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Actions, log-probabilities and values."""

ASKED = "agent.get_actions_and_values"
OUTPUTS = ("actions", "log_probs", "values", "entropy")


class Agent(Protocol):
    """Interface of an agent that chooses actions and estimates values.

    The device is taken from an attribute ``device``, or from the first parameter of a
    :class:`torch.nn.Module`. If ``get_actions_and_values`` has a parameter ``masks``, collectors
    pass the action masks, ``(n, m)`` bool for m actions; see
    :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.action_masks`. If the parameter has
    a default, the environments need not provide masks.
    """

    def get_actions_and_values(
        self, states: Any, actions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Choose actions for a batch of states, or evaluate given actions.

        Args:
            states: ``(n, *state_shape)`` on the agent's device; for a Dict space a dict of tensors.
                Rollouts pass the states of all environments, or of one half with ``halves=2``.
                ``advantages`` passes all ``end_states``.
            actions: actions to evaluate, ``(n, *action_shape)``; None to choose actions, as
                collectors do.

        Returns:
            ``(actions, log_probs, values, entropy)``: the actions ``(n, *action_shape)``, where a
            Discrete space also allows ``(n, 1)``; their log-probabilities ``(n,)``; the values of
            the states ``(n,)``, or ``(n, k)`` for rewards of k components. Collectors ignore the
            entropy.
        """


class MultiAgent(Protocol):
    """Interface of an agent that chooses the actions of all agents of an environment.

    The device is taken from an attribute ``device``, or from the first parameter of a
    :class:`torch.nn.Module`.
    """

    def get_actions_and_values(
        self, obs: Any, states: Any, masks: Any, actions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Choose actions for all agents of n environments, or evaluate given actions.

        Args:
            obs: ``(n, A, *shape)`` for A agents; for Dict and Tuple spaces dicts and tuples.
            states: ``(n, *state_shape)``, global states; None if the environments have none.
            masks: ``(n, A, m)`` bool action masks of m actions; None if environments have none.
            actions: actions to evaluate, ``(n, A, *action_shape)``; None to choose actions.

        Returns:
            ``(actions, log_probs, values, entropy)``: the actions ``(n, A, *action_shape)``, and
            their log-probabilities and the values, both ``(n, A)``. Collectors ignore the entropy.
        """


def check_agent(agent: Any) -> None:
    """Raise a TypeError unless an agent has ``get_actions_and_values``."""
    if not callable(getattr(agent, "get_actions_and_values", None)):
        raise TypeError(
            "agent: expected an object with the method get_actions_and_values(states, "
            f"actions=None), got {type(agent).__name__}"
        )


def takes_masks(agent: Any) -> tuple[bool, bool]:
    """Return whether an agent accepts action masks, and whether it requires them."""
    signature = _signature_of(agent)
    masks = None if signature is None else signature.parameters.get("masks")
    return masks is not None, masks is not None and masks.default is inspect.Parameter.empty


def _signature_of(agent: Any) -> inspect.Signature | None:
    with suppress(AttributeError, TypeError, ValueError):
        return inspect.signature(agent.get_actions_and_values)
    return None


def check_plays_many(agent: Any) -> None:
    """Raise a TypeError unless an agent's method has the signature of :class:`MultiAgent`."""
    signature = _signature_of(agent)
    try:
        if signature is not None:
            signature.bind(None, None, None)
    except TypeError:
        raise TypeError(
            f"{ASKED}: expected (obs, states, masks, actions=None) for multi-agent environments, "
            f"got {signature}"
        ) from None


def device_of(agent: Any, device: torch.device | str | None) -> torch.device:
    """Return the given device, else the agent's, else CUDA if available, else the CPU."""
    found = device if device is not None else getattr(agent, "device", None)
    if found is None and isinstance(agent, torch.nn.Module):
        parameter = next(agent.parameters(), None)
        found = None if parameter is None else parameter.device
    if found is None:
        found = "cuda" if torch.cuda.is_available() else "cpu"
    # A tensor's device includes the index, as in "cuda:0".
    return torch.empty(0, device=found).device


def checked_answer(
    answer: Any,
    rows: tuple[int, ...],
    action_shape: tuple[int, ...],
    value_shape: tuple[int, ...],
    device: torch.device,
) -> AgentOutputs:
    """Validate an agent's outputs for ``rows``: ``(n,)``, or ``(n, A)`` for A agents."""
    is_sequence = isinstance(answer, tuple | list)
    if not is_sequence or len(answer) != len(OUTPUTS):
        got = len(answer) if is_sequence else type(answer).__name__
        raise ValueError(
            f"{ASKED}: expected {len(OUTPUTS)} outputs ({', '.join(OUTPUTS)}), got {got}"
        )
    actions, log_probs, values, _ = answer
    if isinstance(actions, torch.Tensor):
        actions = squeezed(actions, (*rows, *action_shape), action_shape)
    _check("actions", actions, (*rows, *action_shape), device)
    _check("log_probs", log_probs, rows, device)
    _check("values", values, (*rows, *value_shape), device)
    return actions, log_probs, values


def squeezed(
    actions: torch.Tensor, shape: tuple[int, ...], action_shape: tuple[int, ...]
) -> torch.Tensor:
    """Remove the last axis of scalar actions of shape ``(..., 1)``."""
    is_column = not action_shape and actions.ndim == len(shape) + 1 and actions.shape[-1] == 1
    return actions.squeeze(-1) if is_column else actions


def _check(name: str, tensor: Any, shape: tuple[int, ...], device: torch.device) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{ASKED}: {name}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.shape != shape:
        hint = ""
        if name == "values" and tensor.shape == shape[:-1]:
            hint = "; rewards are vectors: estimate each component, or pass scalarize"
        got = tuple(tensor.shape)
        raise ValueError(f"{ASKED}: {name}: expected shape {shape}, got {got}{hint}")
    if tensor.device != device:
        raise ValueError(
            f"{ASKED}: {name}: expected a tensor on {device}, got one on {tensor.device}; move the "
            f"agent to {device}, or pass device={str(tensor.device)!r} to the collector"
        )


def checked_numbers(name: str, values: torch.Tensor) -> None:
    """Raise a ValueError if an output of shape ``(T, N, ...)`` contains NaN."""
    wrong = torch.isnan(values)
    if not wrong.any():
        return
    places = wrong.nonzero().tolist()
    step = places[0][0]
    envs = sorted({env for t, env, *_ in places if t == step})
    raise ValueError(
        f"{ASKED}: {name}: expected numbers, got NaN, first at step {step} of the "
        f"rollout in {name_envs(envs)}"
    )


class ActionLayout:
    """Shape and dtype of an agent's stored actions, and their conversion for environments."""

    def __init__(self, space: Space[Any]) -> None:
        counted = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
        if not isinstance(space, (spaces.Box, *counted)):
            raise ValueError(
                f"action space: expected Discrete, MultiDiscrete, MultiBinary or Box, got {space}"
            )
        assert space.shape is not None
        self.shape: tuple[int, ...] = space.shape
        self.dtype = torch.float32 if isinstance(space, spaces.Box) else torch.int32
        self._counted = isinstance(space, counted)
        self._stored_dtype = np.dtype(np.int32 if self._counted else np.float32)
        self._env_dtype: np.dtype[Any] = np.dtype(space.dtype)

    def for_envs(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Convert actions for the environments; raise a ValueError for invalid numbers."""
        kind, fits = actions.dtype.kind, np.can_cast(actions.dtype, self._stored_dtype, "safe")
        if kind == "f" or (kind in "iu" and not fits):
            actions = self._as_stored(actions)  # environments get the values that rollouts store
        if actions.dtype != self._env_dtype and np.can_cast(actions.dtype, self._env_dtype, "safe"):
            return actions.astype(self._env_dtype)
        return actions  # the vec env checks them

    def _as_stored(self, actions: NDArray[Any]) -> NDArray[Any]:
        wrong, mismatch = np.isnan(actions), "numbers, got NaN"
        with np.errstate(invalid="ignore", over="ignore"):
            stored = actions.astype(self._stored_dtype, copy=False)
        if not wrong.any() and (self._counted or actions.dtype.kind != "f"):
            wrong = stored.astype(np.float64) != actions
            numbers = "whole numbers in the range of int32" if self._counted else "float32 numbers"
            mismatch = f"{numbers}, got {actions[wrong][:1].tolist()}"
        if wrong.any():
            envs: Sequence[int] = np.unique(wrong.nonzero()[0]).tolist()
            raise ValueError(f"{ASKED}: actions: expected {mismatch} for {name_envs(envs)}")
        return stored


def on_cpu(agent: Any) -> Any:
    """Return the agent, or a copy on the CPU if it has parameters on a different device."""
    if isinstance(agent, torch.nn.Module) and any(
        tensor.device.type != "cpu" for tensor in agent.state_dict().values()
    ):
        return copy.deepcopy(agent).cpu()
    return agent


def weight_shapes(agent: Any) -> dict[str, Any] | None:
    """Return the shapes of an agent's parameters by name; None if it has no state dict."""
    state_dict = getattr(agent, "state_dict", None)
    if not callable(state_dict) or not callable(getattr(agent, "load_state_dict", None)):
        return None
    return {name: getattr(value, "shape", None) for name, value in state_dict().items()}


def check_weights(state_dict: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
    """Raise a ValueError unless weights have the names and shapes of an agent's parameters."""
    for name, shape in shapes.items():
        if name not in state_dict:
            raise ValueError(f"update_agent: parameter {name!r} is missing")
        got = getattr(state_dict[name], "shape", None)
        if got != shape:
            expected, given = (None if s is None else tuple(s) for s in (shape, got))
            raise ValueError(
                f"update_agent: parameter {name!r}: expected shape {expected}, got {given}"
            )
    for name in state_dict:
        if name not in shapes:
            raise ValueError(f"update_agent: the agent has no parameter {name!r}")
