"""Libraries whose requirements conflict with this package's, each in its own virtual environment.

``make bench-peers`` creates these environments, ``.venv-LIBRARY`` beside the package. There, a
process runs ``standalone.py``, which steps the library and measures the seconds. The process is
suspended between runs, because a process that spins would disturb other measurements.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.peers.entry import Entry, LeftOut

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("standalone.py")


class OtherPython:
    """A runner in a different Python process, which is suspended between runs.

    Args:
        library: name of the library in ``standalone.py``.
        python: interpreter of the library's virtual environment.
        entry: the environments to step.
        script: the script that steps the library; None for ``standalone.py``.

    Raises:
        LeftOut: the process did not start.
    """

    def __init__(
        self, library: str, python: Path, entry: Entry, script: Path | None = None
    ) -> None:
        self.num_envs = entry.num_envs
        # -I, because the adapters beside the script have the same names as the libraries.
        names = [library, entry.env_id, str(entry.num_envs)]
        command = [str(python), "-I", str(script or SCRIPT), *names]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            self._tell([batch.tolist() for batch in entry.actions[:64]])
            self.version = str(self._heard())
        except BaseException:
            self.close()
            raise
        self._send_signal(signal.SIGSTOP)

    def run(self, steps: int) -> float:
        """Step every environment ``steps`` times; return the seconds that the process measured."""
        self._send_signal(signal.SIGCONT)
        try:
            self._tell(steps)
            return float(self._heard())
        finally:
            self._send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """Kill the process and its child processes."""
        self._send_signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _send_signal(self, number: int) -> None:
        os.killpg(self._process.pid, number)

    def _tell(self, what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def _heard(self) -> str | float:
        assert self._process.stdout is not None
        answer = json.loads(self._process.stdout.readline() or '{"error": "its process ended"}')
        if "error" in answer:
            raise LeftOut(answer["error"])
        value: str | float = answer["value"]
        return value


def _in_own_environment(name: str, library: str, entry: Entry) -> OtherPython:
    entry.need_registered()
    folder = ROOT / f".venv-{name}"
    python = folder / "bin" / "python"
    if not python.exists():
        raise LeftOut(f"not installed (make bench-peers creates {folder.name})")
    runner = OtherPython(library, python, entry)
    entry.stack.callback(runner.close)
    entry.note(f"{name} {runner.version} runs in its own virtual environment.")
    return runner


def xuance_dummy(entry: Entry) -> OtherPython:
    return _in_own_environment("xuance", "xuance-dummy", entry)


def xuance_subproc(entry: Entry) -> OtherPython:
    entry.need_processes()
    return _in_own_environment("xuance", "xuance-subproc", entry)


def pufferlib_serial(entry: Entry) -> OtherPython:
    return _in_own_environment("pufferlib", "pufferlib-serial", entry)


def pufferlib(entry: Entry) -> OtherPython:
    return _in_own_environment("pufferlib", "pufferlib", entry)


def in_xuance(module: str, *arguments: object, given: str = "") -> Any:
    """Run a module in XuanCe's virtual environment; return its JSON output.

    Args:
        module: name of the module. This package can be imported in that environment too.
        *arguments: command-line arguments.
        given: standard input.

    Raises:
        SystemExit: the virtual environment does not exist, or the module failed.
    """
    python = ROOT / ".venv-xuance" / "bin" / "python"
    if not python.exists():
        raise SystemExit("XuanCe is not installed: make test-libraries creates .venv-xuance")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [str(python), "-m", module, *map(str, arguments)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{module} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)
