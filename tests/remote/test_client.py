"""The notebook client: its results and its errors."""

from __future__ import annotations

import copy
import gzip
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from time import sleep
from typing import Any

import gymnasium
import httpx
import numpy as np
import pytest
from comparing import assert_same
from gymnasium import spaces
from remote_envs import CountingEnv, SlowStepEnv
from serving import ServerMaker, wait_until

from xuance_envs import errors
from xuance_envs.remote.client import (
    StudentGymEnvVectorized,
    create_student_gym_env_vectorized,
    remote_session,
)
from xuance_envs.remote.client.api_client import ApiClient
from xuance_envs.remote.client.transport import HttpTransport, Response
from xuance_envs.remote.server import Server
from xuance_envs.remote.wire.constants import PROTOCOL_VERSION

ROOT = Path(__file__).resolve().parents[2]

Made = Any
VERSION = b'{"name": "xuance_envs", "protocol": %d, "version": "9"}' % PROTOCOL_VERSION


@pytest.fixture
def make(server: Server) -> Iterator[Made]:
    made: list[StudentGymEnvVectorized] = []

    def make(num_envs: int, step_size: int, env_id: str = "Counting", **options: Any) -> Any:
        options.setdefault("base_url", server.url)
        env = create_student_gym_env_vectorized(
            num_envs, step_size, options.pop("user_token", "any"), env_id=env_id, **options
        )
        made.append(env)
        return env

    yield make
    for env in made:
        env.close()


# --- what it returns ----------------------------------------------------------------------------


def test_the_exchange(make: Made) -> None:
    env = make(3, 2)
    assert (env.num_envs, env.step_size, len(env.episode_ids)) == (3, 2, 3)
    assert env.observation_space == CountingEnv().observation_space
    assert env.action_space == spaces.Discrete(10)
    observations, infos = env.reset(seed=7)
    assert_same(observations, np.float32([[7, 0, 0], [8, 0, 0], [9, 0, 0]]))
    assert infos == [{}] * 3
    assert (env.get_active_count(), env.get_terminated_env_indices()) == (3, [])

    observations, rewards, terminateds, truncateds, infos = env.step([1, 2, 3])
    assert isinstance(observations, list)
    for i, each in enumerate(observations):
        assert_same(each, np.float32([[7 + i, 0, 1], [7 + i, 0, 2]]))
    assert_same(rewards, np.float32([2, 4, 6]))
    assert_same(terminateds, np.zeros(3, bool))
    assert_same(truncateds, np.zeros(3, bool))
    assert infos == [{"step": 1, "terminated": False, "truncated": False}] * 3

    observations, rewards, terminateds, truncateds, infos = env.step(np.array([1, 2, 3]))
    assert [each.shape for each in observations] == [(1, 3)] * 3, "the episode ended"
    assert_same(rewards, np.float32([1, 2, 3]))
    assert terminateds.all()
    assert truncateds.all()
    assert infos == [{"step": 2, "terminated": True, "truncated": True}] * 3
    assert (env.get_active_count(), env.get_terminated_env_indices()) == (0, [0, 1, 2])


def test_an_ended_environment_is_left_alone_until_it_is_reset(make: Made) -> None:
    env = make(2, 10)
    env.reset(seed=0)
    last = env.step([1, 1])
    for _ in range(2):
        observations, rewards, terminateds, truncateds, infos = env.step([5, 5])
        assert_same(observations, [each[-1:] for each in last[0]])
        assert_same(rewards, np.zeros(2, np.float32))
        assert_same((terminateds, truncateds), last[2:4])
        assert infos == last[4]
    observations, infos = env.reset_specific_envs(env.get_terminated_env_indices()[1:])
    assert_same(observations, np.float32([[1, 1, 0]]))
    assert len(infos) == 1
    assert (env.get_active_count(), env.get_terminated_env_indices()) == (1, [0])
    observations, rewards, terminateds, truncateds, infos = env.step([1, 1])
    assert [len(each) for each in observations] == [1, 3]
    assert rewards.tolist() == [0, 3]
    assert (terminateds.tolist(), truncateds.tolist()) == ([True, False], [True, True])
    assert env.get_terminated_env_indices() == [0, 1], "for either reason"


