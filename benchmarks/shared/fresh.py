"""Calls a function in a fresh Python process whose main module imports nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def call_fresh(module: str, function: str, *arguments: Any) -> Any:
    """Call ``benchmarks.MODULE.FUNCTION`` with literal arguments; return its JSON result."""
    call = f"{function}({', '.join(map(repr, arguments))})"
    mark = "what it returned: "
    code = f"import json; from benchmarks.{module} import {function}; answer = {call}; "
    code += f"print({mark!r} + json.dumps(answer))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    _, found, answer = done.stdout.rpartition(mark)
    if done.returncode or not found:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise RuntimeError(lines[-1])
    return json.loads(answer)
