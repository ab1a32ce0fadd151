"""The record of a run: machine, versions and results, for readers and for JSON files."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.shared.quiet import BUSY, busy_fraction
from xuance_envs.engine.cpus import available_cpus

PACKAGES = (
    "xuance_envs",
    "numpy",
    "gymnasium",
    "cloudpickle",
    "mujoco",
    "ale-py",
    "stable_baselines3",
    "tianshou",
    "torchrl",
    "envpool",
    "torch",
    "ray",
)


def _machine() -> dict[str, Any]:
    """Describe the machine and its load."""
    return {
        "cpu": _cpu_model(),
        "cores": available_cpus(),
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "system": f"{platform.system()} {platform.release()}",
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "busy_before_start": busy_fraction(),
    }


def _versions() -> dict[str, str]:
    """Return the versions of Python and the relevant installed packages."""
    versions = {"python": f"{platform.python_implementation()} {platform.python_version()}"}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def describe_run() -> dict[str, Any]:
    """Return the context of all figures: command, date, commit, machine, versions."""
    return {
        "command": _command(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": _machine(),
        "versions": _versions(),
    }


def summary(run: dict[str, Any]) -> str:
    """Return the context in a few lines, with a warning if the machine is busy."""
    machine = run["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    cpus = ", ".join(map(str, machine["affinity"] or ())) or "any"
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores available (CPUs {cpus}), {machine['system']}",
        f"{versions}; commit {run['commit'] or 'unknown'}",
    ]
    busy = machine["busy_before_start"]
    if busy is not None:
        lines.append(f"CPU use of other processes before the start: {busy:.0%}")
        if busy > BUSY:
            lines.append(f"WARNING: more than {BUSY:.0%}; measure again on an idle machine")
    return "\n".join(lines)


def save(path: Path, question: str | None, run: dict[str, Any], **content: Any) -> None:
    """Write a JSON file: the question, the run, and the results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"question": question, **run, **content}
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _command() -> str:
    module = Path(sys.argv[0]).stem
    return shlex.join(["python", "-m", f"benchmarks.{module}", *sys.argv[1:]])


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Return the measured commit, marked if files differ from it."""
    git = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    here = Path(__file__).parent
    try:
        answer = subprocess.run(git, cwd=here, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return answer.stdout.strip() or None


def text_between(path: Path, name: str) -> str:
    """Return the text between a file's markers of this name."""
    return _split(path, name)[1].strip("\n")


def replace_between(path: Path, name: str, text: str) -> None:
    """Replace the text between a file's markers of this name."""
    before, _, after = _split(path, name)
    path.write_text(f"{before}\n{text}\n{after}", encoding="utf-8")


def _split(path: Path, name: str) -> tuple[str, str, str]:
    """Split a file at its markers into three parts."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    text, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise ValueError(f"expected the markers {begin} and {end} in {path}")
    return before + begin, text, end + after
