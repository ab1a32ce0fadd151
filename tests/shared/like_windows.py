"""What works on Windows. Elsewhere, all calls of POSIX are removed first, and no workers start.

Argument: the address of a server of CartPole-v1. Prints a line for each check that passed. Checks
that need PyTorch or Stable-Baselines3 are left out where these are not installed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import multiprocessing.synchronize  # the standard library chooses its branches before the change
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

ON_WINDOWS = sys.platform == "win32"
HAS_TORCH = importlib.util.find_spec("torch") is not None
MODULES = ("fcntl", "grp", "pwd", "resource", "termios", "tty")
SOCKET = ("AF_UNIX", "MSG_DONTWAIT", "SO_REUSEPORT", "TCP_NOTSENT_LOWAT")
OS = (
    *("O_NONBLOCK", "SCHED_OTHER", "eventfd", "eventfd_read", "eventfd_write", "fork", "forkpty"),
    *("getpgid", "getpgrp", "getsid", "getuid", "killpg", "memfd_create", "mkfifo", "nice"),
    *("pidfd_open", "pipe2", "posix_fallocate", "pread", "preadv", "pwrite", "pwritev"),
    *("register_at_fork", "sched_getaffinity", "sched_setaffinity", "sched_yield"),
    *("set_blocking", "setpgid", "setsid", "sysconf", "uname", "wait", "waitid", "WNOHANG"),
)
KEPT_SIGNALS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM"}


def become_windows() -> None:
    for library in ("matplotlib.pyplot", "ray", "stable_baselines3", "uvicorn"):
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    socket.socketpair = functools.partial(socket.socketpair, socket.AF_UNIX)
    sys.modules.update(dict.fromkeys(MODULES))
    for module, names in (
        (os, OS),
        (socket, SOCKET),
        (select, ("poll", "epoll", "POLLIN", "POLLOUT", "POLLHUP")),
        (signal, ("pthread_sigmask", "pthread_kill", "alarm", "setitimer", "sigwait")),
        (signal, [name for name in dir(signal) if name.startswith("SIG")]),
    ):
        for name in set(names) - KEPT_SIGNALS - {"SIG_DFL", "SIG_IGN"}:
            with contextlib.suppress(AttributeError):
                delattr(module, name)
    multiprocessing.get_all_start_methods = lambda: ["spawn"]
    sys.platform = "win32"


def check_imports() -> None:
    import xuance_envs

    names = [
        module.name
        for module in pkgutil.walk_packages(xuance_envs.__path__, "xuance_envs.")
        if not module.name.endswith(("__main__", ".linux", ".macos", ".posix", ".guardian"))
    ]
    assert len(names) > 200
    for name in names:
        with without_extras():
            importlib.import_module(name)
    for name in dir(xuance_envs):
        with without_extras():
            getattr(xuance_envs, name)


@contextlib.contextmanager
def without_extras() -> Iterator[None]:
    """Ignore the error of a library that only an extra installs."""
    try:
        yield
    except ImportError as error:
        library = str(error.name).partition(".")[0]
        if "pip install" not in str(error) and library in (*MODULES, "None", "xuance_envs"):
            raise


def make_env() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def trajectory(envs: Any) -> Any:
    with envs:
        envs.reset(seed=1)
        return [envs.step(np.array([0, 1, 1]))[:4] for _ in range(40)]


def check_backends() -> None:
    import xuance_envs as x
    from xuance_envs.compat.gymnasium import SyncVectorEnv

    expected = trajectory(x.DummyVecEnv([make_env] * 3))
    for kind in (x.ThreadVecEnv, x.DummyVecEnv_Gym, x.ThreadVecEnv_Gym):
        np.testing.assert_equal(trajectory(kind([make_env] * 3)), expected)
    with x.ThreadVecEnv([make_env] * 2) as envs:
        envs.reset(seed=1)
        envs.send([0, 1], [0, 1])
        assert {0, 1} >= set(envs.recv(1).env_ids.tolist())
    serial = SyncVectorEnv([make_env] * 3)
    serial.reset(seed=1)
    serial.step(np.array([0, 1, 1]))
    serial.close()


def check_transforms_and_states() -> None:
    import xuance_envs as x

    with x.NormalizeRewards(
        x.NormalizeObservations(x.EpisodeStatistics(x.DummyVecEnv([make_env] * 3)))
    ) as envs:
        envs.reset(seed=1)
        state = envs.save_state()
        first = envs.step([0, 1, 0])[:4]
        envs.load_state(state)
        np.testing.assert_equal(envs.step([0, 1, 0])[:4], first)


class Agent:
    device = "cpu"

    def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
        import torch

        zeros = torch.zeros(len(states))
        return zeros.long() if actions is None else actions, zeros, zeros, zeros


def check_rollouts() -> None:
    import xuance_envs as x

    with x.DummyVecEnv([make_env] * 3) as envs:
        collector = x.RolloutCollector(envs, Agent(), steps_per_env=8)
        collector.rollout()
        assert collector.rewards.shape == (8, 3)


def check_choice() -> None:
    import xuance_envs as x

    with x.make_vec("CartPole-v1", 1, vector_kwargs={"copy": False}) as envs:
        assert envs.autotuned.choice.backend == "dummy"
    with x.make_vec("CartPole-v1", 3, backend="thread") as envs:
        envs.reset()


def check_workers() -> None:
    import xuance_envs as x
    from xuance_envs.compat.gymnasium import AsyncVectorEnv

    parallel = AsyncVectorEnv([make_env] * 2)
    parallel.reset(seed=1)
    parallel.step(np.array([0, 1]))
    parallel.close()
    expected = trajectory(x.DummyVecEnv([make_env] * 3))
    np.testing.assert_equal(trajectory(x.SubprocVecEnv([make_env] * 3)), expected)
    with x.SubprocVecEnv([make_env] * 3, num_workers=2) as envs:
        envs.reset(seed=1)
        state = envs.save_state()
        first = envs.step([0, 1, 0])[:4]
        envs.load_state(state)
        np.testing.assert_equal(envs.step([0, 1, 0])[:4], first)
        kill(envs.pids[1])
        with pytest.raises(x.WorkerDiedError, match="exited with code 15"):
            envs.step([0, 1, 0])


def check_restarts() -> None:
    import xuance_envs as x

    for action in ("restart", "resume"):
        options = {"num_workers": 2, "on_worker_failure": action}
        with (
            x.SubprocVecEnv([make_env] * 2, **options) as envs,
            x.DummyVecEnv([make_env] * 2) as same,
        ):
            for each in (envs, same):
                each.reset(seed=1)
                each.step([0, 1])
            first, second = envs.pids
            kill(second)
            result, expected = envs.step([1, 1]), same.step([1, 1])
            assert envs.pids[0] == first
            assert envs.pids[1] != second
            assert result[3].tolist() == [False, action == "restart"]
            kept = slice(None) if action == "resume" else slice(1)
            np.testing.assert_equal(result[0][kept], expected[0][kept])
            envs.step([0, 0])


class Hanging(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that hangs if its action is 1."""

    def step(self, action: Any) -> Any:
        while action == 1:
            time.sleep(0.1)
        return self.env.step(action)


