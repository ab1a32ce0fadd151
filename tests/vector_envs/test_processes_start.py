"""Worker processes: how they start, and what they load."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from process_env import ProcessEnv
from scripts import run_script

from xuance_envs import SubprocVecEnv, WorkerDiedError, WorkerTimeoutError
from xuance_envs.engine.process import process_backend, worker_process
from xuance_envs.engine.process.driver import ProcessDriver
from xuance_envs.engine.process.worker_process import WorkerProcess

METHODS = multiprocessing.get_all_start_methods()


@pytest.mark.parametrize("context", METHODS)
def test_each_start_method_works_with_lambdas_and_local_state(context: str) -> None:
    seconds = 0.25
    with SubprocVecEnv([lambda: ProcessEnv(seconds)] * 3, context=context, in_series=1) as envs:
        assert envs.get_attr("seconds") == (0.25,) * 3
        pids = envs.call("pid")
        assert len({os.getpid(), *pids}) == 4


def test_a_script_without_a_main_guard_keeps_its_imports_to_itself(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    printed = run_script(
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
    assert printed == "main runs\n" + "([], [], [], [])\n2\n" * 2


def test_the_main_module_is_as_it_was_afterwards() -> None:
    main = sys.modules["__main__"]
    before = (main.__spec__, getattr(main, "__file__", None))
    with SubprocVecEnv([ProcessEnv]) as envs:
        assert envs.call("main_file") == (None,)
    assert (main.__spec__, getattr(main, "__file__", None)) == before


def test_a_worker_loads_nothing_heavier_than_numpy_and_gymnasium() -> None:
    with SubprocVecEnv([ProcessEnv]) as envs:
        modules = set(envs.call("modules")[0])
    assert not modules & {"torch", "cv2", "gym", "ray", "ale_py", "matplotlib", "tqdm"}


def test_workers_do_not_see_mpi_and_have_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK"):
        monkeypatch.setenv(name, "3")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    with SubprocVecEnv([ProcessEnv]) as envs:
        (variables,) = envs.call("variables")
    assert not [name for name in variables if name.startswith(("OMPI_", "PMI"))]
    assert variables["OMP_NUM_THREADS"] == variables["OPENBLAS_NUM_THREADS"] == "1"
    assert os.environ["OMP_NUM_THREADS"] == "8"


def test_the_number_of_threads_in_workers_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    with SubprocVecEnv([ProcessEnv], context="spawn", worker_threads=3) as envs:
        assert envs.call("variables")[0]["OMP_NUM_THREADS"] == "3"
    with SubprocVecEnv([ProcessEnv], context="spawn", worker_threads=None) as envs:
        assert envs.call("variables")[0]["OMP_NUM_THREADS"] == "8"


@pytest.mark.parametrize("context", METHODS)
def test_global_generators_differ_between_workers_and_the_callers_is_not_touched(
    context: str,
) -> None:
    np.random.seed(5)
    before = np.random.get_state()[1].copy()
    with SubprocVecEnv([ProcessEnv] * 3, context=context, in_series=1) as envs:
        draws = set(envs.call("draw"))
    assert (np.random.get_state()[1] == before).all()
    assert len(draws | {np.random.random()}) == 4


@pytest.mark.skipif("fork" not in METHODS, reason="needs fork")
def test_torch_draws_different_numbers_in_forked_workers() -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_rng_state()
    with SubprocVecEnv([ProcessEnv] * 3, context="fork", in_series=1) as envs:
        draws = set(envs.call("draw_from_torch"))
    assert torch.equal(torch.get_rng_state(), before)
    assert len(draws | {torch.rand(1).item()}) == 4


def test_an_environment_may_start_processes_of_its_own() -> None:
    with SubprocVecEnv([ProcessEnv], context="forkserver") as envs:
        assert envs.call("start_a_child") == (0,)


def test_fork_is_warned_about_where_threads_run() -> None:
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


def test_a_function_that_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"env_fns\[2\] cannot be sent.*context='fork'"):
        SubprocVecEnv([ProcessEnv, ProcessEnv, lambda: lock])
    assert multiprocessing.active_children() == []


def test_with_fork_nothing_is_pickled() -> None:
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
        ({"worker_threads": 0}, "worker_threads: expected None or an int of at least 1, got 0"),
        ({"worker_threads": 1.5}, r"worker_threads: expected None or an int .* got 1\.5"),
    ],
)
def test_wrong_options_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SubprocVecEnv([ProcessEnv], **arguments)


def test_a_worker_that_takes_too_long_is_a_timeout() -> None:
    def slow() -> ProcessEnv:
        time.sleep(60)
        return ProcessEnv()

    with pytest.raises(WorkerTimeoutError, match=r"environment 1 .*'construct' within 2 s"):
        SubprocVecEnv([ProcessEnv, slow], in_series=1, start_timeout=2.0, context="forkserver")
    assert multiprocessing.active_children() == []


def test_a_worker_that_dies_while_it_makes_its_environment_is_noticed() -> None:
    with pytest.raises(WorkerDiedError, match="it exited with code 9") as caught:
        SubprocVecEnv([ProcessEnv, lambda: os._exit(9)], in_series=1, context="forkserver")
    assert caught.value.env_indices == (1,)
    assert multiprocessing.active_children() == []


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_without_pidfds_and_memfds_all_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refused)
    monkeypatch.setattr(os, "memfd_create", refused)
    with SubprocVecEnv([ProcessEnv] * 2, in_series=1, context="forkserver") as envs:
        envs.reset()
        pids = envs.call("pid")
        assert envs.step([0, 0])[0].tolist() == [[1.0], [1.0]]
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            envs.step([0, 0])


@pytest.mark.slow("waits for the time limit of a start")
def test_the_start_is_bounded_though_a_worker_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = WorkerProcess.__init__

    def stopped(self: WorkerProcess, *given: Any) -> None:
        start(self, *given)
        os.kill(self.pid, signal.SIGSTOP)

    monkeypatch.setattr(WorkerProcess, "__init__", stopped)
    ballast = os.urandom(1_000_000)
    with pytest.raises(WorkerTimeoutError, match=r"'construct' within 0\.5 s"):
        SubprocVecEnv([lambda: (ballast, ProcessEnv())[1]], start_timeout=0.5)
    assert multiprocessing.active_children() == []


def test_fork_passes_over_classes_that_have_no_module():
    exec("nameless = type('Nameless', (), {})", names := {})
    with pytest.raises(AttributeError):
        _ = names["nameless"].__module__
    with SubprocVecEnv([ProcessEnv], context="fork") as envs:
        assert envs.reset()[0].shape[0] == 1


@pytest.mark.skipif(sys.platform == "win32", reason="a signal reaches the main thread only")
def test_an_interrupt_at_a_start_loses_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread receives the signal, so blocking it in the main thread does not suffice."""
    pids: list[int] = []
    done = threading.Event()

    def interrupted(worker: WorkerProcess, *given: Any) -> ProcessDriver:
        pids.append(worker.pid)
        if len(pids) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        return ProcessDriver(worker, *given)

    monkeypatch.setattr(process_backend, "ProcessDriver", interrupted)
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            SubprocVecEnv([ProcessEnv] * 3, num_workers=3, context="forkserver")
    finally:
        done.set()
        other.join()
    assert len(pids) == 2
    assert multiprocessing.active_children() == []
    assert not worker_process._tracked_fds
