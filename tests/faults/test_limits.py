"""Too little of something: memory, descriptors, file sizes. Each is an error that says so."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
from functools import partial

import numpy as np
import pytest
from backends import WORKERS
from faulty_envs import FaultyEnv
from gymnasium import spaces

from xuance_envs import EnvError, SubprocVecEnv, WorkerDiedError
from xuance_envs.engine.process.shared_memory import ALIGNMENT, SharedMemory
from xuance_envs.engine.system.current import system

needs_linux = pytest.mark.skipif(system.NAME != "Linux", reason="needs Linux")


@contextlib.contextmanager
def limited(kind, limit):
    """Lowers one of this process's limits, which workers inherit, while the block runs."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


class Big(FaultyEnv):
    """Its observations take two megabytes each."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (1 << 21,), np.uint8)


@pytest.mark.parametrize("context", ["forkserver", "fork"])
def test_too_little_shared_memory_is_an_error_that_says_how_much_is_needed(context):
    with limited(resource.RLIMIT_FSIZE, 5_000_000), pytest.raises(MemoryError) as caught:
        SubprocVecEnv([Big] * 2, context=context, in_series=1)
    assert "the arrays shared with the workers need 8," in str(caught.value)
    assert "shared memory, which could not be allocated: File too large" in str(caught.value)
    assert multiprocessing.active_children() == []


def test_so_is_too_little_for_a_start():
    with limited(resource.RLIMIT_FSIZE, 1000), pytest.raises(MemoryError, match="131,072 bytes"):
        SubprocVecEnv([FaultyEnv] * 2, in_series=1)


def test_more_than_is_available_is_refused_before_it_is_taken(monkeypatch):
    monkeypatch.setattr(system, "available_memory", lambda: 1_000_000)
    with pytest.raises(MemoryError, match=r"need 8,\d\d\d,\d\d\d bytes .* 1,000,000 are available"):
        SubprocVecEnv([Big] * 2, **WORKERS.options)
    assert multiprocessing.active_children() == []


@needs_linux
def test_available_memory_is_the_least_of_the_machines_and_the_groups(tmp_path, monkeypatch):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       9000 kB\nMemAvailable:    5000 kB\n")
    monkeypatch.setattr(system, "limits", lambda *_: [])
    assert system.available_memory(meminfo) == 5_120_000
    monkeypatch.setattr(system, "limits", lambda *_: [7e6, 4e6])
    assert system.available_memory(meminfo) == 4_000_000
    monkeypatch.setattr(system, "limits", lambda *_: [])
    assert system.available_memory(tmp_path / "missing") is None


@needs_linux
def test_what_files_hold_of_a_groups_memory_counts_as_available(tmp_path):
    files = {
        "memory.max": "10000000\n",
        "memory.current": "9000000\n",
        "memory.stat": "anon 1\ninactive_file 2000000\n",
        "memory.limit_in_bytes": "10000000\n",
        "memory.usage_in_bytes": "9500000\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert system._left_v2(tmp_path) == 3_000_000
    (tmp_path / "memory.stat").write_text("cache 1\ntotal_inactive_file 100000\n")
    assert system._left_v1(tmp_path) == 600_000
    (tmp_path / "memory.max").write_text("max\n")
    assert system._left_v2(tmp_path) is None


@needs_linux
def test_shared_memory_that_an_interrupt_came_to_is_used_again(monkeypatch):
    memory = SharedMemory(reserved=ALIGNMENT)
    taken: list[int] = []
    fallocate = os.posix_fallocate

    def interrupted(*how):
        fallocate(*how)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            memory.allocate(9 * ALIGNMENT, taken)
    memory.free(*taken)
    assert os.fstat(memory.fd).st_size == ALIGNMENT
    memory.free(memory.allocate(ALIGNMENT, taken))
    assert os.fstat(memory.fd).st_size == ALIGNMENT
    memory.close()


def test_shared_memory_never_is_a_standard_descriptor():
    saved = os.dup(0)
    try:
        os.close(0)
        memory = SharedMemory(reserved=4096)
        assert memory.fd > 2
        memory.close()
    finally:
        os.dup2(saved, 0)
        os.close(saved)


@needs_linux
@pytest.mark.parametrize("context", ["spawn", "forkserver", "fork"])
def test_too_few_descriptors_are_an_error_wherever_they_run_out(context):
    """With every number of descriptors that is too small, up to one that is enough."""
    used = len(os.listdir("/proc/self/fd"))
    told = 0
    for spare in range(40):
        try:
            with limited(resource.RLIMIT_NOFILE, used + spare):
                SubprocVecEnv([FaultyEnv] * 2, context=context, in_series=1).close()
            break
        except OSError as error:
            told += "ulimit -n" in str(error)
    assert told > 5
    assert spare < 39


@needs_linux
def test_too_few_descriptors_for_a_restart_are_an_error():
    envs = SubprocVecEnv(
        [FaultyEnv] * 2, in_series=1, on_worker_failure="restart", context="forkserver"
    )
    envs.reset()
    os.kill(envs.pids[1], 9)
    used = len(os.listdir("/proc/self/fd"))
    with limited(resource.RLIMIT_NOFILE, used), pytest.raises(OSError, match="ulimit -n"):
        envs.step([0, 0])
    assert envs.closed


class Greedy(FaultyEnv):
    """Takes memory without end, of which its process may have 64 MiB more."""

    def __init__(self, place, piece):
        self.piece = piece
        self.taken = []
        super().__init__(place)

    def commit_at(self, place):
        if place == self.place:
            with open("/proc/self/statm", encoding="ascii") as file:
                size = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (size + 2**26,) * 2)
            while True:
                self.taken.append(bytes(self.piece))


def go_through(env_fns):
    with SubprocVecEnv(env_fns, in_series=1, context="forkserver") as envs:
        envs.reset()
        envs.call("method")
        envs.step([0, 0])


@needs_linux
@pytest.mark.parametrize("piece", [1, 10_000, 2**24], ids=["crumbs", "slices", "loaves"])
@pytest.mark.parametrize("place", ["construct", "reset", "step", "call"])
def test_an_environment_that_takes_memory_without_end_is_an_error(place, piece):
    """Nothing may be left even to say so, and then its worker dies."""
    with pytest.raises((EnvError, WorkerDiedError)) as caught:
        go_through([FaultyEnv, partial(Greedy, place, piece)])
    if isinstance(caught.value, EnvError):
        assert caught.value.env_index == 1
        assert "MemoryError" in str(caught.value)
    else:
        assert caught.value.env_indices == (1,)


@pytest.mark.skipif(os.geteuid() == 0, reason="a limit on processes is none for root")
def test_too_few_processes_are_an_error():
    with limited(resource.RLIMIT_NPROC, 1), pytest.raises(OSError, match="ulimit -u"):
        SubprocVecEnv([FaultyEnv] * 3, in_series=1)
