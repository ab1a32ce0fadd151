"""RemoteVecEnv; the contract suite tests the behavior that all backends share."""

from __future__ import annotations

import gc
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from comparing import assert_same
from interrupts import Instant
from remote_envs import CountingEnv, cart_pole
from serving import ServedProcess, ServerMaker, wait_until

import xuance_envs
from xuance_envs import errors
from xuance_envs.engine.data import space_rows
from xuance_envs.remote.client.api_client import ApiClient
from xuance_envs.remote.client.transport import HttpTransport, Response
from xuance_envs.remote.remote_vec_env import RemoteVecEnv
from xuance_envs.remote.server import Server, limits
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv


@pytest.fixture
def envs(server: Server) -> Iterator[RemoteVecEnv]:
    with RemoteVecEnv(server.url, "CartPole", 4, seed=11) as envs:
        yield envs


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the paths of the requests that clients send."""
    paths: list[str] = []
    original = ApiClient._send_with_retries

    def counted(self: ApiClient, method: str, path: str, *args: Any) -> Any:
        paths.append(path)
        return original(self, method, path, *args)

    monkeypatch.setattr(ApiClient, "_send_with_retries", counted)
    return paths


def test_it_does_as_the_environments_do_here(envs: RemoteVecEnv) -> None:
    here = DummyVecEnv([cart_pole] * 4, env_seed=11)
    assert envs.observation_space == here.observation_space
    assert envs.action_space == here.action_space
    assert envs.max_episode_steps == here.max_episode_steps == 500
    assert_same(envs.metadata, here.metadata)
    assert_same(envs.reset()[0], here.reset()[0])
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(80):
        actions = rng.integers(2, size=4)
        got, expected = envs.step(actions), here.step(actions)
        assert_same(got[:4], expected[:4])
        assert_same(list(got[4]), list(expected[4]))
        ended += int(got[2].sum())
    assert ended > 3
    here.close()


def test_one_request_per_step_however_many_episodes_end(
    envs: RemoteVecEnv, sent: list[str]
) -> None:
    envs.reset()
    sent.clear()
    for _ in range(50):
        envs.step(np.ones(4, np.int64))
    assert sent == ["/api/v1/episode/vectorized_step"] * 50


def test_a_step_is_under_way_between_its_halves(server: Server, envs: RemoteVecEnv) -> None:
    envs.reset()

    def steps() -> int:
        return int(httpx.get(f"{server.url}/status.json").json()["steps"])

    before = steps()
    envs.step_async(np.zeros(4, np.int64))
    wait_until(lambda: steps() == before + 4)
    assert envs.step_wait()[1].tolist() == [1, 1, 1, 1]


def test_keyword_arguments_and_names_that_the_operator_allows(server: Server) -> None:
    with RemoteVecEnv(server.url, "Counting", 2, seed=3, env_kwargs={"length": 2}) as envs:
        envs.reset()
        assert not envs.step([0, 0])[3].any()
        assert envs.step([0, 0])[3].all()
        assert envs.call("describe", "No.", mark="!") == ("No. 3!", "No. 4!")
        envs.set_attr("length", [5, 6])
        assert envs.get_attr("length", [1]) == (6,)
        assert_same(envs.render()[1], np.zeros((4, 6, 3), np.uint8))
        with pytest.raises(errors.RemoteForbiddenError, match="--allow-call"):
            envs.call("close")
        with pytest.raises(errors.RemoteForbiddenError, match="--allow-get"):
            envs.get_attr("episode")
        with pytest.raises(TypeError, match="expected strings as names, got 5"):
            envs.reset(options={5: 1})
        assert envs.get_attr("length") == (5, 6), "it is still usable"
    with pytest.raises(errors.RemoteForbiddenError, match="--allow-kwarg"):
        RemoteVecEnv(server.url, "Counting", 1, env_kwargs={"number": 2})
    with pytest.raises(TypeError, match="argument of 'construct' cannot be sent"):
        RemoteVecEnv(server.url, "Counting", 1, env_kwargs={"length": object()})


def test_the_only_environment_needs_no_name(serve: ServerMaker) -> None:
    server = serve({"Counting": CountingEnv})
    with RemoteVecEnv(server.url, None, 2) as envs:
        assert envs.num_envs == 2


@pytest.mark.parametrize("bad", [0, True, 1.0])
def test_numbers_below_one_are_refused(server: Server, bad: Any) -> None:
    with pytest.raises(ValueError, match="num_envs: expected an int of at least 1"):
        RemoteVecEnv(server.url, "CartPole", bad)


@pytest.mark.parametrize("timeout", [0, -1, math.nan, "5", None])
def test_timeouts_that_are_not_positive_are_refused(server: Server, timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout: expected seconds above 0, or infinity, got"):
        RemoteVecEnv(server.url, "CartPole", 1, timeout=timeout)


@pytest.mark.parametrize("timeout", [math.inf, 1e300, np.float32(60)], ids=repr)
def test_timeouts_of_any_size_are_accepted(server: Server, timeout: Any) -> None:
    with RemoteVecEnv(server.url, "CartPole", 1, timeout=timeout) as envs:
        envs.reset()


def test_closing_and_forgetting_free_the_session(serve: ServerMaker) -> None:
    server = serve()

    def sessions() -> int:
        return int(httpx.get(f"{server.url}/status.json").json()["sessions"])

    envs = RemoteVecEnv(server.url, "CartPole", 1)
    envs.reset()
    assert sessions() == 1
    envs.close()
    assert sessions() == 0
    envs = RemoteVecEnv(server.url, "CartPole", 1)

    del envs
    gc.collect()
    wait_until(lambda: sessions() == 0)


def test_an_error_closes_it_and_frees_the_session(serve: ServerMaker) -> None:
    server = serve()
    envs = RemoteVecEnv(server.url, "Mischievous", 2)
    envs.reset()
    with pytest.raises(errors.EnvError, match="as told") as caught:
        envs.step([0, 1])
    assert caught.value.env_index == 1
    assert envs.closed
    assert httpx.get(f"{server.url}/status.json").json()["sessions"] == 0


@pytest.mark.parametrize("pooled_bytes", [0, 2**20])
@pytest.mark.parametrize("env_ids", [None, [1, 0]])
def test_a_forbidden_reset_changes_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch, env_ids: list[int] | None, pooled_bytes: int
) -> None:
    monkeypatch.setattr(space_rows, "MIN_POOLED_BYTES", pooled_bytes)
    with (
        RemoteVecEnv(server.url, "CartPole", 3) as envs,
        RemoteVecEnv(server.url, "CartPole", 3) as others,
    ):
        for each in (envs, others):
            each.reset(seed=4)
            obs, *_ = each.step([0, 1, 0])
            obs[:] = 7  # buf_obs does not change with it
        with pytest.raises(errors.RemoteForbiddenError, match="the option 'low'"):
            envs.reset(options={"low": 0.0}, env_ids=env_ids)
        assert not envs.closed
        assert_same(envs.buf_obs, others.buf_obs)
        for _ in range(20):
            assert_same(envs.step([1, 1, 0])[:4], others.step([1, 1, 0])[:4])


@pytest.mark.parametrize("start", ["step_async", "send"])
def test_a_forbidden_reset_does_not_lose_pending_results_silently(
    server: Server, start: str
) -> None:
    with RemoteVecEnv(server.url, "CartPole", 2) as envs:
        envs.reset()
        envs.send([0, 1], range(2)) if start == "send" else envs.step_async([0, 1])
        with pytest.raises(errors.RemoteForbiddenError, match="the option 'low'"):
            envs.reset(options={"low": 0.0})
        assert envs.closed


def reset_many_times(envs: RemoteVecEnv) -> None:
    for _ in range(1000):
        envs.reset()


def test_a_reset_beyond_a_rate_limit_can_be_repeated(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_DELAY", 0.0)
    server = serve(requests_rate_per_session=1.0)
    with RemoteVecEnv(server.url, "CartPole", 1) as envs:
        with pytest.raises(errors.RemoteLimitError, match="requests per second per session to 1"):
            reset_many_times(envs)
        assert not envs.closed
        time.sleep(2.0)
        envs.step([0])


@pytest.mark.parametrize("error", [ConnectionResetError("reset by peer"), 502])
@pytest.mark.parametrize("status", [403, 429])
def test_a_reset_whose_reply_was_lost_does_not_count_as_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch, error: OSError | int, status: int
) -> None:
    exchange = HttpTransport.exchange
    answers = iter([error, status])

    def lose(*args: Any) -> Response:
        answer = next(answers, None)
        reply = Response(status, {}, b"") if answer == status else exchange(*args)
        if isinstance(answer, OSError):
            raise answer
        return Response(502, {}, b"") if answer == 502 else reply

    with RemoteVecEnv(server.url, "CartPole", 1) as envs:
        envs.reset()
        monkeypatch.setattr(HttpTransport, "exchange", lose)
        with pytest.raises(errors.RemoteError, match=f"HTTP {status}") as caught:
            envs.reset()
        monkeypatch.undo()
        assert envs.closed
        assert str(error) in str(caught.value.__cause__)


def test_closing_while_a_step_hangs_takes_no_longer_than_ending_it(
    serve: ServerMaker, impatient: None
) -> None:
    server = serve()
    envs = RemoteVecEnv(server.url, "Mischievous", 1)
    envs.reset()
    envs.step_async([4])
    time.sleep(0.2)
    start = time.monotonic()
    envs.close()
    assert time.monotonic() - start < 20


def test_an_interrupt_in_the_standard_library_hangs_nothing(envs: RemoteVecEnv) -> None:
    folders = os.path.dirname(xuance_envs.__file__), os.path.dirname(threading.__file__)
    envs.reset()
    came, number = True, 0
    while came:
        with Instant(number, folders) as instant:
            envs.step_async([0, 1, 0, 1])
        came, number = instant.came, number + 1
        if not envs.waiting:
            envs.step_async([0, 1, 0, 1])
        assert envs.step_wait()[1].tolist() == [1, 1, 1, 1]
    assert number > 50


def test_a_program_whose_server_is_silent_ends_before_the_timeout() -> None:
    code = """
