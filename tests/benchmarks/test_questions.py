"""The benchmarks of one question each, in short: what they write, never how fast anything is."""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import re
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from benchmark_runs import ROOT, run_script
from warm_python import run_python

SHORT = ("--num-envs", "2", "--rounds", "1", "--seconds", "0.01")
OURS_AND_SYNC = ("--contenders", "dummy", "subproc", "gymnasium-sync")


@pytest.mark.parametrize(
    ("script", "values", "shown", "peers"),
    [
        ("work", ("--work", "0", "50"), ["0 µs", "50 µs"], ["SB3 Dummy"]),
        ("observations", ("--sizes", "4 floats", "210×160×3 bytes"), None, []),
        pytest.param(
            *("infos", ("--infos", "2 numbers", "1 kB array"), None, []), marks=pytest.mark.long
        ),
    ],
)
def test_a_sweep_has_every_contender_at_every_value(
    tmp_path: Path,
    script: str,
    values: tuple[str, ...],
    shown: list[str] | None,
    peers: list[str],
) -> None:
    pytest.importorskip("matplotlib")
    options: tuple[str, ...] = ()
    if peers:
        pytest.importorskip("stable_baselines3")
        options = ("--peers", "sb3-dummy")
    picture = tmp_path / "a" / "sweep.png"
    options += ("--png", str(picture))
    answer = run_script(script, tmp_path, *SHORT, *values, *OURS_AND_SYNC, *options)
    shown = shown or list(values[1:])
    names = ["Dummy", "Subproc", "Gymnasium Sync", *peers]
    found = [(row["value"], row["contender"]) for row in answer.record["results"]]
    assert found == [(value, name) for value in shown for name in names]
    assert all(row["steps_per_second"] > 0 for row in answer.record["results"])
    header, _, *rows = answer.page.splitlines()
    assert [cell.strip() for cell in header.split("|")[2:-1]] == shown
    assert [row.split("|")[1].strip() for row in rows[: len(names)]] == names
    assert picture.read_bytes().startswith(b"\x89PNG")
    if script == "work":
        assert set(answer.record["crossings"]) == {"Subproc and Dummy"}


def test_masks_are_compared_with_none(tmp_path: Path) -> None:
    answer = run_script("infos", tmp_path, *SHORT, *OURS_AND_SYNC, "--masks", "--work", "1")
    found = [(row["value"], row["contender"]) for row in answer.record["results"]]
    ways = ("no masks", "masks in infos", "masks from a method")
    assert found == [(way, name) for way in ways for name in ("Dummy", "Subproc")]
    assert all(row["steps_per_second"] > 0 for row in answer.record["results"])


@pytest.mark.long  # starts workers that load torch
def test_rollouts_with_masks_have_a_limit(tmp_path: Path) -> None:
    pytest.importorskip("sb3_contrib")
    answer = run_script("masking", tmp_path, *SHORT, "--work", "1")
    names = [row["contender"] for row in answer.record["results"]]
    assert (names[0], names[-1]) == ("SB3 SubprocVecEnv", "prepared")
    assert all(row["steps_per_second"] > 0 < row["busy"] for row in answer.record["results"])


LOADED = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(f"benchmarks.{name}").main(["--help"])
    except SystemExit as end:
        assert not end.code, name
