"""The way to a device: staged through pinned memory, and not waited for.

What needs no GPU is tested with stand-ins; the collector's staged way as a whole is tested on the
CPU, in test_attributes.py. With a GPU the collector is run on it.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces
from play_envs import PlayEnv
from rollout_reference import Player, parts_of

from xuance_envs import DummyVecEnv, RolloutCollector, SubprocVecEnv
from xuance_envs.rollout.state_layout import StateLayout
from xuance_envs.rollout.transfer import Transfer

CUDA = torch.device("cuda", 0)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Mark:
    """In place of a CUDA event: says what is done with it."""

    def __init__(self, log):
        self.log = log

    def record(self, stream):
        self.log.append(("record", stream))

    def synchronize(self):
        self.log.append(("synchronize",))


@pytest.fixture
def cuda_log(monkeypatch):
    """Makes what a transfer to CUDA calls leave a note; the memory is the CPU's."""
    log = []
    zeros, copy_ = torch.zeros, torch.Tensor.copy_

    def noting_zeros(*args, pin_memory=False, **kwargs):
        log.append(("pinned" if pin_memory else "pageable",))
        return zeros(*args, **kwargs)

    def noting_copy(self, other, non_blocking=False):
        log.append(("copy", "non-blocking" if non_blocking else "blocking"))
        return copy_(self, other)

    monkeypatch.setattr(torch, "zeros", noting_zeros)
    monkeypatch.setattr(torch.Tensor, "copy_", noting_copy)
    monkeypatch.setattr(torch.cuda, "Event", partial(Mark, log))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    return log


def test_to_cuda_arrays_go_through_pinned_memory_without_waiting(cuda_log):
    transfer = Transfer(CUDA)
    assert not transfer.direct
    host = transfer.host_tensor((2, 3), torch.float32)
    assert cuda_log == [("pinned",)]
    transfer.send(host, torch.empty(2, 3))
    assert cuda_log[1:] == [("copy", "non-blocking")]
    mark = transfer.mark()
    assert cuda_log[2:] == [("record", "stream of cuda:0")]
    transfer.wait(mark)
    assert cuda_log[3:] == [("synchronize",)]


def test_from_cuda_actions_come_through_pinned_memory_that_is_kept(cuda_log):
    transfer = Transfer(CUDA)
    actions = torch.tensor([1, 2, 3])
    for call in range(2):
        del cuda_log[:]
        assert transfer.receive(actions + call).tolist() == [1 + call, 2 + call, 3 + call]
        allocated = [("pinned",)] if call == 0 else []
        copied = [("copy", "non-blocking"), ("record", "stream of cuda:0"), ("synchronize",)]
        assert cuda_log == allocated + copied
    assert transfer.receive(torch.tensor([0.5])).tolist() == [0.5]


def test_to_and_from_other_devices_arrays_are_copied_at_once(cuda_log):
    transfer = Transfer(torch.device("mps"))
    transfer.send(transfer.host_tensor((2,), torch.float32), torch.empty(2))
    transfer.receive(torch.tensor([1, 2]))
    assert cuda_log == [("pageable",), ("copy", "blocking")] * 2


def test_on_the_cpu_nothing_is_copied():
    transfer = Transfer(torch.device("cpu"))
    actions = torch.tensor([1, 2, 3])
    assert transfer.direct
    assert np.shares_memory(transfer.receive(actions), actions.numpy())
    transfer.wait(transfer.mark())


class Zeros:
    device = "cpu"

    def get_actions_and_values(self, states, actions=None):
        zeros = states.new_zeros(len(states))
        return zeros.int(), zeros, zeros, zeros


def test_the_default_device_may_be_another_one():
    functions = [partial(PlayEnv, i, spaces.Box(-1, 1, (3,)), spaces.Discrete(2)) for i in range(2)]
    with torch.device("meta"), RolloutCollector(DummyVecEnv(functions), Zeros(), 3) as collector:
        collector.rollout()
        state = collector.state_dict()
        collector.vec_step([0, 1])
        collector.load_state_dict(state)
        collector.rollout()
        assert collector.states.device == collector.advantages(0.9, 0.9).device
        assert collector.states.device == torch.device("cpu")


