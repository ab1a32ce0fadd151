"""Worker processes beside forks, of the caller's and of their own, and beside threads."""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from process_env import ProcessEnv
from scripts import run_script

from xuance_envs import SubprocVecEnv


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_an_environment_in_a_forked_worker_may_have_workers_of_its_own(context: str) -> None:
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


def test_a_forked_worker_knows_the_main_module_as_it_is() -> None:
    with SubprocVecEnv([ProcessEnv], context="fork") as envs:
        assert envs.call("main_file") == (getattr(sys.modules["__main__"], "__file__", None),)


def test_threads_may_make_and_close_them_at_the_same_time(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        """
        import threading, warnings
        from process_env import ProcessEnv
        from xuance_envs import SubprocVecEnv

        def work():
            for _ in range(5):
                with SubprocVecEnv([ProcessEnv] * 2, in_series=1, context="fork") as envs:
                    envs.reset()

        warnings.simplefilter("ignore")
        for thread in [threading.Thread(target=work) for _ in range(4)]:
            thread.start()
        """,
    )


def test_a_process_the_caller_forks_ends_without_ending_the_workers(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        """
        import os, sys, gymnasium
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


def test_a_daemonic_process_is_told_to_use_another_backend() -> None:
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