def check_hangs() -> None:
    import xuance_envs as x

    for action in ("raise", "restart"):
        with x.SubprocVecEnv(
            [lambda: Hanging(make_env())] * 2,
            num_workers=2,
            step_timeout=10.0,
            on_worker_failure=action,
        ) as envs:
            envs.reset(seed=1)
            hung = envs.pids[1]
            if action == "raise":
                with pytest.raises(x.WorkerTimeoutError, match="environment 1"):
                    envs.step([0, 1])
            else:
                assert envs.step([0, 1])[3].tolist() == [False, True]
                envs.step([0, 0])
            assert not is_running(hung)


def check_workers_end_with_this_process() -> None:
    """A program that ends without closing, whose worker has started a process."""
    lines = (
        "import gymnasium, os, subprocess, sys",
        "class Starts(gymnasium.Wrapper):",
        "    def reset(self, **how):",
        "        self.started = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1)",
        "        return self.env.reset(**how)[0], {'pid': self.started.pid}",
        "import xuance_envs",
        "envs = xuance_envs.SubprocVecEnv([lambda: Starts(gymnasium.make('CartPole-v1'))])",
        "_, infos = envs.reset()",
        "print(envs.pids[0], infos[0]['pid'], flush=True)",
        "os.kill(os.getpid(), 15)",
    )
    program = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False
    )
    pids = [int(pid) for pid in program.stdout.split()]
    assert len(pids) == 2, program.stderr
    deadline = time.monotonic() + 60
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    while is_running(pid):
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    import _winapi

    try:
        process = _winapi.OpenProcess(_winapi.SYNCHRONIZE, False, pid)
    except OSError:
        return False
    try:
        return _winapi.WaitForSingleObject(process, 0) != _winapi.WAIT_OBJECT_0
    finally:
        _winapi.CloseHandle(process)


def check_refusals() -> None:
    import xuance_envs as x
    from xuance_envs.remote.server import Server
    from xuance_envs.remote.settings import Catalogue, Settings

    with pytest.raises(ValueError, match=r"expected one of \['spawn'\], got 'fork'"):
        x.SubprocVecEnv([make_env] * 2, context="fork")
    with pytest.raises(RuntimeError, match="the server does not run on Windows: run it on Linux"):
        Server(Settings(Catalogue.of_ids(["CartPole-v1"])))


def check_client() -> None:
    import xuance_envs as x

    with x.RemoteVecEnv(sys.argv[1], "CartPole-v1", 3) as envs:
        assert isinstance(envs.action_space, spaces.Discrete)
        assert envs.reset(seed=1)[0].shape == (3, 4)
        envs.step([0, 1, 1])
        envs.send([0, 1, 1], range(3))
        assert sorted(envs.recv(3).env_ids) == [0, 1, 2]


WINDOWS_ONLY = (check_workers, check_restarts, check_hangs, check_workers_end_with_this_process)

if __name__ == "__main__":
    if not ON_WINDOWS:
        become_windows()
    for check in (
        *(check_imports, check_backends, check_transforms_and_states),
        *([check_rollouts] if HAS_TORCH else []),
        *(check_choice, check_refusals, check_client),
        *(WINDOWS_ONLY if ON_WINDOWS else ()),
    ):
        check()
        print(check.__name__, flush=True)