class Counting(Transfer):
    """A staged transfer on the CPU that counts what is sent, and when it is waited."""

    def __init__(self):
        super().__init__(torch.device("cpu"))
        self.direct = False
        self.log = []

    def send(self, host, there):
        self.log.append((tuple(host.shape), host.dtype))
        super().send(host, there)

    def mark(self):
        return len(self.log)

    def wait(self, mark):
        self.log.append(f"waited for {mark}")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_images_travel_as_bytes_in_one_piece_and_are_turned_there(dtype):
    transfer = Counting()
    layout = StateLayout(spaces.Box(0, 255, (8, 6, 3), np.uint8), dtype, "auto", transfer)
    stage = layout.stage(5)
    rows = layout.rows([make() for make in layout.makers(2, 5)], stage)
    images = np.random.default_rng(0).integers(0, 255, (5, 8, 6, 3), np.uint8)
    other = images[::-1].copy()
    rows[0].write([images], [(3, [other[0]])])
    assert transfer.log == ["waited for None", ((5, 8, 6, 3), torch.uint8)]
    rows[1].write([other])
    assert transfer.log[2] == "waited for 2", "the memory was in use"
    images[3] = other[0]
    for row, expected in zip(rows, (images, other), strict=True):
        assert row.states.dtype is dtype
        assert row.states.tolist() == expected.transpose(0, 3, 1, 2).tolist()


@pytest.mark.parametrize("dtype", [np.uint16, np.uint64, np.float64, np.int8, ">f4", ">i8"])
def test_observations_of_any_dtype_are_staged(dtype):
    layout = StateLayout(spaces.Box(0, 9, (2,), np.dtype(dtype)), torch.float32, "auto", Counting())
    row = layout.new_row(3)
    row.write([np.arange(6).reshape(3, 2).astype(dtype)])
    assert row.states.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


@pytest.mark.parametrize(
    ("dtype", "state_dtype"), [(">i8", torch.int64), (np.longdouble, torch.float64)]
)
def test_observations_of_a_dtype_that_torch_lacks_are_staged_in_the_states_dtype(
    dtype, state_dtype
):
    layout = StateLayout(spaces.Box(0, 2**40, (), np.dtype(dtype)), state_dtype, "auto", Counting())
    row = layout.new_row(1)
    row.write([np.array([2**33 + 1], dtype)])
    assert row.states.tolist() == [2**33 + 1]


# --- with a GPU ---------------------------------------------------------------------------------


@needs_cuda
@pytest.mark.parametrize("backend", [DummyVecEnv, partial(SubprocVecEnv, copy=False)])
@pytest.mark.parametrize(
    ("space", "arguments"),
    [
        (spaces.Box(-1, 1, (3,)), {}),
        (spaces.Box(0, 255, (8, 6, 3), np.uint8), {}),
        (spaces.Box(0, 255, (8, 6, 3), np.uint8), {"state_dtype": torch.uint8}),
        (spaces.Dict(a=spaces.Box(0, 255, (8, 6, 3), np.uint8), b=spaces.Discrete(3)), {}),
    ],
)
def test_rollouts_on_a_gpu_are_those_on_the_cpu(backend, space, arguments):
    two = spaces.Discrete(2)
    functions = [partial(PlayEnv, i, space, two, (3, 1, 4)) for i in range(5)]
    collectors = [
        RolloutCollector(backend(functions), Player(two, device), 6, **arguments)
        for device in ("cpu", "cuda")
    ]
    names = "states actions rewards values log_probs done_flags trunc_flags end_states ep_counts"
    for _ in range(3):
        for collector in collectors:
            collector.rollout()
        for name in [*names.split(), "t_states"]:
            found = [parts_of(getattr(collector, name)) for collector in collectors]
            for here, there in zip(*found, strict=True):
                assert there.device == CUDA
                torch.testing.assert_close(there.cpu(), here)
        advantages = [collector.advantages(0.9, 0.9).cpu() for collector in collectors]
        torch.testing.assert_close(*advantages)
    for collector in collectors:
        collector.close()
