"""A function called in a Python process of its own, whose main module has nothing to import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def call_fresh(module: str, function: str, *arguments: Any) -> Any:
    """Calls ``benchmarks.MODULE.FUNCTION`` there.

    Args:
        module: the module of a question.
        function: its name there.
        *arguments: whose ``repr`` is a literal.

    Returns:
        What it returned, which JSON must be able to carry.

    Raises:
        RuntimeError: it failed; the message has the end of what it wrote.
    """
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