def test_resetting_in_any_order_and_none(make: Made) -> None:
    env = make(3, 1)
    env.reset(seed=10)
    observations, _ = env.reset_specific_envs([2, 0], seed=[5, 6])
    assert observations[:, 0].tolist() == [5, 6]
    observations, infos = env.reset_specific_envs([])
    assert (observations.shape, infos) == ((0, 3), [])
    observations, _ = env.reset_specific_envs([1], seed=20)
    assert observations[0, 0] == 21, "the seed is counted from the environment's own index"
    with pytest.raises(ValueError, match=r"^ids: expected indices from 0 to 2"):
        env.reset_specific_envs([3])


def test_it_steps_as_one_would_by_hand(make: Made) -> None:
    env, rng = make(2, 4, "CartPole"), np.random.default_rng(0)
    hand = [gymnasium.make("CartPole-v1") for _ in range(2)]
    first, _ = env.reset(seed=3)
    assert_same(first, np.stack([one.reset(seed=3 + i)[0] for i, one in enumerate(hand)]))
    for _ in range(60):
        actions = rng.integers(2, size=2)
        observations, rewards, terminateds, truncateds, _ = env.step(actions)
        for i, one in enumerate(hand):
            expected, total, over = [], 0.0, False
            while len(expected) < 4 and not over:
                obs, reward, terminated, truncated, _ = one.step(actions[i])
                expected.append(obs)
                total, over = total + reward, terminated or truncated
            assert_same(observations[i], np.stack(expected))
            assert rewards[i] == total
            assert (terminateds[i], truncateds[i]) == (terminated, truncated)
        for i in (ended := env.get_terminated_env_indices()):
            hand[i].reset(seed=i)
        env.reset_specific_envs(ended, seed=0)


class Mixed(gymnasium.Env):
    """Environment with dicts of an array, a number and a text as observations and actions."""

    def __init__(self, env_seed: int = 0) -> None:
        self.observation_space = spaces.Dict(
            a=spaces.Box(-9, 9, (2,)), t=spaces.Tuple([spaces.Discrete(9), spaces.Text(5)])
        )
        self.action_space = self.observation_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"a": np.zeros(2, np.float32), "t": (0, "x")}, {}

    def step(self, action: Any) -> Any:
        action["a"] += 1  # the environment owns the action
        return action, 1.0, False, False, {"text": action["t"][1]}


def test_spaces_with_parts_and_objects(serve: ServerMaker) -> None:
    server = serve({"Mixed": Mixed})
    with create_student_gym_env_vectorized(2, 2, None, base_url=server.url) as env:
        observations, _ = env.reset()
        assert_same(observations["t"], (np.array([0, 0]), ["x", "x"]))
        actions = {"a": [[1, 2], [3, 4]], "t": ([1, 2], ["p", "q"])}
        observations, *_ = env.step(actions)
        assert_same(observations[1]["a"], np.float32([[4, 5], [4, 5]]))
        assert_same(observations[1]["t"], (np.array([2, 2]), ["q", "q"]))
        assert env.reset_specific_envs([])[0]["t"][1] == []


def test_one_request_steps_all_of_them(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make(5, 3)
    env.reset()
    sent = []
    original = ApiClient._send_with_retries
    monkeypatch.setattr(
        ApiClient,
        "_send_with_retries",
        lambda self, *args: (sent.append(args[1]), original(self, *args))[1],
    )
    env.step([0] * 5)
    assert sent == ["/api/v1/episode/vectorized_step"]


def test_episodes_are_logged(make: Made, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "xuance_envs")
    env = make(2, 1)
    for index, episode in enumerate(env.episode_ids):
        assert uuid.UUID(episode).version == 4
        assert f"environment {index} of 2 is episode {episode}" in caplog.text


def test_requests_and_resets_are_logged_as_notebooks_have_it(
    make: Made, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "xuance_envs")
    env = make(2, 1)
    env.reset()
    env.reset_specific_envs([1])
    env.step([0, 0])
    said = [r.getMessage() for r in caplog.records if r.name == "xuance_envs.client"]
    url = f"POST {server.url}/api/v1/"
    for path in ("session/create", "episode/create", "episode/vectorized_step"):
        assert any(line.startswith(f"{url}{path} 200 ") for line in said)
    assert "All 2 environments reset successfully" in said
    assert "All 1 environments reset successfully" in said


def test_rendering(make: Made) -> None:
    env = make(2, 1)
    env.reset()
    env.step([0, 0])
    frames = env.render([1])
    assert_same(frames, [np.full((4, 6, 3), 1, np.uint8)])
    assert len(env.render()) == 2
    assert env.render([]) == []


# --- what it refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize("actions", [[1], [1, 2, 3], [0.5, 1], [[1], [2]], None, "ab"])
def test_actions_that_do_not_fit_change_nothing(make: Made, actions: Any) -> None:
    env = make(2, 1)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="actions for 2 environments: expected"):
        env.step(actions)
    assert env.step([0, 0])[0][0].tolist() == [[0, 0, 1]]


