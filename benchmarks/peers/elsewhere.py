"""Libraries that need other versions of what we need: each in an environment of its own.

``make bench-peers`` makes these environments, ``.venv-LIBRARY`` beside the package. A process of
such an environment runs ``standalone.py``, which steps the library there, says how many seconds
it took, and is stopped in between: one that spins while it waits would disturb the others.
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
    """A runner in another Python; it is stopped whenever it is not asked to run.

    Args:
        library: what to step with, as ``standalone.py`` calls it.
        python: the interpreter that has it.
        entry: what to step.
        script: what steps it; None for ``standalone.py``.

    Raises:
        LeftOut: it did not start.
    """

    def __init__(
        self, library: str, python: Path, entry: Entry, script: Path | None = None
    ) -> None:
        self.num_envs = entry.num_envs
        # -I: the adapters beside the script are called as the libraries are.
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
        """Step every environment ``steps`` times; the seconds that took there."""
        self._send_signal(signal.SIGCONT)
        try:
            self._tell(steps)
            return float(self._heard())
        finally:
            self._send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """End it, with the processes it has started."""
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
        answer = json.loads(self._process.stdout.readline() or '{"error": "it ended at once"}')
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
    """What a module that uses XuanCe answers, as JSON, in XuanCe's environment.

    Args:
        module: its name; ours is importable there, too.
        *arguments: what it is run with.
        given: its stdin.

    Raises:
        SystemExit: there is no such environment, or the module failed.
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
