"""Measure most figures of docs/benchmarks.md.

Each part runs one script, which writes a table between the part's markers on the page, and a
plot. A part that fails leaves the page unchanged, and the other parts continue. The README's
plots come from the parts `throughput` and `atari`. All parts take about twenty-five minutes on two
idle cores, longer if rounds are repeated. Before each part, the script waits for a limited time
until the machine is idle. If rounds differ by more than 15 %, their number is doubled, and the
page says so. With selected parts, the page keeps the date and machine of all other parts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.shared.contenders import KINDS
from benchmarks.shared.question import make_parser
from benchmarks.shared.quiet import Look, wait_until_quiet
from benchmarks.shared.record import replace_between, text_between
from benchmarks.shared.reference import LIMIT
from xuance_envs.measure import Throughput
from xuance_envs.report import markdown_table, plot_throughput

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "_static" / "benchmarks"
MINUTES = 25
"""Duration of all parts on two idle cores."""

LONGEST = 400
"""Time limit of one part, in seconds."""

MAIN = (
    LIMIT,
    "Dummy",
    "Subproc",
    "Subproc, caller_steps",
    "Gymnasium Async",
    "SB3 Subproc",
    "Tianshou Shmem",
    "TorchRL Parallel",
    "XuanCe Subproc",
    "PufferLib Multiprocessing",
    "EnvPool",
)
"""Implementations in the README's plot."""


@dataclass(frozen=True)
class Part:
    """A run of one script.

    ``table`` is the name of the page's markers, by default ``MODULE table``.
    """

    module: str
    options: str = ""
    table: str = ""
    picture: bool = False

    @property
    def markers(self) -> str:
        return self.table or f"{self.module} table"


IN_SWEEPS = "--peers sb3-subproc tianshou-shmem --rounds 5 --seconds 0.15"
PARTS = {
    "throughput": Part(
        "throughput",
        "--num-envs 8 64 --backends dummy dummy-bare subproc caller --peers --rounds 5 "
        "--seconds 0.3",
        picture=True,
    ),
    "atari": Part("atari", "--num-envs 8 32 --rounds 5 --seconds 0.3", picture=True),
    "halfcheetah": Part(
        "throughput",
        "--env HalfCheetah-v5 --num-envs 16 --peers gymnasium-async envpool --rounds 5 "
        "--seconds 0.4",
        "halfcheetah table",
    ),
    "one_each": Part(
        "throughput",
        "--num-envs 16 --backends subproc one-each --peers gymnasium-async sb3-subproc "
        "tianshou-shmem xuance-subproc --rounds 5 --seconds 0.3",
        "one each table",
    ),
    "many": Part(
        "throughput",
        "--num-envs 256 1024 --backends dummy subproc caller --peers gymnasium-sync envpool "
        "--rounds 5 --seconds 0.3",
        "many table",
    ),
    "work": Part("work", IN_SWEEPS, picture=True),
    "observations": Part("observations", IN_SWEEPS, picture=True),
    "infos": Part("infos", IN_SWEEPS, picture=True),
    "masks": Part(
        "infos", "--masks --num-envs 64 --work 10 --rounds 5 --seconds 0.3", "masks table"
    ),
    "transforms": Part("transforms", "--rounds 5 --seconds 0.3"),
    "multi_agent": Part("multi_agent", "--peers --rounds 5 --seconds 0.15", "multi-agent table"),
    "mappo": Part("mappo", "--seeds 1 2"),
    "state": Part("state", "--rounds 7 --seconds 0.3"),
    "rollout": Part("rollout", "--rounds 5"),
    "remote": Part("remote", "--rounds 5 --seconds 0.5"),
    "ray_scaling": Part("ray_scaling", "--rounds 3 --seconds 0.4", "ray scaling tables"),
    "training": Part("training", "--rounds 3"),
    "compat": Part("compat", "--rounds 5 --seconds 0.2"),
    "startup": Part("startup", "--contexts spawn fork --peers sb3-subproc --rounds 2"),
    "footprint": Part(
        "footprint",
        "--peers sb3-dummy sb3-subproc tianshou-dummy tianshou-shmem torchrl-serial envpool "
        "--rounds 1",
    ),
    "memory": Part("memory"),
    "latency": Part("latency", "--peers --rounds 3 --steps 100"),
    "anatomy": Part("anatomy"),
    "asynchronous_stepping": Part(
        "asynchronous_stepping",
        "--peers --rounds 5 --seconds 0.3",
        "asynchronous stepping tables",
    ),
    "parent_cost": Part(
        "parent_cost", "--workers 1 2 4 16 64 --rounds 3", "parent cost table", picture=True
    ),
    "choice": Part("choice", "--times 2 --rounds 4 --seconds 0.2"),
}
"""All parts, by name, the most important first."""


NAMES, DISTURBED = "parts", "parts measured on a busy machine"
"""Rows of the machine table that list parts."""

NOTHING = "none"