import os, signal, sys
from xuance_envs import RemoteVecEnv
from xuance_envs.remote.client import remote_session
remote_session.CLOSE_TIMEOUTS = (0.2,)
envs = RemoteVecEnv(sys.argv[1], "CartPole-v1", 1, timeout=100)
envs.reset()
os.kill(int(sys.argv[2]), signal.SIGSTOP)
envs.step_async([0])
"""
    served = ServedProcess("--env", "CartPole-v1")
    try:
        program = [sys.executable, "-c", code, served.url, str(served.pid)]
        assert subprocess.run(program, timeout=60).returncode == 0
    finally:
        os.kill(served.pid, signal.SIGCONT)
        served.close()


@pytest.mark.slow("waits for retries to end")
def test_a_server_that_is_killed_is_named_in_bounded_time() -> None:
    served = ServedProcess("--env", "CartPole-v1")
    envs = RemoteVecEnv(served.url, "CartPole-v1", 2, timeout=20)
    envs.reset(seed=0)
    failures: list[BaseException] = []

    def step_on() -> None:
        try:
            while True:
                envs.step([0, 1])
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=step_on)
    thread.start()
    time.sleep(0.3)
    os.kill(served.pid, signal.SIGKILL)
    thread.join(25)
    assert not thread.is_alive()
    assert isinstance(failures[0], errors.RemoteUnreachableError)
    assert served.url in str(failures[0])
    served.close()
    # A new server at the same address does not have the session.
    again = ServedProcess("--env", "CartPole-v1", port=served.port)
    with RemoteVecEnv(again.url, "CartPole-v1", 2) as others:
        others.reset()
        with pytest.raises(errors.ClosedVecEnvError):
            envs.step([0, 1])
    again.close()


def test_a_server_that_is_restarted_has_forgotten_the_session() -> None:
    served = ServedProcess("--env", "CartPole-v1")
    envs = RemoteVecEnv(served.url, "CartPole-v1", 1)
    envs.reset()
    served.close()
    again = ServedProcess("--env", "CartPole-v1", port=served.port)
    with pytest.raises(errors.RemoteNotFoundError, match="no such session"):
        envs.step([0])
    assert envs.closed
    again.close()


@pytest.mark.parametrize("seed", [1.5, -1, "1", 2**64])
def test_a_seed_that_no_server_takes_is_refused_before_anything_is_sent(server, seed):
    with pytest.raises(ValueError, match=r"^seed: expected .*int"):
        RemoteVecEnv(server.url, "Counting", 2, seed=seed)
    with RemoteVecEnv(server.url, "Counting", 2) as envs:
        for seeds in (seed, [0, seed]):
            with pytest.raises(ValueError, match=r"^seed.*: expected .*int"):
                envs.reset(seed=seeds)
        envs.reset(seed=0)
