"""Worker processes: how they start, what they load, and how they end."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import xuance_envs
from xuance_envs import (
    DummyVecEnv,
    EnvError,
    SubprocVecEnv,
    WorkerDiedError,
    WorkerTimeoutError,
)
from xuance_envs.engine.worker_process import WorkerProcess
from xuance_envs.vector_envs.arguments import shares

ROOT = Path(xuance_envs.__file__).parents[1]
METHODS = multiprocessing.get_all_start_methods()


class ProcessEnv(gymnasium.Env[Any, Any]):
    """Tells about the process it lives in, and does to it what a test asks for."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(3)
    WAIT, EXIT = 1, 2

    def __init__(self, seconds: float = 0.0) -> None:
        self.steps = 0
        self.seconds = seconds

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1), {}

    def step(self, action: int) -> Any:
        if action == self.EXIT:
            os._exit(7)
        if action == self.WAIT:
            time.sleep(self.seconds)
        self.steps += 1
        return np.full(1, self.steps), 0.0, False, False, {}

    def pid(self) -> int:
        return os.getpid()

    def variables(self) -> dict[str, str]:
        return dict(os.environ)

    def modules(self) -> list[str]:
        return list(sys.modules)

    def main_file(self) -> str | None:
        return getattr(sys.modules["__main__"], "__file__", None)

    def draw(self) -> float:
        return float(np.random.random())

    def start_a_child(self) -> int | None:
        child = multiprocessing.get_context("fork").Process(target=int)
        child.start()
        child.join()
        return child.exitcode


def run_script(tmp_path: Path, text: str, *, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a script as a user would: a file, without a main guard."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    result = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == expect, result.stdout + result.stderr
    return result


def wait_until(done: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)
    return done()


def interrupt_soon() -> None:
    """What Ctrl-C does, in a moment."""
    main = threading.main_thread().ident
    threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT)).start()


