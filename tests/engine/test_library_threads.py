"""Threads of numeric libraries in the caller, and workers that are forked beside them."""

from __future__ import annotations

import pytest
from scripts import run_script

CV2 = """
    import os, time, warnings
    import cv2, numpy as np
    from faulty_envs import FaultyEnv
    from xuance_envs import SubprocVecEnv
    from xuance_envs.compat.gymnasium import AsyncVectorEnv

    image = np.zeros((1000, 1000, 3), np.uint8)

    def scale():
        return cv2.resize(image, (500, 500), interpolation=cv2.INTER_AREA).shape

    class Scaling(FaultyEnv):
        def method(self):
            return cv2.getNumThreads(), scale(), os.getppid()

    def make(context="fork", **options):
        warnings.simplefilter("ignore")
        options.update(context=context, start_timeout=20, step_timeout=20)
        envs = SubprocVecEnv([Scaling], **options)
        envs.reset()
        return envs

    def start_threads():
        scale()
        time.sleep(0.3)  # until they wait

    cv2.setNumThreads(4)
    start_threads()
"""


@pytest.fixture(autouse=True)
def needs_opencv():
    pytest.importorskip("cv2")


@pytest.mark.parametrize(("threads", "then"), [(1, 1), (3, 3), (None, 4)])
def test_a_worker_is_forked_beside_the_threads_of_opencv_and_can_use_it(threads, then, tmp_path):
    script = f"""
    with make(worker_threads={threads}) as envs:
        assert envs.call("method")[0] == ({then}, (500, 500, 3), os.getpid()), envs.call("method")
    assert cv2.getNumThreads() == 4
    assert scale() == (500, 500, 3)
    """
    run_script(tmp_path, CV2 + script)


def test_so_is_one_that_takes_the_place_of_another(tmp_path):
    script = """
    import logging, signal
    logging.disable()
    with make(on_worker_failure="restart") as envs:
        start_threads()
        os.kill(envs.pids[0], signal.SIGKILL)
        assert envs.step([0])[3].all()
        assert envs.call("method")[0][0] == 1
    """
    run_script(tmp_path, CV2 + script)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_process_that_was_forked_beside_them_may_have_workers(context, tmp_path):
    """It has lost the threads, so that to ask OpenCV to end them would be to wait for ever."""
    script = f"""
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: of a fork beside threads
    if (child := os.fork()) == 0:
        with make({context!r}):
            os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    """
    run_script(tmp_path, CV2 + script)


def test_they_are_warned_about_and_the_default_does_without_a_fork(tmp_path):
    script = """
    import multiprocessing
    multiprocessing.set_start_method("fork")  # as Python before 3.14 has it
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        SubprocVecEnv([Scaling], context="fork", start_timeout=20).close()
    assert "native libraries (such as PyTorch or OpenMP) run 3 threads" in str(caught[0].message)
    start_threads()
    envs = AsyncVectorEnv([Scaling], start_timeout=20)
    assert envs.call("method")[0] == (1, (500, 500, 3), os.getpid())
    assert type(envs.processes[0]).__name__ == "SpawnProcess"
    envs.close()
    """
    run_script(tmp_path, CV2 + script)


def test_threads_that_their_library_ends_before_a_fork_are_none(tmp_path):
    """Those of OpenBLAS, which every program with NumPy has."""
    script = """
    import multiprocessing, numpy as np
    multiprocessing.set_start_method("fork")
    from faulty_envs import FaultyEnv
    from xuance_envs.compat.gymnasium import AsyncVectorEnv
    from xuance_envs.engine.system.library_threads import count_native_threads
    matrix = np.ones((600, 600))
    matrix @ matrix
    assert count_native_threads() == 0
    envs = AsyncVectorEnv([FaultyEnv])
    assert type(envs.processes[0]).__name__ == "ForkProcess"
    envs.close()
    """
    run_script(tmp_path, script)


def test_a_forked_worker_has_as_few_threads_of_torch(tmp_path):
    pytest.importorskip("torch")
    script = """
    import warnings
    import torch
    from faulty_envs import FaultyEnv
    from xuance_envs import SubprocVecEnv
    torch.set_num_threads(3)
    torch.rand(1000, 1000).exp().sum()

    class Summing(FaultyEnv):
        def method(self):
            return torch.get_num_threads(), float(torch.ones(1000, 1000).exp_().sum()) > 0

    warnings.simplefilter("ignore")
    with SubprocVecEnv([Summing], context="fork", start_timeout=20, step_timeout=20) as envs:
        assert envs.call("method") == ((1, True),)
    assert torch.get_num_threads() == 3
    """
    run_script(tmp_path, script)