def test_after_close_everything_else_says_so(make: Made) -> None:
    env = make(1, 1)
    assert "closed" not in repr(env)
    env.close()
    env.close()
    assert "closed" in repr(env)
    for act in (
        env.reset,
        env.render,
        partial(env.step, [0]),
        partial(env.reset_specific_envs, []),
    ):
        with pytest.raises(errors.ClosedVecEnvError):
            act()


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "2", None])
def test_numbers_below_one_are_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"num_envs: expected an int of at least 1"):
        create_student_gym_env_vectorized(bad, 1, None)
    with pytest.raises(ValueError, match=r"step_size: expected an int of at least 1"):
        create_student_gym_env_vectorized(1, bad, None)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
def test_a_timeout_that_is_none_is_refused(timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout: expected seconds above 0"):
        create_student_gym_env_vectorized(1, 1, None, timeout=timeout)


@pytest.mark.parametrize("timeout", [float("inf"), 1e9, np.float32(60)])
def test_a_timeout_may_be_long(make: Made, timeout: Any) -> None:
    env = make(1, 1, timeout=timeout)
    assert env.reset(seed=3)[0].tolist() == [[3, 0, 0]]


@pytest.mark.parametrize(
    "url",
    [
        *("127.0.0.1:8001", "ftp://x", "http://", "http://x:y", "", None, 8001),
        *("http://xn--/", "http://x:99999", "http://user:secret@x:y", "user:secret@x"),
    ],
)
def test_an_address_that_is_none_is_refused(url: Any) -> None:
    with pytest.raises(ValueError, match=r"base_url: expected (an address|a string)") as caught:
        create_student_gym_env_vectorized(1, 1, None, base_url=url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "a b", "é", "a\nb", b"ab", 5])
def test_a_token_that_fits_no_header_is_refused(token: Any) -> None:
    with pytest.raises(ValueError, match="user_token: expected None, or visible ASCII"):
        create_student_gym_env_vectorized(1, 1, token)


def test_refusals_of_the_server_are_exceptions_of_their_own(serve: ServerMaker) -> None:
    server = serve(
        tokens=("good",), sessions_per_token=1, environments_per_session=2, body=2000, repeats=5
    )
    make = partial(create_student_gym_env_vectorized, base_url=server.url)
    for token in (None, "bad"):
        with pytest.raises(errors.RemoteAuthenticationError, match="token") as caught:
            make(1, 1, token)
        assert caught.value.status == 401
        assert caught.value.server == server.url
    with pytest.raises(errors.RemoteNotFoundError, match="no environment 'Chess'"):
        make(1, 1, "good", env_id="Chess")
    with pytest.raises(errors.RemoteRequestError, match="env_id is required"):
        make(1, 1, "good")
    with pytest.raises(errors.RemoteLimitError, match="environments per session to 2"):
        make(3, 1, "good", env_id="Counting")
    env = make(1, 5, "good", env_id="Counting")
    with pytest.raises(errors.RemoteLimitError, match="1 session per token"):
        make(1, 1, "good", env_id="Counting")
    with pytest.raises(errors.RemoteConflictError, match="call reset first"):
        env.step([0])
    env.reset()
    env.step_size = 6
    with pytest.raises(errors.RemoteRequestError, match="limits steps per request to 5"):
        env.step([0])
    with pytest.raises(errors.RemoteTooLargeError):
        env._session.request("vectorized_reset", {"options": {"a": "x" * 3000}}, dict)
    env.close()


def test_an_environment_that_raises_is_told_as_it_is_everywhere(make: Made) -> None:
    env = make(2, 1, "Mischievous")
    env.reset()
    with pytest.raises(errors.EnvError, match="as told") as caught:
        env.step([0, 1])
    assert caught.value.env_index == 1
    assert isinstance(caught.value.__cause__, ValueError)
    env.reset_specific_envs([1])
    with pytest.raises(errors.RemoteConflictError, match="call reset first: environment 0"):
        env.step([0, 0])  # environment 0 has made a step whose results are lost
    env.reset()
    with pytest.raises(errors.WorkerDiedError, match="exited with code 7"):
        env.step([0, 2])
    with pytest.raises(errors.RemoteConflictError, match="have failed"):
        env.reset()


