"""Take from this Linux what macOS lacks. Python imports this module if its folder is on PYTHONPATH.

A kqueue is simulated by a pidfd. What cannot be taken away, such as the order of the kernel's
events, stays as on Linux. ``make test-as-macos`` runs tests this way, and their workers too.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import importlib.util
import io
import multiprocessing.forkserver  # the standard library chooses its branches before the change
import os
import select
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

pidfd_open = os.pidfd_open

LACKING = {
    "os": (
        *("O_DIRECT", "O_PATH", "O_TMPFILE", "P_PIDFD", "copy_file_range", "eventfd"),
        *("eventfd_read", "eventfd_write", "memfd_create", "pidfd_open", "pipe2"),
        *("posix_fadvise", "posix_fallocate", "process_cpu_count", "sched_getaffinity"),
        *("sched_getparam", "sched_getscheduler", "sched_setaffinity", "sched_setparam"),
        *("sched_setscheduler", "setns", "splice", "unshare"),
    ),
    "fcntl": ("F_GETPIPE_SZ", "F_GETSIG", "F_NOTIFY", "F_OFD_SETLK", "F_SETPIPE_SZ", "F_SETSIG"),
    "resource": ("RLIMIT_NICE", "RLIMIT_RTPRIO", "RUSAGE_THREAD", "prlimit"),
    "select": ("epoll",),
    "signal": ("SIGPOLL", "SIGPWR", "SIGRTMAX", "SIGRTMIN", "SIGSTKFLT", "pidfd_send_signal"),
    "socket": ("AF_NETLINK", "AF_PACKET", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_PEERCRED"),
}
LACKING_IN_C = ("eventfd", "gettid", "memfd_create", "mremap", "prctl", "sched_getcpu")
HIDDEN = ("/proc", "/sys")


class Kevent:
    def __init__(self, ident: int, filter: int, flags: int, fflags: int) -> None:
        self.ident = ident
        assert (filter, flags, fflags) == (-5, 0x11, 0x80000000), "only a process's end is known"


class Kqueue:
    """A queue that becomes readable when the process of its single event ends."""

    def __init__(self) -> None:
        self._fd = os.open(os.devnull, os.O_RDONLY)

    def control(self, changes: Sequence[Kevent], max_events: int) -> list[Any]:
        end = pidfd_open(changes[0].ident)
        os.dup2(end, self._fd, inheritable=False)
        os.close(end)
        return []

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)


def hiding(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, but without the files that only Linux has."""

    def hidden(path: Any, *args: Any, **kwargs: Any) -> Any:
        text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if text in HIDDEN or text.startswith(tuple(f"{folder}/" for folder in HIDDEN)):
            raise FileNotFoundError(2, "No such file or directory", text)
        return function(path, *args, **kwargs)

    return hidden


class Library(ctypes.CDLL):
    def __getattr__(self, name: str) -> Any:
        if name in LACKING_IN_C:
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return super().__getattr__(name)


def become_macos() -> None:
    for module, names in LACKING.items():
        for name in names:
            with contextlib.suppress(AttributeError):
                delattr(__import__(module), name)
    select.kqueue, select.kevent = Kqueue, Kevent  # type: ignore[attr-defined]
    for name, value in (
        *(("KQ_FILTER_PROC", -5), ("KQ_EV_ADD", 1), ("KQ_EV_ONESHOT", 16)),
        ("KQ_NOTE_EXIT", 0x80000000),
    ):
        setattr(select, name, value)
    builtins.open = io.open = hiding(io.open)
    for name in ("open", "listdir", "stat", "scandir", "readlink"):
        setattr(os, name, hiding(getattr(os, name)))
    ctypes.CDLL = Library  # type: ignore[misc]
    multiprocessing.set_start_method("spawn", force=True)
    sys.platform = "darwin"


# The standard library asks for the system when it is imported, so it comes first.
for early in ("asyncio", "platform", "selectors", "socket", "ssl", "subprocess", "tempfile"):
    __import__(early)
import selectors
import sysconfig
import tempfile
import types

with contextlib.suppress(ImportError):
    import psutil

    for module in (psutil, psutil._common, psutil._pslinux, psutil._psposix):  # type: ignore[attr-defined]
        module.os, module.open = types.SimpleNamespace(**vars(os)), open  # would call C on macOS

tempfile._O_TMPFILE_WORKS = False  # type: ignore[attr-defined]
for variable, library, pattern in (  # these libraries would look for files of macOS
    ("PYGLFW_LIBRARY", "glfw", "x11/libglfw.so"),
    ("IMAGEIO_FFMPEG_EXE", "imageio_ffmpeg", "binaries/ffmpeg-linux*"),
):
    if (spec := importlib.util.find_spec(library)) is not None and spec.origin is not None:
        for path in Path(spec.origin).parent.glob(pattern):
            os.environ.setdefault(variable, str(path))
sysconfig.get_config_vars()
no_proxies = types.ModuleType("_scproxy")
no_proxies._get_proxies = dict  # type: ignore[attr-defined]
no_proxies._get_proxy_settings = dict  # type: ignore[attr-defined]
sys.modules["_scproxy"] = no_proxies
selectors.DefaultSelector = selectors.PollSelector
become_macos()
