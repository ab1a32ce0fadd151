"""What works on Windows. Elsewhere, all calls of POSIX are removed first.

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
import re
import select
import signal
import socket
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

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
        try:
            importlib.import_module(name)
        except ImportError as error:
            if "pip install" not in str(error):  # a library that only an extra installs
                raise
    for name in dir(xuance_envs):
        getattr(xuance_envs, name)


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

    with x.make_vec("CartPole-v1", 3) as envs:
        assert envs.autotuned.choice.backend == "dummy"
    with x.make_vec("CartPole-v1", 3, vector_kwargs={"copy": False}) as envs:
        assert envs.autotuned.choice.backend == "dummy"
    with x.make_vec("CartPole-v1", 3, backend="thread") as envs:
        envs.reset()


def check_refusals() -> None:
    import xuance_envs as x
    from xuance_envs.compat.gymnasium import AsyncVectorEnv

    refused = [
        lambda: x.SubprocVecEnv([make_env] * 2),
        lambda: x.SubprocVecEnv_Gym([make_env] * 2),
        lambda: AsyncVectorEnv([make_env] * 2),
        lambda: x.make_vec("CartPole-v1", 2, backend="subproc"),
        lambda: x.make_vec("CartPole-v1", 2, vector_kwargs={"on_worker_failure": "restart"}),
    ]
    if importlib.util.find_spec("stable_baselines3") is not None:
        from xuance_envs.compat import sb3

        refused.append(lambda: sb3.SubprocVecEnv([make_env] * 2))
    lacking = "worker processes are not available on Windows"
    for make in refused:
        with pytest.raises((RuntimeError, ValueError), match=lacking) as caught:
            make()
        assert re.search("use ThreadVecEnv|omit these options", str(caught.value))


def check_client() -> None:
    import xuance_envs as x

    with x.RemoteVecEnv(sys.argv[1], "CartPole-v1", 3) as envs:
        assert isinstance(envs.action_space, spaces.Discrete)
        assert envs.reset(seed=1)[0].shape == (3, 4)
        envs.step([0, 1, 1])
        envs.send([0, 1, 1], range(3))
        assert sorted(envs.recv(3).env_ids) == [0, 1, 2]


if __name__ == "__main__":
    if sys.platform != "win32":
        become_windows()
    for check in (
        *(check_imports, check_backends, check_transforms_and_states),
        *([check_rollouts] if HAS_TORCH else []),
        *(check_choice, check_refusals, check_client),
    ):
        check()
        print(check.__name__, flush=True)
