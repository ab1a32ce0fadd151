"""Copies between host memory and the agent's device.

Environments write into host memory, and agents read from their device. On the CPU, both are the
same memory. For other devices, arrays are copied through host buffers: for CUDA asynchronously from
page-locked (pinned) memory, otherwise synchronously, because there are no events to wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from xuance_envs.engine.data.buffer_pool import make_allocator

_MAX_BUFFERS = 2
"""Buffers per tensor: for the current rollout, and for the last if it is still referenced."""


class Transfer:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.direct = device.type == "cpu"
        self._is_cuda = device.type == "cuda"
        self._received: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}

    def maker(self, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
        """Return an allocator of tensors on the device, which reuses unreferenced memory."""
        if not self.direct:
            return partial(torch.empty, shape, dtype=dtype, device=self.device)
        numpy_dtype = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
        make = make_allocator(shape, numpy_dtype, _MAX_BUFFERS)
        return lambda: torch.from_numpy(make())

    def host_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Allocate host memory that can be copied to the device asynchronously."""
        return torch.zeros(shape, dtype=dtype, device="cpu", pin_memory=self._is_cuda)

    def send(self, host: torch.Tensor, there: torch.Tensor) -> None:
        """Start copying ``host``, which must not be written before :meth:`wait`."""
        there.copy_(host, non_blocking=self._is_cuda)

    def mark(self) -> torch.cuda.Event | None:
        """Record an event after all started copies; return None if copies are synchronous."""
        if not self._is_cuda:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # untyped in torch
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait(self, mark: torch.cuda.Event | None) -> None:
        if mark is not None:
            mark.synchronize()

    def receive(self, tensor: torch.Tensor) -> NDArray[Any]:
        """Return a tensor's values as an array that is valid until the next call."""
        if tensor.dtype is torch.bfloat16:  # NumPy has no such dtype
            tensor = tensor.float()
        if self.direct:
            return (tensor.detach() if tensor.requires_grad else tensor).numpy()
        kind = tensor.shape, tensor.dtype
        received = self._received.get(kind)
        if received is None:
            received = self._received[kind] = self.host_tensor(tuple(tensor.shape), tensor.dtype)
        received.copy_(tensor.detach(), non_blocking=self._is_cuda)
        self.wait(self.mark())  # the only synchronization of a step
        return received.numpy()
