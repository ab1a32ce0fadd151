"""Fresh Python processes that have imported slow libraries already.

A helper imports the libraries and forks for each script. It does nothing else: a script finds no
threads, no environments, and no part of this package imported.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

LIBRARIES = ("gymnasium", "matplotlib.pyplot", "stable_baselines3", "torch")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
REQUEST_BYTES = 2**20
ROOT = Path(__file__).resolve().parents[2]


def run_python(
    *arguments: str | Path,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 110,
    on_start: Callable[[int], object] = lambda pid: None,
) -> subprocess.CompletedProcess[str]:
    """Run Python as ``subprocess.run`` does with ``capture_output``, without its start.

    The libraries do not read ``env``. ``on_start`` receives the id of the process and its group.
    """
    command = [str(argument) for argument in arguments]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    request = json.dumps([command, str(cwd or os.getcwd()), variables]).encode()
    pipes = [os.pipe(), os.pipe()]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES)
        _connect(connection)
        socket.send_fds(connection, [request], [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        texts = ["", ""]
        readers = [
            threading.Thread(target=_read, args=(pipes[i][0], texts, i), daemon=True)
            for i in (0, 1)
        ]
        for reader in readers:
            reader.start()
        pid = int(connection.recv(99))
        on_start(pid)
        connection.settimeout(timeout)
        try:
            code = int(connection.recv(99))
        except TimeoutError:
            os.killpg(pid, signal.SIGKILL)
            connection.settimeout(None)
            connection.recv(99)
            raise subprocess.TimeoutExpired(command, timeout, *texts) from None
    for reader in readers:
        reader.join(5)  # what the process has left behind may hold the pipes open
    return subprocess.CompletedProcess(command, code, *texts)


def _read(descriptor: int, texts: list[str], i: int) -> None:
    with open(descriptor, encoding="utf-8", errors="replace") as stream:
        texts[i] = stream.read()


def _connect(connection: socket.socket) -> None:
    """Connect to the helper, which needs seconds until it listens."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return connection.connect(helper())
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@cache
def helper() -> str:
    """Return the address of this test run's helper; start it if this process asks first."""
    run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    address = f"\0xuance_envs-warm-{run}"
    starter = socket.socket(socket.AF_UNIX)
    try:
        starter.bind(f"{address}-starter")
    except OSError:  # another process of this run has that name
        starter.close()
        return address
    atexit.register(starter.close)
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    code += "import warm_python; warm_python.serve(sys.argv[1], int(sys.argv[2]))"
    subprocess.run(
        [sys.executable, "-c", code, address[1:], str(run)],
        env={**os.environ, **ONE_THREAD, "MPLBACKEND": "Agg"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return address


# --- in the helper ------------------------------------------------------------------------------


def serve(name: str, run: int) -> None:
    """Fork for each connection until the process of the test run ends."""
    import select

    if os.fork():
        os._exit(0)  # tests that count the processes below their own must not find the helper
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0{name}")
    listener.listen()
    while True:
        ready = select.select([listener], [], [], 1)[0]
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        try:
            os.kill(run, 0)
        except ProcessLookupError:
            return
        if ready:
            connection = listener.accept()[0]
            if os.fork() == 0:
                listener.close()
                _supervise(connection)
            connection.close()


def _supervise(connection: socket.socket) -> None:
    """Fork the script's process and report its id and its exit status."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, REQUEST_BYTES)
    request, streams, *_ = socket.recv_fds(connection, REQUEST_BYTES, 2)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        connection.close()
        _become(*json.loads(request), streams)
    for stream in streams:
        os.close(stream)
    connection.send(b"%d" % pid)
    connection.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _become(command: list[str], cwd: str, variables: dict[str, str], streams: list[int]) -> None:
    """Run a program in this process as a new interpreter would, and end the process."""
    null = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((null, *streams)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    warnings.resetwarnings()
    if command[0] == "-W":
        warnings.simplefilter(command[1])  # type: ignore[arg-type]
        del command[:2]
    code = 0
    try:
        _run(command, variables["PYTHONPATH"].split(os.pathsep))
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(command: list[str], path: list[str]) -> None:
    kind, *rest = command
    here = {"-c": "", "-m": os.getcwd()}.get(kind, str(Path(kind).resolve().parent))
    sys.path[:] = [here, *path, *sys.path[2:]]
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main: Any = sys.modules["__main__"]
    names = vars(main)
    for name in [name for name in names if not name.startswith("__")]:
        del names[name]
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        code = compile(rest[0], "<string>", "exec")
    else:
        sys.argv = command
        names["__file__"] = kind
        code = compile(Path(kind).read_bytes(), kind, "exec")
    exec(code, names)
