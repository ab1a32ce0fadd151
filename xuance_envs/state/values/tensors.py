"""Pickle reducers of PyTorch's tensors. Tensors and arrays still share memory after loading."""

from __future__ import annotations

import functools
import importlib
import weakref
from typing import Any

from xuance_envs.state import rebuild
from xuance_envs.state.faults import module_of


def is_tensor(value: Any) -> bool:
    kind: Any = type(value)
    return _is_tensor_class(kind)


@functools.cache
def _is_tensor_class(kind: Any) -> bool:
    return any((module_of(base), base.__name__) == ("torch", "Tensor") for base in kind.__mro__)


class TensorStorage:
    """Memory that tensors and their arrays share."""

    def __init__(self, tensor: Any) -> None:
        torch = importlib.import_module("torch")
        self.bytes = torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage())

    def detach(self) -> Any:
        """Return all bytes as a tensor, see :func:`~xuance_envs.state.rebuild.memory`."""
        return self.bytes


_storages: weakref.WeakValueDictionary[int, TensorStorage] = weakref.WeakValueDictionary()


def storage_address(tensor: Any) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address


def tensor_storage(tensor: Any) -> TensorStorage:
    """Return a tensor's memory, as one object for all tensors that share it."""
    address = storage_address(tensor)
    if not address:  # empty
        return TensorStorage(tensor)
    return _storages.get(address) or _storages.setdefault(address, TensorStorage(tensor))


def reduce_tensor(value: Any) -> Any:
    if not is_plain_tensor(value):
        return NotImplemented
    make = rebuild.tensor if type(value).__name__ == "Tensor" else rebuild.parameter
    place = value.storage_offset(), tuple(value.shape), value.stride()
    made = make, (tensor_storage(value), str(value.dtype), *place)
    if not value.requires_grad and value.grad is None:
        return made
    return *made, (value.requires_grad, value.grad), None, None, rebuild.with_gradient


def reduce_generator(value: Any) -> Any:
    return rebuild.torch_generator, (str(value.device), value.get_state().numpy().tobytes())


def is_plain_tensor(value: Any) -> bool:
    """Return whether a tensor has no state besides its memory and its gradient."""
    torch = importlib.import_module("torch")
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not (value.is_conj() or value.is_neg() or value.is_quantized)
        and not vars(value)
    )


def why_not_saved(tensor: Any) -> str | None:
    if tensor.grad_fn is not None:
        return "it is the result of a computation with gradients, which is not saved: detach it"
    hooks = "_backward_hooks", "_post_accumulate_grad_hooks"
    has_hooks = any(getattr(tensor, name, None) for name in hooks)
    return "it has hooks for its gradient, which are not saved" if has_hooks else None
