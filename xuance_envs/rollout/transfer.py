"""The way between this process's memory and the device of an agent.

Environments write into memory of this process, agents read from their device. Where that is the
CPU, both are the same memory and nothing is moved. WrongProcessProxy arrays are *staged*: written into
memory of fixed size that is allocated once, page-locked (pinned) where the device is CUDA, and
copied from there without waiting for the copy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from xuance_envs.engine.data.buffer_pool import make_allocator

__all__ = ["Transfer"]

_MAX_BUFFERS = 2
"""The last rollout, where somebody holds on to it until there is a next, and the one in making."""


class Transfer:
    """Moves tensors between this process's memory and a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.direct = device.type == "cpu"
        self._is_cuda = device.type == "cuda"
        self._received: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}

    def maker(self, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
        """A function that makes tensors on the device, whose values are whatever was there.

        They may be in memory that earlier ones had, if nobody holds anything that shares it. On the
        CPU that is seen to here; elsewhere torch's own allocator does it.
        """
        if not self.direct:
            return partial(torch.empty, shape, dtype=dtype, device=self.device)
        make = make_allocator(shape, torch.empty(0, dtype=dtype).numpy().dtype, _MAX_BUFFERS)
        return lambda: torch.from_numpy(make())

    def host_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory of this process, such that it can be copied to the device without waiting."""
        return torch.zeros(shape, dtype=dtype, pin_memory=self._is_cuda)

    def send(self, host: torch.Tensor, there: torch.Tensor) -> None:
        """Starts to copy ``host`` to a tensor of the same dtype and shape on the device.

        Until :meth:`mark` and :meth:`wait`, ``host`` must not be written to.
        """
        there.copy_(host, non_blocking=True)

    def mark(self) -> torch.cuda.Event | None:
        """A mark behind all that has been sent by now; None where sending waits by itself."""
        if not self._is_cuda:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch types it not
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait(self, mark: torch.cuda.Event | None) -> None:
        """Waits until the device has everything that was sent before the mark."""
        if mark is not None:
            mark.synchronize()

    def receive(self, tensor: torch.Tensor) -> NDArray[Any]:
        """A tensor's values as an array, which holds until the next call.

        This is the one place of a step that waits for the device.
        """
        if self.direct:
            return (tensor.detach() if tensor.requires_grad else tensor).numpy()
        kind = tensor.shape, tensor.dtype
        received = self._received.get(kind)
        if received is None:
            received = self._received[kind] = self.host_tensor(tuple(tensor.shape), tensor.dtype)
        received.copy_(tensor.detach(), non_blocking=True)
        self.wait(self.mark())
        return received.numpy()
