"""Measures everything that docs/benchmarks.md shows, one question after another.

Each part is a run of one script, which puts its table between its markers of the page and its
picture beside it; what fails leaves the page as it was, and the other parts go on. The README's
summary comes from the part `throughput`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.shared.question import make_parser
from benchmarks.shared.record import replace_between
from xuance_envs.report import markdown_table

ROOT = Path(__file__).parents[1]
PAGE, README = ROOT / "docs" / "benchmarks.md", ROOT / "README.md"
PICTURES = ROOT / "docs" / "_static" / "benchmarks"
LONGEST = 400
"""Seconds after which a part is ended."""

MAIN_ROWS = (
    "limit of the cores",
    "Dummy",
    "Subproc",
    "Subproc, caller_steps",
    "Gymnasium Sync",
    "Gymnasium Async",
    "SB3 Dummy",
    "SB3 Subproc",
    "EnvPool",
)
"""Whose rows of the first table are in the README."""


@dataclass(frozen=True)
class Part:
    """A run of one script.

    Attributes:
        module: the script.
        options: what it is given.
        table: the name of the page's markers; that of the script and "table" where it is empty.
        picture: whether it draws one.
        page: where the table goes.
    """

    module: str
    options: str = ""
    table: str = ""
    picture: bool = False
    page: Path = PAGE

    @property
    def markers(self) -> str:
        return self.table or f"{self.module} table"


IN_SWEEPS = "--peers sb3-subproc tianshou-shmem --rounds 5 --seconds 0.3"
PARTS = {
    "throughput": Part(
        "throughput",
        "--num-envs 8 64 --backends dummy dummy-bare subproc caller --peers --rounds 5 "
        "--seconds 0.4",
        picture=True,
    ),
    "atari": Part("atari", "--num-envs 8 32 --rounds 5 --seconds 0.8", page=README),
    "halfcheetah": Part(
        "throughput",
        "--env HalfCheetah-v5 --num-envs 16 --peers gymnasium-async envpool",
        "halfcheetah table",
    ),
    "one_each": Part(
        "throughput",
        "--num-envs 16 --backends subproc one-each --peers gymnasium-async sb3-subproc "
        "tianshou-shmem xuance-subproc --rounds 5",
        "one each table",
    ),
    "many": Part(
        "throughput",
        "--num-envs 256 1024 --backends dummy subproc caller --peers gymnasium-sync envpool "
        "--rounds 5 --seconds 0.4",
        "many table",
    ),
    "work": Part("work", IN_SWEEPS, picture=True),
    "observations": Part("observations", IN_SWEEPS, picture=True),
    "infos": Part("infos", IN_SWEEPS, picture=True),
    "startup": Part("startup", "--contexts spawn fork --peers sb3-subproc --rounds 2"),
    "footprint": Part(
        "footprint",
        "--peers sb3-dummy sb3-subproc tianshou-dummy tianshou-shmem torchrl-serial envpool "
        "--rounds 1",
    ),
    "memory": Part("memory"),
    "latency": Part("latency", "--peers --rounds 4 --steps 200"),
    "anatomy": Part("anatomy"),
    "first_ready": Part("first_ready", "--peers --rounds 5 --seconds 0.6", "first ready tables"),
    "parent_cost": Part(
        "parent_cost", "--workers 1 2 4 16 64 --rounds 3", "parent cost table", picture=True
    ),
    "choice": Part("choice", "--times 2 --rounds 5 --seconds 0.3"),
    "training": Part("training"),
    "rollout": Part("rollout", "--rounds 5"),
    "compat": Part("compat", "--rounds 5 --seconds 0.3"),
    "remote": Part("remote", "--rounds 5"),
    "ray_scaling": Part("ray_scaling", "--rounds 5 --seconds 0.5", "ray scaling tables"),
}
"""By name; the first ones matter most, for whoever has little time."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser("page", __doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"of {', '.join(PARTS)} (default: all)",
    )
    parser.add_argument(
        "--minutes", type=float, default=60, help="begin no part after these (default: 60)"
    )
    args = parser.parse_args(argv)
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    names = list(dict.fromkeys(args.parts)) or list(PARTS)
    took, runs = run_parts(names, args.minutes * 60)
    if runs:
        replace_between(PAGE, "machine", machine(list(runs.values())))
    if "throughput" in runs:
        replace_between(README, "throughput table", short_table(runs["throughput"]))
    print(f"\n{sum(seconds for _, seconds in took.values()):.0f} s in all:")
    for name, (outcome, seconds) in took.items():
        print(f"  {name:<14} {seconds:>5.0f} s  {outcome}")
    if len(runs) < len(names):
        raise SystemExit(1)


def run_parts(
    names: Sequence[str], seconds: float
) -> tuple[dict[str, tuple[str, float]], dict[str, dict[str, Any]]]:
    """How each part went and how long it took, and what the parts that are done kept."""
    took: dict[str, tuple[str, float]] = {}
    runs: dict[str, dict[str, Any]] = {}
    first = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            file, start = Path(folder, f"{name}.json"), time.monotonic()
            if start - first > seconds:
                took[name] = "left out: no time", 0.0
                continue
            print(f"\n==> {name}", flush=True)
            outcome = run_part(name, file)
            took[name] = outcome, time.monotonic() - start
            print(f"==> {name}: {outcome} after {took[name][1]:.0f} s", flush=True)
            if outcome == "done":
                runs[name] = json.loads(file.read_text(encoding="utf-8"))
    return took, runs


def run_part(name: str, file: Path) -> str:
    """Runs one part, at most so long; how that went, in a word or two."""
    part = PARTS[name]
    command = [sys.executable, "-m", f"benchmarks.{part.module}", *part.options.split()]
    command += ["--json", str(file), "--page", str(part.page), "--table", part.markers]
    if part.picture:
        command += ["--png", str(PICTURES / f"{name}.png")]
    # With a group of its own, so that whatever it has started can be ended with it.
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        try:
            status = process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            return f"ENDED at {LONGEST} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return "done" if status == 0 else f"FAILED with {status}"


def machine(runs: Sequence[dict[str, Any]]) -> str:
    """What was measured on, for the page."""
    first = runs[0]
    described = first["machine"]
    busy = [run["machine"]["busy_before_start"] for run in runs]
    known = [each for each in busy if each is not None]
    cpus = ", ".join(map(str, described["affinity"] or ())) or "any"
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    rows = [
        ["processor", f"{described['cpu']}: {described['cores']} cores (CPUs {cpus})"],
        ["system", described["system"]],
        ["versions", versions],
        ["measured", f"{first['date'][:10]}, at commit {first['commit'] or 'unknown'}"],
    ]
    if known:
        rows.append(
            ["at work for others before a part began", f"{min(known):.0%} to {max(known):.0%}"]
        )
    return markdown_table(["", ""], rows, words=2)


def short_table(run: dict[str, Any]) -> str:
    """The main rows of the throughput of 8 and 64 environments, for the README."""
    rows = []
    for result in run["results"]:
        ratio = result["relative_to"]
        if result["contender"] in MAIN_ROWS:
            cells = [ratio.get(other) for other in ("limit of the cores", "Gymnasium Async")]
            rows.append(
                [
                    f"{result['environments']}",
                    result["contender"],
                    f"{result['steps_per_second']:,.0f}",
                    *("-" if cell is None else f"{cell:.2f}" for cell in cells),
                ]
            )
    header = ["environments", "contender", "steps/s", "of the limit", "× Gymnasium Async"]
    return markdown_table(header, rows, words=2)


if __name__ == "__main__":
    main()
