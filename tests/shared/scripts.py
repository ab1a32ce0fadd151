"""Scripts that run as a user runs them: from a file, without a main guard."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import xuance_envs

FOLDERS = (Path(xuance_envs.__file__).parents[1], Path(__file__).parent)


def start_script(tmp_path: Path, text: str, **options: Any) -> subprocess.Popen[str]:
    """Start a script in its own process group, with readable output."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, FOLDERS))},
        start_new_session=True,
        text=True,
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        | options,
    )


def run_script(tmp_path: Path, text: str, *, expect: int = 0, **options: Any) -> str:
    """Run a script to its end; return its output."""
    with start_script(tmp_path, text, **options) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == expect, f"{out}{err}"
    assert expect or not err, err
    return out or ""
