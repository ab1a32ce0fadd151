"""The inside of a worker process: a pipe around one group of environments."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from xuance_envs.engine.black_box import Recorder
from xuance_envs.engine.bootstrap import WorkerSettings
from xuance_envs.engine.doorbell import Inbox, PeerGoneError, Reply, Request, frame, write_all
from xuance_envs.engine.env_group import Autoreset, EnvGroup
from xuance_envs.engine.serialization import dumps_for_caller, loads, pack_error
from xuance_envs.engine.shared_memory import SharedMemory
from xuance_envs.engine.single_env import EnvDescription
from xuance_envs.engine.space_layout import BadValueError
from xuance_envs.engine.step_arrays import StepArrays
from xuance_envs.errors import EnvError

__all__ = ["run"]

ORPHAN_GRACE = 1.0
"""Seconds a worker has to close its environments by itself after its caller ended."""


def run(settings: WorkerSettings, recorder: Recorder) -> None:
    """Serves requests until the caller says so, or is gone.

    Args:
        settings: as given when the process started.
        recorder: where to keep records of it.
    """
    random.seed()  # a forked process would otherwise draw what its twins draw
    np.random.seed()
    _let_forks_use_all_cpus()
    _keep_pipes_from_forks(settings.requests.fd, settings.replies.fd)
    inbox = Inbox(settings.requests.fd, spin=settings.spin)
    threading.Thread(target=_outlive_no_caller, args=(inbox.fd,), daemon=True).start()
    _outlive_no_caller_in_native_code()
    worker = Worker(settings, recorder)
    try:
        worker.serve(inbox, settings.replies.fd)
    except PeerGoneError:
        pass  # the caller ended without a word: so does this process
    finally:
        worker.close()


class Worker:
    """Executes requests on one group of environments.

    Args:
        settings: as given when the process started.
        recorder: where the group keeps its records.
    """

    def __init__(self, settings: WorkerSettings, recorder: Recorder) -> None:
        self._settings = settings
        self._recorder = recorder
        self._group: EnvGroup
        self._commands: dict[str, Callable[..., Any]] = {
            "build": self._build,
            "rebuild": self._rebuild,
        }

    def serve(self, requests: Inbox, replies: int) -> None:
        """Answers each request with one reply, until one says to close.

        Raises:
            PeerGoneError: the caller is gone.
        """
        done, ended = frame(Reply.DONE), frame(Reply.ENDED)
        while True:
            code, payload = requests.receive()
            requests.clear()
            if code == Request.CLOSE:
                return
            try:
                if code == Request.STEP:
                    outcome = self._group.step()
                    if outcome.rest is None:
                        message = ended if outcome.ended else done
                    else:
                        message = frame(Reply.RESULT, dumps_for_caller(outcome))
                else:
                    message = frame(Reply.RESULT, self._call(*loads(payload)))
            except BaseException as error:  # such as asyncio's CancelledError
                message = frame(Reply.FAILED, pack_error(error))
            write_all(replies, message)

    def close(self) -> None:
        """Closes the environments; an error can only go to standard error by now."""
        if "attach" in self._commands:
            try:
                self._group.close()
            except EnvError as error:
                print(error, file=sys.stderr)

    def _call(self, name: str, arguments: Sequence[Any]) -> bytes:
        result = self._commands[name](*arguments)
        try:
            return dumps_for_caller(result)
        except Exception as error:
            raise TypeError(
                f"the result of {name!r} cannot be sent to the calling process, because it "
                f"cannot be pickled: {error}"
            ) from None

    def _build(
        self,
        env_fns: bytes | None,
        keywords: Sequence[Mapping[str, Any]],
        first: int,
        autoreset: Autoreset,
    ) -> list[tuple[int, EnvDescription]]:
        """Makes the environments, from functions that come pickled, or came when forked."""
        functions = (self._settings.env_fns or ()) if env_fns is None else loads(env_fns)
        limit_threads(self._settings.threads)
        group = EnvGroup(functions, keywords, first, _freeze, self._recorder, autoreset)
        self._group = group
        limit_threads(self._settings.threads)
        self._commands = {
            "attach": self._attach,
            "step": group.step,
            "reset": group.reset,
            "call": group.call,
            "get_attr": group.get_attr,
            "set_attr": group.set_attr,
            "apply": group.apply,
            "render": group.render,
            "revive": group.revive,
            "ready": self._ready,
        }
        return group.describe()

    def _attach(self, spaces: tuple[Any, Any], num_envs: int, lo: int, hi: int) -> None:
        """Takes this group's slice of the arrays, whose memory has its size by now."""
        memory = SharedMemory(self._settings.memory.fd, self._settings.reserved)
        arrays = StepArrays.allocate(*spaces, num_envs, memory.map())
        memory.close()
        self._group.attach(arrays.slice(lo, hi))

    def _rebuild(
        self,
        build: Sequence[Any],
        attach: Sequence[Any],
        attributes: Mapping[tuple[int, str], Any],
        then: tuple[str, Sequence[Any]],
    ) -> Any:
        """Does all that a process did whose place this one takes, and then a command."""
        self._build(*build)
        self._attach(*attach)
        for (place, name), value in attributes.items():
            self._group.set_attr([place], name, [value])
        command, arguments = then
        return self._commands[command](*arguments)

    def _ready(self, seeds: Sequence[int | None]) -> None:
        """Resets new environments for what is asked of them before a step resets them again."""
        for place, seed in enumerate(seeds):
            self._group.call([place], "reset", (), {} if seed is None else {"seed": seed})