# --- servers that are not there, or are something else ------------------------------------------


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(errors.RemoteUnreachableError, match=f"127.0.0.1:{port}: cannot be"):
        create_student_gym_env_vectorized(1, 1, None, base_url=f"http://127.0.0.1:{port}")


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(errors.RemoteUnreachableError, match=r"within 0.3 s"):
            create_student_gym_env_vectorized(1, 1, None, base_url=url, timeout=0.3)


@pytest.mark.parametrize(
    ("status", "content_type", "body", "told"),
    [
        (200, "text/html", b"<html>", r"got 'text/html' \(HTTP 200\)$"),
        (200, "", b"x", r"in msgpack, got no content type \(HTTP 200\)$"),
        (200, "application/json", b"{", "not an xuance_envs server.* not valid JSON"),
        (200, "application/json", b"[]", "not an xuance_envs server"),
        (200, "application/json", b'{"name": "xuance_envs", "protocol": 99, "version": "9"}', "99"),
        (404, "text/html", b"nothing", "not an xuance_envs server"),
        (500, "application/json", b'{"error": 3}', "not an xuance_envs server"),
        (302, "text/html", b"", "not an xuance_envs server"),
    ],
)
def test_something_else_that_answers_is_told_apart(
    status: int, content_type: str, body: bytes, told: str
) -> None:
    answer = status, {"Content-Type": content_type}, body
    with answering([answer]) as url, pytest.raises(errors.RemoteVersionError, match=told):
        create_student_gym_env_vectorized(1, 1, None, base_url=url)


Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def answering(answers: list[Answer], asked: list[str] | None = None) -> Iterator[str]:
    """Serve the answers in order and repeat the last one; yield the server's address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # name from the base class
            if asked is not None:
                asked.append(f"{self.command} {self.path} {self.headers['Authorization']}")
            status, headers, body = answers.pop(0) if len(answers) > 1 else answers[0]
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815  # as above

        def log_message(self, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{other.server_port}"
        finally:
            other.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_that_does_not_reach_the_server_is_asked_again(status: int) -> None:
    absent = status, {"Content-Type": "text/html"}, b"<html>Bad Gateway</html>"
    version = 200, {"Content-Type": "application/json"}, VERSION
    asked: list[str] = []
    with answering([absent, version], asked) as url:
        assert ApiClient(url, None, 10).check_version() == "9"
    assert len(asked) == 2
    with answering([absent], asked) as url:
        connection = ApiClient(url, None, 10)
        with pytest.raises(errors.RemoteUnreachableError, match="a proxy ") as caught:
            connection.check_version()
        assert caught.value.status == status
        asked.clear()
        with pytest.raises(errors.RemoteUnreachableError, match="a proxy "):
            connection.request("POST", "/once", {})
        assert len(asked) == 1, "it was repeated"


def test_a_server_that_is_elsewhere_says_where() -> None:
    place = {"Location": "https://user:secret@example.org/envs/api/v1/version"}
    with answering([(301, place, b"")]) as url, pytest.raises(errors.RemoteVersionError) as caught:
        create_student_gym_env_vectorized(1, 1, None, base_url=url)
    assert "to https://example.org/envs/api/v1/version: use this address" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("body", [gzip.compress(bytes(10**6), mtime=0), b"no gzip at all"])
def test_an_answer_that_cannot_be_read_is_an_error_of_the_server(body: bytes) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    with answering([(200, headers, body)]) as url, pytest.raises(errors.RemoteError) as caught:
        create_student_gym_env_vectorized(1, 1, None, base_url=url)
    assert "without content encoding, got 'gzip'" in str(caught.value)


def test_a_password_in_the_address_is_sent_and_never_said() -> None:
    asked: list[str] = []
    with answering([(200, {"Content-Type": "application/json"}, VERSION)], asked) as url:
        secret = url.replace("http://", "http://user:secret@")
        connection = ApiClient(secret, None, 10)
        connection.check_version()
        assert asked == ["GET /api/v1/version Basic dXNlcjpzZWNyZXQ="]
        assert connection.server == url
        with pytest.raises(ValueError, match="a user and password cannot be combined") as caught:
            ApiClient(secret, "token", 10)
    with pytest.raises(errors.RemoteUnreachableError) as unreachable:
        create_student_gym_env_vectorized(1, 1, None, base_url=secret)
    for error in (caught.value, unreachable.value):
        assert "secret" not in str(error)


# --- answers that are lost, sessions that are forgotten -----------------------------------------


class LossyProxy:
    """Proxy that cuts off answer number ``cut`` of each connection."""

    def __init__(self, server: Server, cut: int) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self._target, self._cut = (host, int(port)), cut
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, socket.create_connection(self._target) as server:
                connection.settimeout(20)
                server.settimeout(20)
                with suppress(ConnectionResetError):  # the client waits no longer
                    self._pass_on(connection, server)

    def _pass_on(self, connection: socket.socket, server: socket.socket) -> None:
        answers = 0
        while request := self._message(connection):
            server.sendall(request)
            answer = self._message(server)
            answers += 1
            if answers == self._cut:
                self.cuts += 1
                connection.sendall(answer[:20])
                return
            connection.sendall(answer)

    def _message(self, source: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = source.recv(2**16)
            if not piece:
                return b""
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        ]
        while len(body) < sum(lengths):
            body += source.recv(2**16)
        return head + b"\r\n\r\n" + body

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def test_a_step_whose_answer_is_lost_is_not_made_twice(server: Server) -> None:
    proxy = LossyProxy(server, cut=5)
    env = create_student_gym_env_vectorized(1, 1, None, base_url=proxy.url, env_id="CartPole")
    try:
        hand = gymnasium.make("CartPole-v1")
        assert_same(env.reset(seed=0)[0][0], hand.reset(seed=0)[0])
        for k in range(8):
            assert_same(env.step([k % 2])[0][0][0], hand.step(k % 2)[0])
        assert proxy.cuts >= 2, "answers were lost on the way"
    finally:
        env.close()
        proxy.close()


@pytest.mark.parametrize("status", [200, 302, 401, 408, 429])
def test_a_step_whose_reply_was_lost_stays_pending_if_its_repetition_fails(
    server: Server, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    exchange = HttpTransport.exchange
    answers = iter([ConnectionResetError("reset by peer"), Response(status, {}, b"")])

    def lose(*args: Any) -> Response:
        answer = next(answers)
        if isinstance(answer, Response):
            return answer
        exchange(*args)
        raise answer

    hand = gymnasium.make("CartPole-v1")
    with create_student_gym_env_vectorized(
        1, 1, None, base_url=server.url, env_id="CartPole"
    ) as env:
        assert_same(env.reset(seed=0)[0][0], hand.reset(seed=0)[0])
        monkeypatch.setattr(HttpTransport, "exchange", lose)
        with pytest.raises(errors.RemoteError) as caught:
            env.step([1])
        assert caught.value.status == status
        monkeypatch.undo()
        assert env.waiting
        assert_same(env.step_wait()[0][0][0], hand.step(1)[0])
        assert_same(env.step([0])[0][0][0], hand.step(0)[0])


# --- requests that are cut short ----------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to a thread")
def test_ctrl_c_loses_no_step(serve: ServerMaker) -> None:
    server, main, interrupted = serve({"Slow": SlowStepEnv}), threading.get_ident(), 0
    with create_student_gym_env_vectorized(1, 1, None, base_url=server.url) as env:
        env.reset(seed=0)
        for step in range(1, 9):
            timer = threading.Timer(0.01 * step, signal.pthread_kill, (main, signal.SIGINT))
            observations = None
            try:
                timer.start()
                observations = env.step([1])[0]
                timer.join()
                sleep(1)
            except KeyboardInterrupt:
                interrupted += env.waiting
            timer.join()
            if observations is None:  # run the same cell again
                observations = env.step([1])[0]
            assert observations[0].tolist() == [[0, 0, step]]
    assert interrupted > 2


def lose_replies(monkeypatch: pytest.MonkeyPatch, *losses: bool) -> None:
    """Let the replies to the next requests arrive too late, as often as told."""
    original, calls = ApiClient._send_with_retries, iter(losses)

    def late(self: ApiClient, *args: Any) -> Any:
        sent = original(self, *args)
        if next(calls, False):
            raise errors.RemoteUnreachableError("it did not answer", self.server)
        return sent

    monkeypatch.setattr(ApiClient, "_send_with_retries", late)


@pytest.fixture
def cut(make: Made, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an environment whose second step runs, but whose reply arrives too late."""
    env = make(2, 1)
    env.reset(seed=0)
    env.step([1, 1])
    lose_replies(monkeypatch, True)
    with pytest.raises(errors.RemoteUnreachableError):
        env.step([2, 2])
    assert env.waiting
    return env