"""


def test_every_benchmark_loads_and_describes_itself() -> None:
    for needed in ("ray", "sb3_contrib"):
        pytest.importorskip(needed)
    files = sorted(Path(ROOT, "benchmarks").glob("[!_]*.py"))
    done = run_python("-c", LOADED, *(file.stem for file in files), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage:") == len(files)


@pytest.mark.parametrize(
    ("points", "where"),
    [
        ([(0, -2.0), (10, -1.0), (100, 1.0)], 55),
        ([(0, 0.5), (10, 1.0)], 0),
        ([(0, 1.0), (10, -1.0), (100, 1.0)], 55),
        ([(0, 1.0), (10, -1.0)], None),
    ],
)
def test_where_workers_begin_to_pay(points: list[tuple[float, float]], where: float | None) -> None:
    work = importlib.import_module("benchmarks.work")
    assert work.crossing(points) == where


def test_the_wait_for_a_step_is_that_of_single_steps(tmp_path: Path) -> None:
    sizes = ("--num-envs", "1", "3", "--rounds", "2", "--steps", "10")
    names = ("--contenders", "dummy", "gymnasium-sync")
    answer = run_script("latency", tmp_path, *sizes, *names)
    rows = answer.record["results"]
    found = [(row["environments"], row["contender"]) for row in rows]
    assert found == [(n, name) for n in (1, 3) for name in ("Dummy", "Gymnasium Sync")]
    assert all(0 < row["p50"] <= row["p99"] and len(row["p50 by round"]) == 2 for row in rows)


def test_memory_is_counted_with_all_processes(tmp_path: Path) -> None:
    names = ("--contenders", "dummy", "subproc")
    answer = run_script("footprint", tmp_path, "--num-envs", "2", "--rounds", "1", *names)
    dummy, subproc = answer.record["results"]
    assert dummy["processes"] == 0
    assert subproc["processes"] >= 1
    assert subproc["mib"] > 1  # a Python process at the least


def test_memory_over_time_has_a_row_for_each_process(tmp_path: Path) -> None:
    short = ("--num-envs", "2", "--steps", "400", "--samples", "5", "--backends", "subproc")
    answer = run_script("memory", tmp_path, *short)
    names = [row["process"] for row in answer.record["results"]]
    assert names[:2] == ["main process", "worker 0"]
    assert all(len(row["mib"]) == 5 for row in answer.record["results"])


@pytest.mark.long  # starts a Python for each contender
def test_starts_are_timed_and_who_cannot_start_is_said(tmp_path: Path) -> None:
    short = ("--num-envs", "2", "--contexts", "fork", "--rounds", "1")
    answer = run_script("startup", tmp_path, *short, "--peers", "torchrl-parallel")
    names = {row["contender"] for row in answer.record["results"]}
    ours = {"Subproc", "Subproc, caller_steps", "Subproc, in_series=1"}
    assert ours | {"Gymnasium Async"} <= names
    assert ("TorchRL Parallel" in names) != ("TorchRL Parallel under fork: left out" in answer.page)
    assert all(row["seconds"] > 0 for row in answer.record["results"])


@pytest.mark.long
def test_a_training_with_each_vector_environment(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    short = ("--num-envs", "2", "--steps", "100", "--rounds", "1")
    names = ("--contenders", "Dummy", "Gymnasium Sync")
    rows = run_script("training", tmp_path, *short, *names).record["results"]
    assert [row["contender"] for row in rows] == ["Dummy", "Gymnasium Sync"]
    assert all(0 < row["stepping"] < 1 for row in rows)
    assert rows[1]["times_the_first"] > 0
    assert rows[0]["times_the_first"] == 1


@pytest.mark.slow("starts every contender")
def test_many_agents_beside_bare_loops(tmp_path: Path) -> None:
    answer = run_script("multi_agent", tmp_path, *SHORT, "--worlds", "terminating")
    rows = answer.record["results"]
    assert [row["contender"] for row in rows] == [
        "limit of the cores",
        "automatic backend",
        "Dummy",
        "Subproc",
        "Subproc, caller_steps",
        "SubprocVecMultiAgentEnv",
    ]
    assert all(row["steps_per_second"] > 0 for row in rows)
    assert [row["of_limit"] == 1 for row in rows] == [True, *[False] * 5]


@pytest.mark.long
def test_a_training_of_many_agents(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("mpe2")
    short = ("--num-envs", "2", "--steps", "150", "--seeds", "1", "2")
    learner = ("--learners", "examples/train_mappo.py")
    answer = run_script("mappo", tmp_path, *short, *learner)
    (row,) = answer.record["results"]
    assert all(busy > 0 for busy in row["busy"])
    assert len(row["seconds"]) == len(set(row["returns"])) == 2
    assert all(each < 0 for each in row["returns"]), "a distance from what is to be covered"
    assert "examples/train_mappo.py" in answer.page


# --- peers --------------------------------------------------------------------------------------


@pytest.fixture
def peers() -> Any:
    return importlib.import_module("benchmarks.peers")


@pytest.mark.parametrize("name", ["tianshou-dummy", "torchrl-serial"])
def test_an_adapter_goes_on_after_an_episode_ends(name: str, peers: Any) -> None:
    pytest.importorskip(name.partition("-")[0])
    with ExitStack() as stack:
        runner = peers.make_peer(peers.PEERS[name], entry_of(peers, stack, [0, 1]))
        assert runner.run(60) > 0  # CartPole ends after ten steps to one side


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def entry_of(peers: Any, stack: ExitStack, rows: list[int]) -> Any:
    import numpy as np

    actions = [np.array(rows)] * 3
    return peers.Entry("CartPole-v1", len(rows), actions, stack, lambda sentence: None)


def test_a_library_elsewhere_is_driven_through_its_own_python(
    peers: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = importlib.import_module("benchmarks.peers.elsewhere")
    script = tmp_path / "standalone.py"
    lines = Path(elsewhere.SCRIPT).read_text(encoding="utf-8")
    stand_in = (
        "\nLIBRARIES['numpy'] = lambda env_id, n: "
        "gymnasium.make_vec(env_id, n, vectorization_mode='vector_entry_point')\n"
    )
    reset = "LIBRARIES['numpy'] = lambda *a, make=LIBRARIES['numpy']: started(make(*a))\n"
    started = "def started(envs):\n    envs.reset()\n    return envs\n"
    main = "\n\nif __name__"
    script.write_text(lines.replace(main, stand_in + reset + started + main))
    monkeypatch.setattr(elsewhere, "SCRIPT", script)
    with ExitStack() as stack:
        entry = entry_of(peers, stack, [0, 1])
        runner = elsewhere.OtherPython("numpy", Path(sys.executable), entry)
        stack.callback(runner.close)
        assert runner.version[0].isdigit()
        assert 0 < runner.run(10) < 60
        deadline = time.monotonic() + 60
        while state_of(runner._process.pid) != "T":  # stopped while nobody asks
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert runner.run(1) > 0
        with pytest.raises(peers.LeftOut, match="KeyError: 'no such'"):
            elsewhere.OtherPython("no such", Path(sys.executable), entry)


def test_a_library_without_its_environment_is_left_out(
    peers: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = importlib.import_module("benchmarks.peers.elsewhere")
    monkeypatch.setattr(elsewhere, "ROOT", tmp_path)
    notes: list[str] = []
    contest = importlib.import_module("benchmarks.shared.contest")
    with ExitStack() as stack:
        entry = entry_of(peers, stack, [0])
        entry = peers.Entry("CartPole-v1", 1, entry.actions, stack, notes.append)
        assert contest.join_peers(["xuance-dummy"], entry, "1 environment") == {}
        made_up = peers.Entry("", 1, entry.actions, stack, notes.append, [gymnasium.Env])
        assert contest.join_peers(["envpool"], made_up, "1 environment") == {}
    assert "XuanCe Dummy, 1 environment: left out, not installed" in notes[0]
    assert notes[1].startswith("EnvPool, 1 environment: left out, supports only environments")


# --- the page -----------------------------------------------------------------------------------


def test_the_page_has_a_place_for_the_table_and_picture_of_every_part() -> None:
    page = importlib.import_module("benchmarks.page")
    for name, part in page.PARTS.items():
        text = page.PAGE.read_text(encoding="utf-8")
        assert text.count(f"<!-- {part.markers}: begin -->") == 1, name
        assert text.count(f"<!-- {part.markers}: end -->") == 1, name
        assert not part.picture or f"_static/benchmarks/{name}.png" in text


def test_one_part_that_fails_does_not_lose_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = importlib.import_module("benchmarks.page")
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page, "PICTURES", tmp_path)
    tables = ("machine", "throughput table")
    empty = "".join(f"<!-- {table}: begin -->\n<!-- {table}: end -->\n" for table in tables)
    page.PAGE.write_text(empty)
    short = "--num-envs 2 --backends dummy --rounds 1 --seconds 0.01"
    parts = {
        "memory": page.Part("memory", "--no-such-option"),
        "throughput": page.Part("throughput", short),
    }
    monkeypatch.setattr(page, "PARTS", parts)
    with pytest.raises(SystemExit):
        page.main(["--wait", "0"])
    printed = capsys.readouterr().out
    assert "memory: FAILED with 2" in printed
    assert "throughput: done" in printed
    text = page.PAGE.read_text()
    assert "| Dummy " in text
    assert "| processor " in text
    assert re.search(r"\| parts +\| throughput +\|", text), "not all of it"
    assert re.search(r"\| parts measured on a busy machine +\| (none|throughput) +\|", text)
    assert (tmp_path / "readme.png").read_bytes().startswith(b"\x89PNG")


def test_parts_keep_what_they_were_measured_on_until_they_are_measured_again() -> None:
    page = importlib.import_module("benchmarks.page")
    quiet = importlib.import_module("benchmarks.shared.quiet")

    def run(commit: str, before: str, **busy: float) -> str:
        """Return the page after a run of these parts, one of which failed, by other CPU use."""
        machine = {"cpu": f"the cpu of {commit}", "cores": 2, "affinity": [0, 1], "system": "Linux"}
        record = {"date": "2026-01-02T03", "commit": commit, "machine": machine, "versions": {}}
        took = {
            name: page.Took("done", 30.0, quiet.Look(part, 1.0), record)
            for name, part in busy.items()
        }
        return page.machine({**took, "failed": page.Took("FAILED")}, before)

    def rows(text: str) -> list[dict[str, str]]:
        tables = [table.splitlines()[2:] for table in text.split("\n\n")]
        cells = [[line.split("|")[1:3] for line in table] for table in tables]
        return [{label.strip(): value.strip() for label, value in table} for table in cells]

    whole = run("a1", "", work=0.01, atari=0.5, infos=0.02)
    assert [each["parts"] for each in rows(whole)] == ["work, atari, infos"]
    later = run("b2", whole, atari=0.03)
    assert rows(later)[1] == {
        **rows(whole)[0],
        "parts": "work, infos",
        "parts measured on a busy machine": "none",
    }
    assert rows(later)[0]["measured"] == "2026-01-02, commit b2"
    assert rows(later)[0]["processor"].startswith("the cpu of b2")
    last = run("c3", later, work=0.0, infos=0.0)
    assert [each["parts"] for each in rows(last)] == ["work, infos", "atari"]
    assert rows(run("d4", last, work=0.0, infos=0.0, atari=0.0))[1:] == []


def test_a_busy_machine_is_waited_for_and_what_is_measured_nevertheless_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quiet = importlib.import_module("benchmarks.shared.quiet")
    monkeypatch.setattr(quiet, "PAUSE", 0.01)
    busy, unequal, calm = quiet.Look(0.5, 1.0), quiet.Look(0.0, 0.7), quiet.Look(0.02, 0.98)
    looks, said = iter([busy, unequal, calm]), []
    seen, waited = quiet.wait_until_quiet(60.0, said.append, lambda: next(looks))
    assert seen is calm
    assert 0 < waited < 60
    assert ["50%" in said[0], "70%" in said[1]] == [True, True]
    said.clear()
    seen, waited = quiet.wait_until_quiet(0.0, said.append, lambda: busy)
    assert (seen, waited) == (busy, 0.0)
    assert [each.partition(":")[0] for each in said] == ["WARNING"]


def test_a_look_at_the_machine_leaves_its_cpus_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quiet = importlib.import_module("benchmarks.shared.quiet")
    monkeypatch.setattr(quiet, "LOOK_SECONDS", 0.02)
    cpus = os.sched_getaffinity(0)
    seen = quiet.look()
    assert os.sched_getaffinity(0) == cpus
    assert 0 <= seen.busy <= 1
    assert 0 < seen.slowest_core <= 1
    assert quiet.Look(None, None).quiet, "nobody knows"


class Steady:
    """A runner that takes the seconds it is told, over and over, and no time."""

    num_envs = 2

    def __init__(self, *seconds: float) -> None:
        self._seconds = itertools.cycle(seconds)

    def run(self, steps: int) -> float:
        return steps * next(self._seconds)


@pytest.mark.parametrize(("seconds", "rounds"), [((1.0,), 4), ((1.0, 9.0, 2.0), 8)])
def test_rounds_that_differ_too_much_are_made_again_by_all(
    seconds: tuple[float, ...], rounds: int
) -> None:
    contest = importlib.import_module("benchmarks.shared.contest")
    args, notes = argparse.Namespace(rounds=4, seconds=1000.0), []
    runners = {"steady": Steady(1.0), "other": Steady(*seconds)}
    measured = contest.race(args, "made up", lambda stack: runners, notes.append)
    assert [len(each.rates) for each in measured.values()] == [rounds] * 2
    assert any("rounds doubled" in note for note in notes) == (rounds == 8)


@pytest.mark.slow("starts every contender")
def test_what_transforms_cost_is_measured_beside_other_libraries(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    options = ("--env", "Pendulum-v1", "--num-envs", "3", "--in-workers", "2")
    answer = run_script("transforms", tmp_path, *options, "--rounds", "1", "--seconds", "0.01")
    rows = answer.record["results"]
    layers = [row["layer"] for row in rows]
    assert layers == ["xuance_envs", "Gymnasium's wrappers", "SB3's VecNormalize"]
    assert all(len(row["microseconds"]) == 1 for row in rows)
    assert answer.record["share_left"][0] > 0


@pytest.mark.long
def test_how_a_continuous_task_is_learned_is_measured_and_drawn(tmp_path: Path) -> None:
    for library in ("torch", "stable_baselines3", "matplotlib"):
        pytest.importorskip(library)
    picture = tmp_path / "curves.png"
    options = ("--env", "Pendulum-v1", "--steps", "4500", "--seeds", "1", "--png", str(picture))
    answer = run_script(
        "learning", tmp_path, *options, "--learners", "ours", "SB3, settings of its zoo"
    )
    ours, theirs = answer.record["results"]
    assert (ours["learner"], theirs["learner"]) == ("ours", "SB3, settings of its zoo")
    for row in (ours, theirs):
        assert row["seconds"] > 0
        steps, scores = zip(*row["returns"], strict=True)
        assert list(steps) == sorted(steps)
        assert all(-2500 < score < 0 for score in scores)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow("saves every kind of environment")
def test_states_have_every_figure(tmp_path: Path) -> None:
    short = ("--rounds", "1", "--seconds", "0.05", "--steps", "20", "--envs", "CartPole")
    answer = run_script("state", tmp_path, *short)
    (row,) = answer.record["results"]
    assert row["environment"] == "CartPole"
    assert all(value > 0 for value in row.values() if not isinstance(value, str))
    assert "CartPole" in answer.page