def is_running(pid: int) -> bool:
    """Whether a process lives; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class TestStarting:
    @pytest.mark.parametrize("context", METHODS)
    def test_each_start_method_works_with_lambdas_and_local_state(self, context: str) -> None:
        seconds = 0.25
        with SubprocVecEnv([lambda: ProcessEnv(seconds)] * 3, context=context, in_series=1) as envs:
            assert envs.get_attr("seconds") == (0.25,) * 3
            pids = envs.call("pid")
            assert len({os.getpid(), *pids}) == 4

    def test_a_script_without_a_main_guard_keeps_its_imports_to_itself(
        self, tmp_path: Path
    ) -> None:
        pytest.importorskip("torch")
        result = run_script(
            tmp_path,
            """
            import sys
            import gymnasium, numpy as np, torch
            from xuance_envs import EnvError, SubprocVecEnv_Gym

            print("main runs")

            class MyError(Exception):
                pass

            class MyEnv(gymnasium.Env):
                observation_space = gymnasium.spaces.Box(0, 1, (2,))
                action_space = gymnasium.spaces.Discrete(2)
                def reset(self, seed=None, options=None):
                    return np.zeros(2, np.float32), {}
                def step(self, action):
                    if action:
                        raise MyError("mine")
                    return np.ones(2, np.float32), 1.0, False, False, {"kind": MyError}
                def loaded(self):
                    heavy = {"torch", "cv2", "gym", "ray", "pytest", "matplotlib"}
                    return sorted(heavy & set(sys.modules))

            gymnasium.register("MyEnv-v0", MyEnv)

            for context in ("spawn", "forkserver"):
                envs = SubprocVecEnv_Gym([lambda: MyEnv() for _ in range(4)], context=context)
                envs.reset()
                print(envs.call("loaded"))
                _, _, _, _, infos = envs.step([0] * 4)
                assert infos[3]["kind"] is MyError
                try:
                    envs.step([0, 0, 1, 0])
                except EnvError as error:
                    assert type(error.__cause__) is MyError, error.__cause__
                    print(error.env_index)
            """,
        )
        assert result.stdout == "main runs\n" + "([], [], [], [])\n2\n" * 2
        assert result.stderr == ""

    def test_the_main_module_is_as_it_was_afterwards(self) -> None:
        main = sys.modules["__main__"]
        before = (main.__spec__, getattr(main, "__file__", None))
        with SubprocVecEnv([ProcessEnv]) as envs:
            assert envs.call("main_file") == (None,)
        assert (main.__spec__, getattr(main, "__file__", None)) == before

    def test_a_worker_loads_nothing_heavier_than_numpy_and_gymnasium(self) -> None:
        with SubprocVecEnv([ProcessEnv]) as envs:
            modules = set(envs.call("modules")[0])
        assert not modules & {"torch", "cv2", "gym", "ray", "ale_py", "matplotlib", "tqdm"}

    def test_workers_do_not_see_mpi_and_have_one_thread(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK"):
            monkeypatch.setenv(name, "3")
        monkeypatch.setenv("OMP_NUM_THREADS", "8")
        with SubprocVecEnv([ProcessEnv]) as envs:
            (variables,) = envs.call("variables")
        assert not [name for name in variables if name.startswith(("OMPI_", "PMI"))]
        assert variables["OMP_NUM_THREADS"] == variables["OPENBLAS_NUM_THREADS"] == "1"
        assert os.environ["OMP_NUM_THREADS"] == "8"

    def test_the_number_of_threads_in_workers_can_be_chosen(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OMP_NUM_THREADS", "8")
        with SubprocVecEnv([ProcessEnv], worker_threads=3) as envs:
            assert envs.call("variables")[0]["OMP_NUM_THREADS"] == "3"
        with SubprocVecEnv([ProcessEnv], worker_threads=None) as envs:
            assert envs.call("variables")[0]["OMP_NUM_THREADS"] == "8"

    @pytest.mark.parametrize("context", METHODS)
    def test_global_generators_differ_between_workers_and_the_callers_is_not_touched(
        self, context: str
    ) -> None:
        np.random.seed(5)
        before = np.random.get_state()[1].copy()
        with SubprocVecEnv([ProcessEnv] * 3, context=context, in_series=1) as envs:
            draws = set(envs.call("draw"))
        assert (np.random.get_state()[1] == before).all()
        assert len(draws | {np.random.random()}) == 4

    def test_an_environment_may_start_processes_of_its_own(self) -> None:
        with SubprocVecEnv([ProcessEnv]) as envs:
            assert envs.call("start_a_child") == (0,)

    def test_fork_is_warned_about_where_threads_run(self) -> None:
        stop = threading.Event()
        thread = threading.Thread(target=stop.wait)
        thread.start()
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                SubprocVecEnv([ProcessEnv], context="fork").close()
        finally:
            stop.set()
            thread.join()
        assert any("threads may hold locks" in str(warning.message) for warning in caught)

    def test_a_function_that_cannot_be_pickled_is_named(self) -> None:
        lock = threading.Lock()
        with pytest.raises(TypeError, match=r"env_fns\[2\] cannot be sent.*context='fork'"):
            SubprocVecEnv([ProcessEnv, ProcessEnv, lambda: lock])
        assert multiprocessing.active_children() == []

    def test_with_fork_nothing_is_pickled(self) -> None:
        lock = threading.Lock()

        def make() -> ProcessEnv:
            with lock:
                return ProcessEnv()

        with SubprocVecEnv([make] * 2, context="fork") as envs:
            assert envs.reset()[0].shape == (2, 1)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"context": "thread"}, "context: expected one of"),
            ({"in_series": 0}, "in_series: expected 'auto' or an int of at least 1, got 0"),
            ({"in_series": "all"}, "in_series: expected 'auto'"),
            ({"in_series": True}, "in_series: expected 'auto'"),
            ({"worker_threads": 0}, "worker_threads: expected more than 0"),
        ],
    )
    def test_wrong_options_are_refused(self, arguments: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            SubprocVecEnv([ProcessEnv], **arguments)

    def test_a_worker_that_takes_too_long_is_a_timeout(self) -> None:
        def slow() -> ProcessEnv:
            time.sleep(60)
            return ProcessEnv()

        with pytest.raises(WorkerTimeoutError, match=r"environment 1 .*'construct' within 2 s"):
            SubprocVecEnv([ProcessEnv, slow], in_series=1, start_timeout=2.0, context="forkserver")
        assert multiprocessing.active_children() == []

    def test_a_worker_that_dies_while_it_makes_its_environment_is_noticed(self) -> None:
        with pytest.raises(WorkerDiedError, match="it exited with code 9") as caught:
            SubprocVecEnv([ProcessEnv, lambda: os._exit(9)], in_series=1)
        assert caught.value.env_indices == (1,)
        assert multiprocessing.active_children() == []


class TestShares:
    @pytest.mark.parametrize(
        ("num_envs", "in_series", "cpus", "sizes"),
        [
            (5, "auto", 2, [2, 3]),
            (64, "auto", 3, [21, 21, 22]),
            (2, "auto", 8, [1, 1]),
            (5, 2, 8, [2, 2, 1]),
            (5, 1, 1, [1] * 5),
            (3, 10, 4, [3]),
        ],
    )
    def test_environments_are_split_evenly(
        self, num_envs: int, in_series: int | str, cpus: int, sizes: list[int]
    ) -> None:
        split = shares(num_envs, in_series, cpus)
        assert [hi - lo for lo, hi in split] == sizes
        assert [lo for lo, _ in split] == [0, *(hi for _, hi in split[:-1])]

    @pytest.mark.parametrize(
        ("options", "workers", "largest"),
        [
            ({"in_series": 2}, 3, 2),
            ({"in_series": 2, "caller_steps": True}, 2, 2),
            ({"in_series": 9, "caller_steps": True}, 0, 5),
        ],
    )
    def test_how_many_workers_there_are_and_what_the_largest_share_is(
        self, options: dict[str, Any], workers: int, largest: int
    ) -> None:
        with SubprocVecEnv([ProcessEnv] * 5, context="forkserver", **options) as envs:
            assert len(envs.pids) == workers
        assert (envs.n_remotes, envs.in_series) == (workers, largest)

    def test_caller_steps_keeps_the_last_share(self) -> None:
        with SubprocVecEnv([ProcessEnv] * 5, in_series=2, caller_steps=True) as envs:
            mine = [pid == os.getpid() for pid in envs.call("pid")]
        assert mine == [False, False, False, False, True]

    def test_caller_steps_with_one_share_needs_no_worker(self) -> None:
        with SubprocVecEnv([ProcessEnv] * 2, in_series=2, caller_steps=True) as envs:
            assert envs.call("pid") == (os.getpid(),) * 2
            assert multiprocessing.active_children() == []
            envs.reset()
            assert envs.step([0, 0])[0].tolist() == [[1.0], [1.0]]


class TestEnding:
    @pytest.mark.parametrize("context", METHODS)
    def test_a_killed_worker_is_reported_with_all_that_is_known(self, context: str) -> None:
        envs = SubprocVecEnv([lambda: ProcessEnv(60)] * 4, context=context, in_series=2)
        envs.reset()
        pids = envs.call("pid")
        envs.step_async([0, 0, ProcessEnv.WAIT, 0])
        threading.Timer(0.05, os.kill, (pids[2], signal.SIGKILL)).start()
        with pytest.raises(WorkerDiedError, match=r"SIGKILL.*memory") as caught:
            envs.step_wait()
        error = caught.value
        assert error.env_indices == (2, 3)
        assert (error.pid, error.exitcode, error.command) == (pids[2], -signal.SIGKILL, "step")
        assert envs.closed
        assert multiprocessing.active_children() == []

    def test_an_environment_that_exits_is_reported_with_its_exit_code(self) -> None:
        envs = SubprocVecEnv([ProcessEnv] * 2)
        envs.reset()
        with pytest.raises(WorkerDiedError, match="it exited with code 7"):
            envs.step([0, ProcessEnv.EXIT])
        assert multiprocessing.active_children() == []

    def test_a_worker_that_died_between_two_commands_is_noticed_in_the_second(self) -> None:
        envs = SubprocVecEnv([ProcessEnv] * 2, in_series=1)
        envs.reset()
        envs.step([0, 0])
        os.kill(envs.call("pid")[0], signal.SIGTERM)
        with pytest.raises(WorkerDiedError, match="SIGTERM"):
            envs.get_attr("steps")

    def test_close_does_not_wait_for_an_environment_that_hangs(self) -> None:
        envs = SubprocVecEnv([lambda: ProcessEnv(60)], context="forkserver")
        envs.reset()
        envs.step_async([ProcessEnv.WAIT])
        start = time.monotonic()
        envs.close()
        assert time.monotonic() - start < 20
        assert multiprocessing.active_children() == []

    def test_close_during_a_short_step_lets_the_worker_end_by_itself(self) -> None:
        envs = SubprocVecEnv([lambda: ProcessEnv(0.1)] * 2)
        envs.reset()
        (process, _) = [worker.process for worker in envs._workers.processes]
        codes = []
        process.close = lambda: codes.append(process.exitcode)  # asked once it has ended
        envs.step_async([ProcessEnv.WAIT] * 2)
        envs.close()
        assert codes == [0]

    def test_what_is_forgotten_is_closed(self) -> None:
        envs = SubprocVecEnv([ProcessEnv])
        (pid,) = envs.call("pid")
        del envs
        gc.collect()
        assert wait_until(lambda: not is_running(pid))

    @pytest.mark.parametrize(
        "options",
        [{}, {"caller_steps": True}, {"on_worker_failure": "restart"}, {"copy": False}],
        ids=str,
    )
    def test_what_is_closed_and_dropped_leaves_nothing_to_the_collector(
        self, options: dict[str, Any]
    ) -> None:
        def mapped() -> int:
            return Path("/proc/self/maps").read_text().count("memfd:xuance_envs")

        gc.collect()
        gc.disable()
        try:
            before = mapped()
            with SubprocVecEnv([ProcessEnv] * 2, context="forkserver", **options) as envs:
                envs.reset()
                envs.step([0] * 2)
                envs.send([0] * 2, range(2))
                envs.recv(min_envs=2)
                assert mapped() > before
            del envs
            assert mapped() == before
        finally:
            gc.enable()

    def test_a_program_that_closes_nothing_ends_with_its_workers(self, tmp_path: Path) -> None:
        result = run_script(
            tmp_path,
            """
            import os, gymnasium
            from xuance_envs import SubprocVecEnv
            envs = SubprocVecEnv([lambda: gymnasium.make("CartPole-v1")] * 4, in_series=1)
            envs.reset()
            envs.step_async([0] * 4)
            print(*envs.pids)
            """,
        )
        assert result.stderr == ""
        assert not any(is_running(int(pid)) for pid in result.stdout.split())

    @pytest.mark.parametrize("doing", ["idle", "inside a step"])
    def test_workers_do_not_outlive_a_caller_that_is_killed(
        self, tmp_path: Path, doing: str
    ) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            textwrap.dedent(
                f"""
                import sys, time
                sys.path.insert(0, {os.path.dirname(__file__)!r})
                from test_processes import ProcessEnv
                from xuance_envs import SubprocVecEnv
                envs = SubprocVecEnv([lambda: ProcessEnv(60)] * 2, in_series=1)
                envs.reset()
                if {doing != "idle"}:
                    envs.step_async([ProcessEnv.WAIT] * 2)
                print(*envs.pids, flush=True)
                time.sleep(60)
                """
            )
        )
        caller = subprocess.Popen(
            [sys.executable, str(script)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        with caller:
            assert caller.stdout is not None
            pids = [int(pid) for pid in caller.stdout.readline().split()]
            assert len(pids) == 2
            caller.kill()
        assert wait_until(lambda: not any(map(is_running, pids)))


class TestForks:
    @pytest.mark.parametrize("context", ["fork", "spawn"])
    def test_an_environment_in_a_forked_worker_may_have_workers_of_its_own(
        self, context: str
    ) -> None:
        class Nesting(ProcessEnv):
            def __init__(self) -> None:
                super().__init__()
                with warnings.catch_warnings():  # the worker has a thread that watches its caller
                    warnings.simplefilter("ignore")
                    self.inner = SubprocVecEnv([ProcessEnv] * 2, context=context, start_timeout=20)

            def inner_steps(self) -> list[float]:
                self.inner.reset()
                return list(self.inner.step([0, 0])[0][:, 0])

            def close(self) -> None:
                self.inner.close()

        with SubprocVecEnv([Nesting], context="fork", start_timeout=30) as envs:
            assert envs.call("inner_steps") == ([1.0, 1.0],)

    def test_a_forked_worker_knows_the_main_module_as_it_is(self) -> None:
        with SubprocVecEnv([ProcessEnv], context="fork") as envs:
            assert envs.call("main_file") == (getattr(sys.modules["__main__"], "__file__", None),)

    def test_threads_may_make_and_close_them_at_the_same_time(self) -> None:
        failures: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(5):
                    with SubprocVecEnv([ProcessEnv] * 2, in_series=1, context="fork") as envs:
                        envs.reset()
            except BaseException as error:
                failures.append(error)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert failures == []

    def test_a_process_the_caller_forks_ends_without_ending_the_workers(
        self, tmp_path: Path
    ) -> None:
        run_script(
            tmp_path,
            """
            import os, sys, warnings, gymnasium
            from xuance_envs import SubprocVecEnv
            envs = SubprocVecEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
            envs.reset()
            child = os.fork()
            if child == 0:
                envs.close()
                sys.exit(0)
            os.waitpid(child, 0)
            envs.step([0, 0])
            envs.close()
            """,
        )

    def test_a_daemonic_process_is_told_to_use_another_backend(self) -> None:
        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()
        process = context.Process(target=_make_in_a_daemon, args=(results,), daemon=True)
        process.start()
        assert "use DummyVecEnv" in results.get()
        process.join()


def _make_in_a_daemon(results: Any) -> None:
    try:
        SubprocVecEnv([ProcessEnv])
    except RuntimeError as error:
        results.put(str(error))


class TestOldOrNarrowSystems:
    def test_without_pidfds_and_memfds_all_works(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(*_: Any) -> int:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", refused)
        monkeypatch.setattr(os, "memfd_create", refused)
        with SubprocVecEnv([ProcessEnv] * 2, in_series=1) as envs:
            envs.reset()
            pids = envs.call("pid")
            assert envs.step([0, 0])[0].tolist() == [[1.0], [1.0]]
            os.kill(pids[0], signal.SIGKILL)
            with pytest.raises(WorkerDiedError, match="SIGKILL"):
                envs.step([0, 0])

    def test_the_start_is_bounded_though_a_worker_does_not_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start = WorkerProcess._start

        def stopped(self: WorkerProcess, context: Any) -> None:
            start(self, context)
            os.kill(self.process.pid, signal.SIGSTOP)

        monkeypatch.setattr(WorkerProcess, "_start", stopped)
        ballast = os.urandom(1_000_000)
        with pytest.raises(WorkerTimeoutError, match=r"'construct' within 0\.5 s"):
            SubprocVecEnv([lambda: (ballast, ProcessEnv())[1]], start_timeout=0.5)
        assert multiprocessing.active_children() == []


class TestInterrupts:
    @pytest.mark.parametrize("kind", [DummyVecEnv, SubprocVecEnv])
    def test_an_interrupted_reset_loses_no_keys_of_infos(self, kind: Any) -> None:
        class Telling(ProcessEnv):
            def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
                time.sleep(0.3 if options else 0.0)
                return np.zeros(1), {"told": 1}

        with kind([Telling] * 2) as envs:
            interrupt_soon()
            with pytest.raises(KeyboardInterrupt):
                envs.reset(options={"slowly": True})
            assert list(envs.reset()[1]) == [{"told": 1}] * 2

    def test_an_interrupted_close_still_ends_the_workers(self) -> None:
        class SlowToClose(ProcessEnv):
            def close(self) -> None:
                time.sleep(60)

        envs = SubprocVecEnv([SlowToClose] * 2, in_series=1)
        pids = envs.call("pid")
        interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            envs.close()
        assert not any(map(is_running, pids))
        assert multiprocessing.active_children() == []

    def test_without_processes_an_interrupt_after_a_step_does_not_repeat_it(self) -> None:
        class Interrupting(ProcessEnv):
            def step(self, action: int) -> Any:
                observation, _, *rest = super().step(action)
                return observation, Reward(), *rest

        class Reward:
            told = False

            def __float__(self) -> float:
                if not self.told:
                    self.told = True
                    raise KeyboardInterrupt
                return 2.0

        with DummyVecEnv([Interrupting, ProcessEnv]) as envs:
            envs.reset()
            with pytest.raises(KeyboardInterrupt):
                envs.step([0, 0])
            observations, rewards, *_ = envs.step_wait()
            assert observations.tolist() == [[1.0], [1.0]]
            assert rewards.tolist() == [2.0, 0.0]
            assert envs.get_attr("steps") == (1, 1)

    @pytest.mark.parametrize("options", [{}, {"in_series": 1}, {"caller_steps": True}], ids=str)
    def test_an_interrupted_step_stays_pending(self, options: dict[str, Any]) -> None:
        with SubprocVecEnv([lambda: ProcessEnv(0.3)] * 4, **options) as envs:
            envs.reset()
            interrupt_soon()
            with pytest.raises(KeyboardInterrupt):
                envs.step([ProcessEnv.WAIT, 0, ProcessEnv.WAIT, 0])
            assert envs.waiting
            assert envs.step_wait()[0].tolist() == [[1.0]] * 4
            assert envs.step([0] * 4)[0].tolist() == [[2.0]] * 4

    def test_a_reset_goes_on_from_an_interrupted_step(self) -> None:
        with SubprocVecEnv([lambda: ProcessEnv(0.2)] * 2) as envs:
            envs.reset()
            interrupt_soon()
            with pytest.raises(KeyboardInterrupt):
                envs.step([ProcessEnv.WAIT] * 2)
            assert envs.reset()[0].tolist() == [[0.0]] * 2

    def test_no_interrupt_at_any_moment_loses_or_repeats_a_step(self) -> None:
        """Hundreds of interrupts at random moments of a step; each environment counts its steps."""
        rng = np.random.default_rng(0)
        with SubprocVecEnv([ProcessEnv] * 4, in_series=2, context="forkserver") as envs:
            envs.reset()
            steps = interrupts = 0
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            try:
                while interrupts < 300:
                    try:
                        signal.setitimer(signal.ITIMER_REAL, rng.uniform(20e-6, 400e-6))
                        while True:
                            envs.step_async([0] * 4)
                            envs.step_wait()
                            steps += 1
                    except KeyboardInterrupt:
                        interrupts += 1
                    if envs.waiting:
                        envs.step_wait()
                    steps = int(envs.buf_obs[0, 0])
                    assert envs.buf_obs.tolist() == [[steps]] * 4
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
            assert envs.get_attr("steps") == (steps,) * 4


def test_errors_of_all_groups_are_waited_for_and_the_first_is_raised() -> None:
    class Failing(ProcessEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            raise RuntimeError("no")

    envs = SubprocVecEnv([ProcessEnv, Failing, Failing], in_series=1, context="forkserver")
    with pytest.raises(EnvError) as caught:
        envs.reset()
    assert caught.value.env_index == 1
    assert envs.closed