def test_the_same_step_again_returns_the_one_whose_answer_did_not_come(cut: Any) -> None:
    assert cut.step([2, 2])[0][0].tolist() == [[0, 0, 2]]
    assert not cut.waiting
    assert cut.step([2, 2])[0][0].tolist() == [[0, 0, 3]]


def test_another_step_is_not_taken_for_it(cut: Any) -> None:
    for act in (partial(cut.step, [3, 3]), cut.render):
        with pytest.raises(errors.AlreadySteppingError, match=r"step_wait\(\)"):
            act()
    observations, rewards, *_ = cut.step_wait()
    assert (observations[0].tolist(), rewards.tolist()) == ([[0, 0, 2]], [2, 2])
    with pytest.raises(errors.NotSteppingError):
        cut.step_wait()
    assert cut.step([3, 3])[1].tolist() == [3, 3]


def test_it_stays_pending_if_its_repetition_is_refused(
    cut: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(HttpTransport, "exchange", lambda *_: Response(429, {}, b""))
        with pytest.raises(errors.RemoteLimitError):
            cut.step([2, 2])
    assert cut.step([2, 2])[0][0].tolist() == [[0, 0, 2]]


def test_a_reset_throws_it_away(cut: Any) -> None:
    observations, _ = cut.reset_specific_envs([1])
    assert observations.tolist() == [[1, 1, 0]]
    assert [each[0].tolist() for each in cut.step([0, 0])[0]] == [[0, 0, 3], [1, 1, 1]]


def test_a_reset_of_no_environments_keeps_it(cut: Any) -> None:
    observations, infos = cut.reset_specific_envs([])
    assert (observations.shape, infos) == ((0, 3), [])
    assert cut.waiting
    assert cut.step_wait()[0][0].tolist() == [[0, 0, 2]]


def test_clones_after_an_interrupted_reset_have_not_ended(
    make: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make(2, 3)
    env.reset()
    env.step([0, 0])
    assert env.get_terminated_env_indices() == [0, 1]
    lose_replies(monkeypatch, True)
    with pytest.raises(errors.RemoteUnreachableError):
        env.reset()
    env.clone_state(0, 1)
    assert env.get_terminated_env_indices() == []


def test_a_failure_is_told_when_it_is_asked_for(make: Made, monkeypatch: Any) -> None:
    env = make(2, 1, "Mischievous")
    env.reset()
    lose_replies(monkeypatch, True, False, True)
    with pytest.raises(errors.RemoteUnreachableError):
        env.step([0, 1])
    with pytest.raises(errors.EnvError, match="failed in 'step': ValueError: as told"):
        env.step_wait()
    with pytest.raises(errors.RemoteUnreachableError):
        env.reset(seed=3)
    assert not env.waiting
    assert env.reset(seed=3)[0].tolist() == [[3, 1, 0], [4, 1, 0]], "it was made once"


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_there_is_one_client_of_a_session(make: Made, duplicate: Any) -> None:
    with pytest.raises(TypeError, match="cannot pickle or copy StudentGymEnvVectorized"):
        duplicate(make(1, 1))


def test_two_threads_do_not_share_a_step(serve: ServerMaker) -> None:
    server = serve({"Slow": SlowStepEnv})
    with create_student_gym_env_vectorized(1, 20, None, base_url=server.url) as env:
        env.reset()
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(env.step, [1])
            wait_until(lambda: env.waiting)
            with pytest.raises(errors.VecEnvError, match="another thread is using this Student"):
                env.step([1])
            assert len(first.result()[0][0]) == 20
        assert env.step([1])[0][0][0].tolist() == [0, 0, 21]


def test_all_environments_are_reset_in_the_given_order(make: Made) -> None:
    env = make(2, 1)
    assert env.reset_specific_envs([1, 0], seed=[8, 5])[0].tolist() == [[8, 0, 0], [5, 0, 0]]
    assert [each[0].tolist() for each in env.step([0, 0])[0]] == [[5, 0, 1], [8, 0, 1]]


def test_the_processes_that_fork_from_it_have_no_share_in_it(make: Made) -> None:
    env = make(2, 1)
    env.reset(seed=0)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        told = ""
        for act in (partial(env.step, [0, 0]), env.reset, env.render):
            try:
                act()
                told += "done;"
            except errors.WrongProcessError as error:
                told += f"{error};"
        env.close()
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        told = said.read().split(";")
    os.waitpid(child, 0)
    assert len(told) == 4
    assert all(f"belongs to process {os.getpid()}" in one for one in told[:3]), told
    assert "StudentGymEnvVectorized" in told[0]
    assert env.step([1, 1])[0][0].tolist() == [[0, 0, 1]], "the parent's own, and its first"


def test_a_session_whose_answer_is_lost_is_opened_once(server: Server) -> None:
    proxy = LossyProxy(server, cut=2)  # the replies to the version and session requests
    before = sessions(server)
    with create_student_gym_env_vectorized(1, 1, None, base_url=proxy.url, env_id="Counting"):
        assert proxy.cuts > 0
        assert sessions(server) == before + 1
    assert sessions(server) == before
    proxy.close()


class DeleteLosingProxy(LossyProxy):
    """Proxy that loses every second request that closes a session, or its reply."""

    def __init__(self, server: Server, loss: str) -> None:
        self.deletes, self._loss = 0, loss
        super().__init__(server, 0)

    def _pass_on(self, connection: socket.socket, server: socket.socket) -> None:
        while request := self._message(connection):
            is_lost = request.startswith(b"DELETE ") and self.deletes % 2 == 0
            self.deletes += request.startswith(b"DELETE ")
            if is_lost and self._loss != "answer":
                if self._loss == "silent":
                    self._message(connection)  # until the client closes the connection
                return
            server.sendall(request)
            answer = self._message(server)
            if is_lost:
                return
            connection.sendall(answer)


@pytest.mark.parametrize("loss", ["request", "answer", "silent"])
def test_a_session_is_closed_even_if_the_first_request_is_lost(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    first = 0.5 if loss == "silent" else 20.0  # nothing but time ends that request
    monkeypatch.setattr(remote_session, "CLOSE_TIMEOUTS", (first, 20.0))
    server = serve(tokens=("a",), sessions_per_token=1)
    proxy = DeleteLosingProxy(server, loss)
    make = partial(create_student_gym_env_vectorized, 1, 1, "a", base_url=proxy.url)
    try:
        for cycle in range(1, 4):
            make(env_id="Counting").close()
            assert proxy.deletes == 2 * cycle
            assert sessions(server) == 0
    finally:
        proxy.close()


def test_an_interrupt_while_a_session_is_opened_leaves_none(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, before, opened = ApiClient._send_with_retries, sessions(server), []

    def interrupted(self: ApiClient, method: str, path: str, *args: Any) -> Any:
        sent = original(self, method, path, *args)
        if path.endswith("session/create") and not opened:
            opened.append(sessions(server))
            raise KeyboardInterrupt
        return sent

    monkeypatch.setattr(ApiClient, "_send_with_retries", interrupted)
    with pytest.raises(KeyboardInterrupt):
        create_student_gym_env_vectorized(1, 1, None, base_url=server.url, env_id="Counting")
    assert opened == [before + 1]
    assert sessions(server) == before


def sessions(server: Server) -> int:
    return int(httpx.get(f"{server.url}/status.json").json()["sessions"])


def test_a_program_that_ends_frees_its_session(serve: ServerMaker) -> None:
    server = serve()
    code = (
        "from xuance_envs import create_student_gym_env_vectorized as make\n"
        f"env = make(1, 1, None, base_url={server.url!r}, env_id='Counting')\n"
        "env.reset()\n"
        "raise SystemExit(0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
    assert sessions(server) == 0


def test_a_session_that_could_not_be_filled_is_freed(serve: ServerMaker) -> None:
    server = serve()
    with pytest.raises(errors.RemoteNotFoundError):
        create_student_gym_env_vectorized(1, 1, None, base_url=server.url, env_id="Chess")
    assert sessions(server) == 0


def test_what_to_install_is_said_where_msgpack_is_missing() -> None:
    code = (
        "import sys\n"
        "sys.modules['msgpack'] = None\n"
        "import xuance_envs\n"
        "try:\n"
        "    xuance_envs.create_student_gym_env_vectorized\n"
        "except ImportError as error:\n"
        "    print(error)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    command = 'pip install "xuance_envs[remote]"'
    assert f"requires msgpack, which is not installed: {command}" in result.stdout
