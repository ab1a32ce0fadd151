"""What only Ray's actors do: how they start, what they take, how they are lost and end."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster_envs import DIE, FAIL, GO_ON, SLEEP, PlacedEnv
from comparing import assert_same
from coroutine_envs import WaitingEnv
from leftovers import is_running, wait_until
from ray_actors import (
    CPUS,
    assert_no_interrupt_loses_or_repeats_a_step,
    counted_messages,
    free,
)

from xuance_envs import (
    ClosedVecEnvError,
    DummyVecEnv,
    EnvError,
    Gym_Env,
    RayVecEnv_Gym,
    WorkerDiedError,
    WorkerTimeoutError,
    make_vec,
)
from xuance_envs.engine.ray import driver, ray_backend
from xuance_envs.engine.ray.cluster import ActorOptions, RayCluster

few = partial(RayVecEnv_Gym, num_cpus_per_worker=0.01, actors="core")


def sizes(envs: Any) -> list[int]:
    return [len(worker.env_ids) for worker in envs.statistics()]


pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def short_close_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments that hang are soon given up when others end."""
    end = ray_backend.end_actors
    monkeypatch.setattr(
        ray_backend, "end_actors", lambda *given: end(*given[:2], close_timeout=0.3)
    )


@pytest.mark.long
def test_coroutines_of_an_actor_are_awaited_together() -> None:
    fns = [partial(WaitingEnv, 0.05, 3)] * 40
    with few(fns, 40) as envs, DummyVecEnv([partial(WaitingEnv, 0.0, 3)] * 40) as expected:
        start = time.perf_counter()
        got, right = envs.reset(seed=1), expected.reset(seed=1)
        for k in range(4):
            assert_same(got[0], right[0])
            got, right = envs.step([k % 2] * 40), expected.step([k % 2] * 40)
        assert_same(list(got[4]), list(right[4]))
        assert time.perf_counter() - start < 2 * 40 * 0.05  # in turn: four times as long