@dataclass
class Took:
    """The result of a part: outcome, seconds, the machine's state before it, and its record."""

    outcome: str
    seconds: float = 0.0
    seen: Look | None = None
    record: dict[str, Any] | None = None


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser("page", __doc__)
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)} (default: all)")
    add("--minutes", type=float, default=40, help="start no part after this time (default: 40)")
    add(
        "--wait",
        type=float,
        default=120,
        metavar="SECONDS",
        help="total time limit for waiting until the machine is idle (default: 120)",
    )
    args = parser.parse_args(argv)
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part: {', '.join(sorted(unknown))}")
    names = list(dict.fromkeys(args.parts)) or list(PARTS)
    print(
        f"{len(names)} of {len(PARTS)} parts. All take about {MINUTES} minutes on two idle cores, "
        f"longer if rounds are repeated. After {args.minutes:g} minutes, the remaining parts are "
        "skipped."
    )
    took = run_parts(names, args.minutes * 60, args.wait)
    done = {name: each.record for name, each in took.items() if each.record is not None}
    if done:
        replace_between(PAGE, "machine", machine(took, text_between(PAGE, "machine")))
    if "throughput" in done:
        draw_main(done["throughput"])
    print(f"\n{sum(each.seconds for each in took.values()):.0f} s in total:")
    for name, each in took.items():
        print(f"  {name:<14} {each.seconds:>5.0f} s  {each.outcome}")
    if len(done) < len(names):
        raise SystemExit(1)


def run_parts(names: Sequence[str], seconds: float, wait: float) -> dict[str, Took]:
    """Run parts until the time is over; return their results by name."""
    took: dict[str, Took] = {}
    first = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            if time.monotonic() - first > seconds:
                took[name] = Took("skipped: no time left")
                continue
            print(f"\n==> {name}", flush=True)
            seen, waited = wait_until_quiet(wait, partial(print, flush=True))
            wait -= waited
            file, start = Path(folder, f"{name}.json"), time.monotonic()
            outcome = run_part(name, file)
            took[name] = Took(outcome, time.monotonic() - start, seen)
            print(f"==> {name}: {outcome} after {took[name].seconds:.0f} s", flush=True)
            if outcome == "done":
                took[name].record = json.loads(file.read_text(encoding="utf-8"))
    return took


def run_part(name: str, file: Path) -> str:
    """Run one part with a time limit; return its outcome in a word or two."""
    part = PARTS[name]
    command = [sys.executable, "-m", f"benchmarks.{part.module}", *part.options.split()]
    command += ["--json", str(file), "--page", str(PAGE), "--table", part.markers]
    if part.picture:
        command += ["--png", str(PICTURES / f"{name}.png")]
    # The part has its own process group, so that its child processes can be killed with it.
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        try:
            status = process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            return f"ENDED at {LONGEST} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return "done" if status == 0 else f"FAILED with {status}"


def machine(took: Mapping[str, Took], before: str = "") -> str:
    """Return the page's machine tables: one for each run whose figures are on the page.

    ``before`` has the tables of earlier runs.
    """
    done = {name: each for name, each in took.items() if each.record is not None}
    first = next(each.record for each in took.values() if each.record is not None)
    described = first["machine"]
    cpus = ", ".join(map(str, described["affinity"] or ())) or "any"
    minutes = sum(each.seconds for each in done.values()) / 60
    rows = [
        ["measured", f"{first['date'][:10]}, commit {first['commit'] or 'unknown'}"],
        [NAMES, ", ".join(done)],
        ["processor", f"{described['cpu']}: {described['cores']} cores (CPUs {cpus})"],
        ["system", described["system"]],
        ["versions", ", ".join(f"{name} {version}" for name, version in first["versions"].items())],
        ["duration", "a minute or less" if minutes < 1.5 else f"{minutes:.0f} minutes"],
    ]
    looks = {name: each.seen for name, each in done.items() if each.seen is not None}
    for label, values in (
        ("CPU use of other processes before each part", [each.busy for each in looks.values()]),
        ("slowest core relative to the fastest", [each.slowest_core for each in looks.values()]),
    ):
        known = [value for value in values if value is not None]
        if known:
            rows.append([label, f"{min(known):.0%} to {max(known):.0%}"])
    if looks:
        disturbed = [name for name, each in looks.items() if not each.quiet]
        rows.append([DISTURBED, ", ".join(disturbed) or NOTHING])
    runs = [rows, *_without(done, before)]
    return "\n\n".join(markdown_table(["", ""], each, words=2) for each in runs)


def _without(again: Container[str], before: str) -> Iterator[list[list[str]]]:
    """Yield the rows of each earlier run, without the parts that were measured again."""
    for table in filter(None, before.split("\n\n")):
        rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in table.split("\n")[2:]]
        for row in rows:
            if row[0] in {NAMES, DISTURBED}:
                left = [name for name in row[1].split(", ") if name not in again]
                row[1] = ", ".join(left) or NOTHING
        if [NAMES, NOTHING] not in rows:
            yield rows


def draw_main(run: dict[str, Any]) -> None:
    """Draw the README's plot: throughput with 8 and 64 environments."""
    panels: dict[int, list[Throughput]] = {}
    for result in run["results"]:
        if result["contender"] in MAIN:
            each = Throughput(result["contender"], result["environments"], tuple(result["rounds"]))
            panels.setdefault(result["beside"], []).append(each)
    described = run["machine"]
    plot_throughput(
        panels,
        PICTURES / "readme.png",
        title=f"CartPole-v1, random actions, {described['cores']} cores of {described['cpu']}",
        kinds=KINDS,
        limit=LIMIT,
    )


if __name__ == "__main__":
    main()