def _freeze(value: Any) -> bytes:
    try:
        return dumps_for_caller(value)
    except Exception as error:
        raise BadValueError(
            f"{value!r} cannot be sent to the calling process, because it cannot be pickled: "
            f"{error}"
        ) from None


def limit_threads(threads: int | None) -> None:
    """Limits the libraries that are loaded already, and do not ask the environment variables."""
    if threads is None:
        return
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)
    if (cv2 := sys.modules.get("cv2")) is not None:
        cv2.setNumThreads(threads)


def _let_forks_use_all_cpus() -> None:
    """Keeps the one CPU this process may be given from those that its environments fork."""
    if hasattr(os, "sched_getaffinity"):
        cpus = os.sched_getaffinity(0)
        os.register_at_fork(after_in_child=lambda: os.sched_setaffinity(0, cpus))


def _keep_pipes_from_forks(requests: int, replies: int) -> None:
    """Keeps a process that an environment forks from answering in the place of this one."""

    def let_go() -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (requests, replies):
            os.dup2(null, fd, inheritable=False)
        os.close(null)

    os.register_at_fork(after_in_child=let_go)


def _outlive_no_caller(requests: int) -> None:
    """Ends this process a moment after the caller has, whatever its main thread is doing."""
    poll = select.poll()
    poll.register(requests, 0)  # no data, only the end of the pipe
    while not poll.poll():
        pass
    time.sleep(ORPHAN_GRACE)
    os._exit(1)


def _outlive_no_caller_in_native_code() -> None:
    """The same for a main thread that never lets go of the interpreter, so that no other runs.

    The kernel signals the end of a pipe from the caller. The signal's handler is C's own ``alarm``,
    called with the signal's number: so many seconds later another signal ends this process.
    """
    caller = multiprocessing.parent_process()
    if caller is None or not hasattr(fcntl, "F_SETSIG"):  # not Linux
        return
    # A hangup is what it is; but whoever ignores hangups, as nohup does, goes on doing so.
    hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    number = signal.SIGHUP if hangup else signal.SIGQUIT
    with suppress(OSError):  # where there is no /proc
        # Opened anew, because who is signalled is kept with what processes share of a descriptor.
        end = os.open(f"/proc/self/fd/{caller.sentinel}", os.O_RDONLY | os.O_NONBLOCK)
        libc = ctypes.CDLL(None)
        libc.signal(int(number), libc.alarm)
        fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(end, fcntl.F_SETSIG, number)
        fcntl.fcntl(end, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