class TestTheCluster:
    @pytest.mark.long
    def test_auto_makes_as_many_actors_as_there_is_room_for(self) -> None:
        auto = partial(RayVecEnv_Gym, [PlacedEnv] * 6, num_cpus_per_worker=CPUS / 4)
        with auto() as envs:
            assert sizes(envs) == [1, 2, 1, 2]
            assert len(set(envs.call("pid"))) == 4
        half = RayVecEnv_Gym([PlacedEnv] * 2, 2, num_cpus_per_worker=CPUS / 2)
        with half, auto() as envs:
            assert sizes(envs) == [3, 3]

    def test_make_vec_makes_one(self) -> None:
        options = {"num_cpus_per_worker": 0.01, "in_series": 2}
        with make_vec("CartPole-v1", 3, backend="ray", seed=0, vector_kwargs=options) as envs:
            assert isinstance(envs, RayVecEnv_Gym)
            assert sizes(envs) == [2, 1]
            obs, _ = envs.reset()
        assert obs[2].tobytes() == Gym_Env("CartPole-v1").reset(seed=2)[0].tobytes()

    def test_what_an_actor_takes_is_passed_on(self) -> None:
        with few(
            [PlacedEnv] * 2,
            2,
            resources={"special": 2},
            runtime_env={"env_vars": {"XUANCE_ENVS_MARK": "here"}},
        ) as envs:
            assert envs.call("variable", "XUANCE_ENVS_MARK") == ("here", "here")
            assert wait_until(lambda: free("special") == 1)

    def test_options_are_rays_and_ray_repeats_nothing(self) -> None:
        options = ActorOptions(0.5, {"GPU": 0.25, "memory": 1e9, "special": 1}, None, "DEFAULT")
        assert options.for_ray() == {
            "num_cpus": 0.5,
            "num_gpus": 0.25,
            "memory": 1e9,
            "resources": {"special": 1},
            "scheduling_strategy": "DEFAULT",
            "max_restarts": 0,
            "max_task_retries": 0,
            "enable_task_events": False,
        }

    @pytest.mark.slow("waits for a time limit")
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"num_cpus_per_worker": 12}, r"2 × 12 CPU \(the cluster has 16, 4 free\)"),
            ({"resources": {"moon": 1}}, r"2 × 1 moon \(the cluster has 0, 0 free\)"),
        ],
    )
    def test_too_little_room_is_told_with_what_is_needed_and_what_there_is(
        self, options: Any, message: str
    ) -> None:
        started = time.monotonic()
        with pytest.raises(WorkerTimeoutError, match=message) as caught:
            few([PlacedEnv] * 2, 1, **{"start_timeout": 2.0, **options})
        assert time.monotonic() - started < 30
        assert caught.value.command == "construct"
        assert caught.value.pid is None

    def test_a_wrong_argument_is_told_at_once(self) -> None:
        for options, message in (
            ({"num_cpus_per_worker": -1}, "num_cpus_per_worker: expected at least 0, got -1"),
            ({"in_series": 0}, "in_series: expected 'auto' or an int of at least 1, got 0"),
            ({"step_timeout": 0}, "step_timeout: expected a positive number or None, got 0"),
            ({"on_worker_failure": "ignore"}, "expected 'raise' or 'restart', got 'ignore'"),
            ({"restart_on_exception": True}, "expected 'restart' with restart_on_exception=True"),
        ):
            with pytest.raises(ValueError, match=message):
                RayVecEnv_Gym([PlacedEnv], **options)

    def test_without_ray_it_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(ImportError, match=r'pip install "xuance_envs\[ray\]"'):
            RayVecEnv_Gym([PlacedEnv])

    def test_code_that_is_not_there_is_told_with_the_remedy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "only_here.py").write_text(
            "from cluster_envs import PlacedEnv\nclass OwnEnv(PlacedEnv): pass\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        module = importlib.import_module("only_here")
        with pytest.raises(EnvError, match=r"only_here.*node.*runtime_env=") as caught:
            few([module.OwnEnv])
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.usefixtures("actors_of_the_class")
class TestSteps:
    def test_a_step_is_one_request_and_one_reply_per_actor(self) -> None:
        with few([PlacedEnv] * 8, 4) as envs:
            envs.reset(seed=0)
            envs.step([GO_ON] * 8)  # which tells the infos' keys
            with counted_messages() as counted:
                for _ in range(10):
                    envs.step([GO_ON] * 8)
        assert len(counted.requests) == len(counted.replies) == 10 * 2
        # Beside what comes once per actor, 8 bytes of action there, and back an observation of 16,
        # reward, two flags, and one column of infos.
        assert {size - 4 * 8 for size in counted.requests} == {2 + 9 + len("step")}
        assert {size - 4 * (16 + 8 + 2 + 9) for size in counted.replies} == {16 + 7 * 8}

    def test_an_actor_works_in_its_main_thread_with_one_thread_for_numeric_libraries(self) -> None:
        with few([ThreadEnv], 1) as envs:
            assert envs.call("is_main_thread") == (True,)
            assert envs.call("variable", "OMP_NUM_THREADS") == ("1",)

    def test_no_interrupt_at_any_moment_loses_or_repeats_a_step(self) -> None:
        assert_no_interrupt_loses_or_repeats_a_step(few([PlacedEnv] * 2, 1))


class ThreadEnv(PlacedEnv):
    def is_main_thread(self) -> bool:
        return threading.current_thread() is threading.main_thread()


@pytest.mark.usefixtures("actors_of_the_class")
class TestLosses:
    @pytest.mark.slow("an environment sleeps meanwhile")
    @pytest.mark.usefixtures("short_close_timeout")
    def test_a_loss_is_noticed_while_another_actor_is_waited_for(self) -> None:
        envs = few([PlacedEnv] * 2, 1)
        envs.reset()
        started = time.monotonic()
        with pytest.raises(WorkerDiedError, match="environment 1 "):
            envs.step([SLEEP, DIE])
        assert time.monotonic() - started < 40

    def test_a_lost_actor_is_replaced(self, caplog: pytest.LogCaptureFixture) -> None:
        with few([PlacedEnv] * 4, 2, env_seed=5, on_worker_failure="restart") as envs:
            envs.reset(seed=10)
            envs.set_attr("level", 3)
            for _ in range(2):
                envs.step([GO_ON] * 4)
            pids = envs.call("pid")
            obs, rewards, terminated, truncated, infos = envs.step([GO_ON, GO_ON, DIE, GO_ON])
            assert obs.tolist() == [[1, 3], [1, 3], [1, 2], [1, 2]]
            assert rewards.tolist() == [1, 1, 0, 0]
            assert not terminated.any()
            assert truncated.tolist() == [False, False, True, True]
            assert infos[0] == {"step": 3}
            assert {**infos[2], "reset_obs": 0} == {
                "step": 2,
                "worker_restarted": True,
                "reset_obs": 0,
                "reset_info": {"step": 0},
            }
            assert infos[2]["reset_obs"].tolist() == [1, 0]
            after = envs.call("pid")
            assert (after[:2], set(after[2:]) & set(pids)) == (pids[:2], set())
            assert envs.get_attr("level") == (3, 3, 3, 3)
            assert envs.get_attr("env_seed")[:2] == (5, 6)
            assert set(envs.get_attr("env_seed")[2:]) & {5, 6, 7, 8, None} == set()
            obs, rewards, *_ = envs.step([GO_ON] * 4)
            assert obs.tolist() == [[1, 4], [1, 4], [1, 1], [1, 1]]
            assert rewards.tolist() == [1] * 4
        assert "restart 1 (at most 100)" in caplog.text

    def test_it_is_replaced_between_steps_and_in_a_reset(self) -> None:
        with few([PlacedEnv] * 2, 1, on_worker_failure="restart") as envs:
            envs.reset(seed=0)
            os.kill(envs.call("pid")[1], signal.SIGKILL)
            obs, infos = envs.reset(seed=20)
            assert obs.tolist() == [[2, 0], [1, 0]]
            assert "worker_restarted" not in infos[1]
            assert not envs.step([GO_ON] * 2)[3].any()
            os.kill(envs.call("pid")[0], signal.SIGKILL)
            with pytest.raises(WorkerDiedError, match="a new worker replaces it"):
                envs.get_attr("level", env_ids=[0])
            truncated = envs.step([GO_ON] * 2)[3]
            assert truncated.tolist() == [True, False]

    @pytest.mark.slow("waits for a time limit twice")
    @pytest.mark.usefixtures("short_close_timeout")
    def test_one_that_takes_too_long_is_replaced(self) -> None:
        with few(
            [PlacedEnv] * 2, 1, step_timeout=1.0, on_worker_failure="restart", max_restarts=1
        ) as envs:
            envs.reset()
            obs, _, _, truncated, _ = envs.step([GO_ON, SLEEP])
            assert obs.tolist() == [[1, 1], [1, 0]]
            assert truncated.tolist() == [False, True]
            with pytest.raises(WorkerTimeoutError, match=r"(?s)within 1 s.*max_restarts=1") as late:
                envs.step([SLEEP, GO_ON])
            assert late.value.env_indices == (0,)
        assert envs.closed

    def test_an_exception_may_be_a_reason_too(self) -> None:
        with few([PlacedEnv], 1, on_worker_failure="restart", restart_on_exception=True) as envs:
            envs.reset()
            assert envs.step([FAIL])[3].tolist() == [True]
            assert envs.step([GO_ON])[0].tolist() == [[1, 1]]

    def test_first_ready_goes_on_with_the_successor(self) -> None:
        with few([PlacedEnv] * 3, 1, on_worker_failure="restart") as envs:
            envs.async_reset()
            assert len(envs.recv(min_envs=3).env_ids) == 3
            envs.send([GO_ON, DIE, GO_ON], [0, 1, 2])
            ends = {}
            while len(ends) < 3:
                batch = envs.recv()
                ends.update(zip(batch.env_ids.tolist(), batch.truncated.tolist(), strict=True))
            assert ends == {0: False, 1: True, 2: False}


class TestWaysToAnActor:
    def test_the_end_of_an_actor_is_noticed_by_its_connection(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(driver, "CHECK_INTERVAL", 1e6)  # or else it might be by looking
        envs = few([PlacedEnv] * 2, 1)
        envs.reset()
        with pytest.raises(WorkerDiedError, match=r"(?s)environment 0 .*Ray reports:.*actor died"):
            envs.step([DIE, GO_ON])

    def test_rays_calls_do_where_there_can_be_no_connection(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        monkeypatch.setattr(RayCluster, "direct_connection_obstacle", "as told")
        with few([PlacedEnv] * 2, 1, on_worker_failure="restart") as envs:
            assert "over Ray calls instead of direct connections: as told" in caplog.text
            envs.reset()
            assert envs.step([GO_ON] * 2)[0].tolist() == [[1, 1]] * 2
            assert envs.step([GO_ON, DIE])[3].tolist() == [False, True]
            envs.send([GO_ON] * 2, [0, 1])
            assert envs.recv(min_envs=2).obs.tolist() == [[1, 3], [1, 1]]

    @pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
    def test_environments_are_closed_though_a_forked_process_has_the_connection_too(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "0"
        with few([partial(ForkingEnv, path)]) as envs:
            envs.reset()
            child = os.fork()
            if not child:
                time.sleep(60)
                os._exit(0)
            envs.step([GO_ON])
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert path.read_text().split()[1] == "closed"


class TestTheEnd:
    def test_an_actor_that_is_killed_is_named_with_its_node(self) -> None:
        envs = few([PlacedEnv] * 4, 2)
        pids, nodes = envs.call("pid"), envs.call("node")
        envs.reset()
        with pytest.raises(WorkerDiedError) as caught:
            envs.step([GO_ON, GO_ON, GO_ON, DIE])
        error = caught.value
        assert error.env_indices == (2, 3)
        assert error.pid == pids[2]
        assert error.command == "step"
        assert nodes[2] in error.details
        assert "actor was on node " in error.details
        assert envs.closed
        with pytest.raises(ClosedVecEnvError):
            envs.step([GO_ON] * 4)
        assert wait_until(lambda: not any(map(is_running, pids)))

    @pytest.mark.usefixtures("short_close_timeout")
    def test_close_does_not_wait_for_an_environment_that_hangs(self) -> None:
        envs = few([PlacedEnv] * 2, 1)
        pids = envs.call("pid")
        envs.reset()
        envs.step_async([SLEEP, GO_ON])
        started = time.monotonic()
        envs.close()
        envs.close()
        assert time.monotonic() - started < 20
        assert wait_until(lambda: not any(map(is_running, pids)))

    def test_environments_are_closed(self, tmp_path: Path) -> None:
        import ray

        few([partial(ClosingEnv, tmp_path / f"{i}") for i in range(3)], 2).close()
        texts = [path.read_text().split()[1] for path in tmp_path.iterdir()]
        assert texts == ["closed"] * 3
        assert ray.is_initialized()  # for the connection was there before

    def test_what_is_forgotten_ends(self) -> None:
        envs = few([PlacedEnv] * 2, 1, on_worker_failure="restart")
        pids = envs.call("pid")
        del envs
        gc.collect()
        assert wait_until(lambda: not any(map(is_running, pids)))

    def test_a_constructor_that_fails_leaves_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(EnvError, match="environment 1 failed in 'construct'"):
            few([partial(ClosingEnv, tmp_path / "0"), partial(ClosingEnv, None)], 1)
        pid = int((tmp_path / "0").read_text().split()[0])
        assert wait_until(lambda: not is_running(pid))


class TestWhatHasAnswered:
    def test_all_of_it_is_received_together(self) -> None:
        with few([PlacedEnv] * 3, 1) as envs:
            envs.async_reset()

            def received() -> int:
                time.sleep(0.05)  # in which those that have just been sent answer
                batch = envs.recv()
                envs.send([GO_ON] * len(batch.env_ids), batch.env_ids)
                return len(batch.env_ids)

            assert wait_until(lambda: received() == 3)


class ForkingEnv(PlacedEnv):
    """Writes down that it is closed, and has forked a process that outlives it for a while."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def step(self, action: Any) -> Any:
        if not os.fork():
            time.sleep(20)
            os._exit(0)
        return super().step(action)

    def close(self) -> None:
        self.path.write_text(f"{os.getpid()} closed")


class ClosingEnv(PlacedEnv):
    """Writes down its process's id where it is told, and once more when it is closed."""

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        assert path is not None
        self.path = path
        path.write_text(f"{os.getpid()} ")

    def close(self) -> None:
        self.path.write_text(f"{os.getpid()} closed")
