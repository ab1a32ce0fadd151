"""What all tests share."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from typing import Any

# Tests run side by side: more threads of NumPy and torch would take their cores, and wait for each
# other. Libraries read this when they are imported.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import hypothesis
import pytest
from backends import quick_forkserver
from pressure import seconds_stalled
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from xuance_envs.engine.cpus import affinity_cpus
from xuance_envs.engine.system.current import system

__all__ = ["quick_forkserver"]

STARTED = time.monotonic()
BUDGET = "TEST_BUDGET_SECONDS"
LONGEST = 3.0
"""Seconds that a test takes at most without the marker ``slow``, which gives the reason."""
FAILING = 20 * LONGEST
"""Seconds without a reason that make a run with a budget fail, on slow machines too."""
durations: dict[str, float] = {}
unexplained: dict[str, float] = {}

# On a machine whose cores are shared, one slow example says nothing about the code.
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.load_profile("here")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that puts the tests into the background has them ignore what many of them send.
    signal.signal(signal.SIGINT, signal.default_int_handler)

with contextlib.suppress(ImportError):
    import tqdm

    # The thread that watches progress bars would stay; to fork beside a thread is warned about.
    tqdm.tqdm.monitor_interval = 0


def drops(config: pytest.Config, marks: Iterable[pytest.Mark]) -> bool:
    """Return whether not to build a test: it is long, and -m is that of pyproject.toml."""
    return config.option.markexpr == "not long" and any(mark.name == "long" for mark in marks)


def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: Any
) -> list[pytest.Item] | None:
    """Skip long functions, all of a long module, and the far ones that do not run everywhere."""
    marks = [*collector.iter_markers(), *getattr(obj, "pytestmark", ())]
    wanted = {mark.args[0] for mark in marks if mark.name == "far"}
    if not wanted <= {mark.name for mark in marks}:
        marks.append(pytest.mark.long.mark)
    return [] if drops(collector.config, marks) else None


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Skip long cases. If all are long, keep them: pytest would take none for no parameters.

    Cases marked ``far(NAME)`` are long, except those of functions that are marked NAME. If that
    mark has arguments, only the cases with one of these ids are not long.
    """
    ids = {each for case in metafunc._calls for each in case._idlist}
    for case in metafunc._calls:
        for name in {mark.args[0] for mark in case.marks if mark.name == "far"}:
            mark = metafunc.definition.get_closest_marker(name)
            chosen = set(mark.args) if mark else set()
            assert chosen <= ids, f"{metafunc.definition.nodeid}: no cases {chosen - ids}"
            if mark is None or (chosen and chosen.isdisjoint(case._idlist)):
                case.marks.append(pytest.mark.long.mark)
    short = [case for case in metafunc._calls if not drops(metafunc.config, case.marks)]
    metafunc._calls = short or metafunc._calls


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return more processes than cores, because tests often wait; one of them runs Ray's."""
    return min(affinity_cpus() + 2, 6)


class RayApart(LoadFileScheduling):
    """Files for each process; one process begins with all tests over Ray and does no others.

    They mostly wait, and share a cluster and its actors. A single process does them last.
    """

    RAY = "tests/ray"

    def _split_scope(self, nodeid: str) -> str:
        return self.RAY if nodeid.startswith(f"{self.RAY}/") else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        apart = self.numnodes > 1 and self.RAY in self.workqueue
        if apart:
            self.workqueue.move_to_end(self.RAY, last=False)
        super()._assign_work_unit(node)
        if apart:
            node.shutdown()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> RayApart | None:
    if config.option.dist == "loadfile":
        return RayApart(config, log)
    return None


@pytest.fixture(scope="session", autouse=True)
def only_own_threads_count() -> Iterator[None]:
    """Leaves out of the count a thread of pytest-xdist: beside it, whatever forks may do so."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    count, runner = system.count_threads, os.getpid()

    def counted(process: int | str = "self") -> int:
        is_runner = process in (runner, "self") and os.getpid() == runner
        return count(process) - is_runner

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system, "count_threads", counted)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, which would take a third of the time.

    Then exclude the collected tests from garbage collection: a pass over them takes a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# --- durations ----------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    before = seconds_stalled()
    gc.callbacks.clear()  # an interrupt within one, Hypothesis's for example, is lost
    try:
        return (yield)
    finally:
        item.user_properties.append(("stalled", seconds_stalled() - before))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record durations, and tests that take long themselves, not by fixtures or for want of CPU."""
    durations[report.nodeid] = durations.get(report.nodeid, 0.0) + report.duration
    if report.when == "call" and not {"slow", "long"} & report.keywords.keys():
        stalled: Any = dict(report.user_properties).get("stalled", 0.0)
        if report.duration - stalled > LONGEST:
            unexplained[report.nodeid] = report.duration - stalled


def over_budget() -> bool:
    return BUDGET in os.environ and time.monotonic() - STARTED > float(os.environ[BUDGET])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Record durations. Fail a run over its budget, or with slow tests that give no reason."""
    config = session.config
    is_main = "PYTEST_XDIST_WORKER" not in os.environ
    if is_main and hasattr(config, "cache") and durations:
        config.cache.set("xuance_envs/durations", durations)
    too_slow = BUDGET in os.environ and max(unexplained.values(), default=0.0) > FAILING
    if over_budget() or too_slow:
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.option.markexpr == "not long":
        for name, seconds in unexplained.items():
            terminalreporter.write_line(f"{name}: {seconds:.1f} s; mark it slow with the reason")
    if BUDGET in os.environ or config.option.numprocesses:
        files: Counter[str] = Counter()
        for name, seconds in durations.items():
            files[name.partition("::")[0]] += seconds  # type: ignore[assignment]
        slowest = ", ".join(f"{file} {seconds:.0f} s" for file, seconds in files.most_common(5))
        terminalreporter.write_line(f"slowest files: {slowest}")
        seconds, budget = time.monotonic() - STARTED, float(os.environ.get(BUDGET, 600))
        terminalreporter.write_line(f"tests took {seconds:.0f} s of a budget of {budget:.0f} s")
