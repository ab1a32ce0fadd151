"""Replies of the server to JSON requests written by hand."""

from __future__ import annotations

import json
import logging
import multiprocessing
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import msgpack
import pytest
from remote_envs import CountingEnv, SlowStartEnv
from serving import API_PREFIX, Asking, ServedProcess, ServerMaker, wait_until

from xuance_envs.remote.server import Server
from xuance_envs.remote.settings import Catalogue, Settings, Tokens

Background = Callable[..., Future[Any]]
SHARED = str(Path(__file__).resolve().parents[1] / "shared")


@pytest.fixture
def ask(server: Server) -> Iterator[Asking]:
    asking = Asking(server)
    yield asking
    asking.close()
    asking.client.close()


def code_of(response: httpx.Response) -> str:
    return response.json()["error"]["code"]


# --- the exchange -------------------------------------------------------------------------------


def test_a_session_in_json(ask: Asking) -> None:
    created = ask.ask("create", env_id="Counting", num_envs=2, seed=5).json()
    assert len({uuid.UUID(episode) for episode in created["episode_ids"]}) == 2
    assert created["action_space"] == {"type": "Discrete", "n": 10, "start": 0, "dtype": "int64"}
    assert created["max_episode_steps"] == 1000
    assert created["metadata"] == {"render_modes": ["rgb_array"], "render_fps": 5}
    reset = ask.ask("vectorized_reset", options={"a": 1}).json()
    assert reset["observations"] == [[5, 0, 0], [6, 0, 0]]
    assert reset["infos"] == [{}] * 2
    step = ask.ask("vectorized_step", actions=[1, 2], steps=2).json()
    assert step["observations"] == [[[5, 0, 1], [5, 0, 2]], [[6, 0, 1], [6, 0, 2]]]
    assert step["rewards"] == [2, 4]
    assert step["terminated"] == step["truncated"] == [False, False]
    ending = {"step": 1, "terminated": False, "truncated": False}
    assert step["infos"] == [ending, ending]


def test_some_episodes_only_and_in_any_order(ask: Asking) -> None:
    ask.begin("Counting", num_envs=3)
    step = ask.ask("vectorized_step", actions=[1, 2], episode_ids=ask.episodes[2::-2]).json()
    assert step["rewards"] == [1, 2]
    step = ask.ask("vectorized_step", actions=[0, 0, 0]).json()
    assert [obs[0][2] for obs in step["observations"]] == [2, 1, 2]


def test_a_second_group_of_episodes_has_ids_of_its_own(ask: Asking) -> None:
    ask.ask("create", env_id="Counting", num_envs=2)
    ask.ask("create", env_id="Counting", num_envs=2, seed=50)
    first, *_, last = ask.episodes
    assert len(set(ask.episodes)) == 4
    reset = ask.ask("vectorized_reset", episode_ids=[last]).json()
    assert reset["observations"] == [[51, 0, 0]]
    assert ask.ask("vectorized_reset").status_code == 422, "which group is not said"
    assert ask.ask("vectorized_reset", episode_ids=[first, last]).status_code == 422, "two groups"


def test_episodes_that_reset_themselves(ask: Asking) -> None:
    ask.begin("Counting", num_envs=2, auto_reset=True)
    for _ in range(2):
        step = ask.ask("vectorized_step", actions=[1, 1]).json()
        assert step["resets"] == {"environments": [], "observations": None, "infos": []}
    step = ask.ask("vectorized_step", actions=[1, 1]).json()
    assert step["observations"] == [[0, 0, 3], [0, 0, 3]]
    assert step["terminated"] == [True, True]
    assert step["resets"] == {
        "environments": [0, 1],
        "observations": [[0, 1, 0], [0, 1, 0]],
        "infos": [{"options": None}] * 2,
    }
    assert code_of(ask.ask("vectorized_step", actions=[1, 1], steps=2)) == "auto_reset"
    assert (
        code_of(ask.ask("vectorized_step", actions=[1], episode_ids=ask.episodes[1:]))
        == "auto_reset"
    )


def test_msgpack_is_answered_in_msgpack_and_says_the_same(ask: Asking) -> None:
    ask.ask("create", env_id="Counting")
    plain = ask.ask("vectorized_reset").json()
    body = msgpack.packb({"session_id": ask.id})
    headers = {"Content-Type": "application/x-msgpack"}
    answer = ask.client.post("episode/vectorized_reset", content=body, headers=headers)
    assert answer.headers["content-type"] == "application/msgpack"
    array = msgpack.unpackb(answer.content)["observations"]
    assert (array["dtype"], array["shape"], len(array["data"])) == ("float32", [1, 3], 12)
    assert plain["observations"] == [[0, 0, 0]]
    as_json = {**headers, "Accept": "application/json"}
    answer = ask.client.post("episode/vectorized_reset", content=body, headers=as_json)
    assert answer.json()["observations"] == [[0, 2, 0]]


def test_reaching_into_environments(ask: Asking) -> None:
    ask.begin("Counting", num_envs=2, seed=3)
    call = ask.ask("call", operation="call", name="describe", args=["No."], kwargs={"mark": "!"})
    assert call.json() == {"results": ["No. 3!", "No. 4!"]}
    ask.ask("call", operation="set_attr", name="length", values=[1, 7])
    assert ask.ask("call", operation="get_attr", name="length").json() == {"results": [1, 7]}
    frame = ask.ask("call", operation="render", episode_ids=ask.episodes[1:]).json()["results"][0]
    assert (frame["dtype"], frame["shape"]) == ("uint8", [4, 6, 3])


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "message", "status"),
    [
        ("create", {"env_id": "CartPole-v2"}, 404),
        ("create", {}, 422),
        ("create", {"env_id": "Counting", "kwargs": {"env_seed": 1}}, 403),
        ("create", {"env_id": "Counting", "num_envs": 0}, 422),
        ("create", {"env_id": "Counting", "num_envs": 257}, 429),
        ("create", {"env_id": "Counting", "num_envs": 1e400}, 400),
        ("create", {"env_id": "Counting", "seed": -1}, 422),
        ("create", {"env_id": "Counting", "more": 1}, 422),
        ("create", {"env_id": "Counting", "kwargs": {"length": [{"$": "no such"}]}}, 422),
        ("create", {"env_id": "\ud800"}, 422),
        ("vectorized_reset", {"episode_ids": [str(uuid.UUID(int=7))]}, 404),
        ("vectorized_reset", {"episode_ids": ["7", "7"]}, 422),
        ("vectorized_reset", {"episode_ids": []}, 422),
        ("vectorized_reset", {"episode_ids": [0]}, 422),
        ("vectorized_reset", {"episode_ids": ["x" * 65]}, 422),
        ("vectorized_reset", {"seed": [1, 2, 3]}, 422),
        ("vectorized_reset", {"seed": 2**70}, 422),
        ("vectorized_reset", {"options": {"a": {"$": 3}}}, 422),
        ("vectorized_step", {"actions": [1, 1]}, 422),
        ("vectorized_step", {"actions": [0.5]}, 422),
        ("vectorized_step", {"actions": [None]}, 422),
        ("vectorized_step", {"actions": ["NaN"]}, 422),
        ("vectorized_step", {"actions": [2**70]}, 422),
        ("vectorized_step", {"actions": {"$": "array"}}, 422),
        ("vectorized_step", {"actions": [1], "steps": 1001}, 422),
        ("vectorized_step", {"actions": [1], "steps": 0}, 422),
        ("vectorized_step", {}, 422),
        ("call", {"operation": "call", "name": "close"}, 403),
        ("call", {"operation": "get_attr", "name": "__class__"}, 403),
        ("call", {"operation": "exec", "name": "describe"}, 422),
        ("call", {"operation": "set_attr", "name": "length", "values": []}, 422),
        ("call", {"operation": "call", "name": "describe"}, 409),
    ],
)
def test_what_cannot_be_is_refused_and_harms_nothing(
    ask: Asking, path: str, message: dict[str, Any], status: int
) -> None:
    ask.begin("Counting")
    text = json.dumps({"session_id": ask.id, **message})
    headers = {"Content-Type": "application/json"}
    refused = ask.client.post(f"episode/{path}", content=text, headers=headers)
    assert refused.status_code == status, refused.text
    assert refused.json()["error"]["message"]
    step = ask.ask("vectorized_step", actions=[4]).json()
    assert step["observations"] == [[[0, 0, 1]]], "the episode goes on"


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"[1]", "application/json", 422),
        (b'{"session_id": 1e400}', "application/json", 422),
        (b'{"session_id": NaN}', "application/json", 400),
        (b'{"session_id": "\xff"}', "application/json", 400),
        (b'{"session_id": "\\ud800", "actions": 1}', "application/json", 422),
        (b"[" * 30_000, "application/json", 400),
        (b'{"session_id": ' + b"9" * 9000 + b"}", "application/json", 400),
        (b"\x91" * 30_000, "application/msgpack", 400),
        (msgpack.packb({"session_id": b"x", "actions": 1}), "application/msgpack", 422),
        (msgpack.packb({"session_id": "x" * 65, "actions": 1}), "application/msgpack", 422),
        (msgpack.packb(msgpack.ExtType(1, b"")), "application/msgpack", 400),
        (msgpack.packb({b"session_id": 1}), "application/msgpack", 422),
        (b"{}", "", 415),
        (b"a=1", "application/x-www-form-urlencoded", 415),
        (b"{}", "text/plain", 415),
    ],
)
def test_a_body_that_is_no_message_is_refused(
    server: Server, content: bytes, content_type: str, status: int
) -> None:
    url = f"{server.url}{API_PREFIX}/episode/vectorized_step"
    answer = httpx.post(url, content=content, headers={"Content-Type": content_type})
    assert answer.status_code == status, answer.text


def test_other_routes_and_methods_are_refused_in_the_same_form(server: Server) -> None:
    assert httpx.get(f"{server.url}/nothing").status_code == 404
    answer = httpx.get(f"{server.url}{API_PREFIX}/episode/vectorized_step")
    assert (answer.status_code, code_of(answer)) == (405, "route")


def test_a_session_without_episodes_says_so(ask: Asking) -> None:
    answer = ask.ask("vectorized_reset")
    assert (answer.status_code, code_of(answer)) == (409, "episodes")


# --- tokens -------------------------------------------------------------------------------------


def test_without_a_token_of_its_own_the_server_only_tells_its_version(serve: ServerMaker) -> None:
    server = serve(tokens=("first-token", "second-token"))
    version = httpx.get(f"{server.url}{API_PREFIX}/version")
    assert version.json()["name"] == "xuance_envs"
    for header in (None, "Bearer wrong", "Bearer", "first-token", "Basic first-token", "Bearer é"):
        headers = {} if header is None else {"Authorization": header.encode()}
        for method, path in (
            ("POST", "session/create"),
            ("POST", "episode/create"),
            ("POST", "episode/vectorized_reset"),
            ("POST", "episode/vectorized_step"),
            ("POST", "episode/call"),
            ("POST", "episode/states"),
            ("DELETE", "session/x"),
        ):
            answer = httpx.request(method, f"{server.url}{API_PREFIX}/{path}", headers=headers)
            assert answer.status_code == 401, (header, path)
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert "first-token" not in answer.text
    assert Asking(server, "second-token").close().status_code == 200


def test_another_tokens_session_is_as_if_there_were_none(serve: ServerMaker) -> None:
    server = serve(tokens=("first-token", "second-token"))
    first, second = Asking(server, "first-token"), Asking(server, "second-token")
    first.ask("create", env_id="Counting")
    stolen = second.post("episode/vectorized_reset", session_id=first.id)
    absent = second.post("episode/vectorized_reset", session_id="x" * 24)
    assert stolen.status_code == absent.status_code == 404
    assert stolen.content == absent.content
    assert second.client.delete(f"session/{first.id}").status_code == 404
    assert first.ask("vectorized_reset").status_code == 200


def test_tokens_come_from_a_file_and_from_the_environment(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tokens"
    file.write_text("one\n\n  two \n", encoding="utf-8")
    monkeypatch.setenv("XUANCE_ENVS_TOKENS", "three, four,")
    tokens = Tokens.load(file)
    assert len(tokens) == 4
    owners = {tokens.owner(f"Bearer {name}".encode()) for name in ("one", "two", "three", "four")}
    assert len(owners) == 4
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match="expected one token per line"):
        Tokens.load(file)
    with pytest.raises(ValueError, match="visible ASCII"):
        Tokens(["a b"])


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::"])
def test_nobody_beyond_the_machine_is_served_without_tokens(host: str) -> None:
    settings = Settings(Catalogue({"Counting": CountingEnv}))
    with pytest.raises(ValueError, match="without tokens"):
        Server(settings, host, 0)


def test_a_server_starts_once(serve: ServerMaker) -> None:
    server = serve()
    for start in (server.start, server.run):
        with pytest.raises(RuntimeError, match="already started: create another"):
            start()
    Asking(server).close()


def test_the_access_log_has_requests_but_no_tokens(
    serve: ServerMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "xuance_envs")
    server = serve(tokens=("very-secret",))
    Asking(server, "very-secret").close()
    httpx.get(f"{server.url}/healthz?token=very-secret")
    httpx.get(f"{server.url}/line%0Abreak")
    server.close()
    lines = [r.getMessage() for r in caplog.records if r.name == "xuance_envs.access"]
    assert any("POST /api/v1/session/create 200" in line for line in lines)
    assert any("GET /healthz 200" in line for line in lines)
    assert not any("very-secret" in line or "\n" in line for line in lines)


def test_no_log_has_session_ids(serve: ServerMaker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "xuance_envs")
    server = serve()
    ask = Asking(server)
    path = f"{API_PREFIX}/session/{ask.id}"
    for method, wrong in (
        *(("GET", path), ("POST", path), ("DELETE", f"/x{path}/"), ("DELETE", f"{path}.json")),
        ("DELETE", f"/%2f{path[1:]}"),
    ):
        assert httpx.request(method, f"{server.url}{wrong}").status_code >= 400
    assert ask.close().status_code == 200
    server.close()
    assert ask.id not in caplog.text
    assert "DELETE /api/v1/session/* 200" in caplog.text


# --- limits -------------------------------------------------------------------------------------


def test_the_number_of_sessions_is_limited(serve: ServerMaker) -> None:
    server = serve(tokens=("a", "b", "c"), sessions=3, sessions_per_token=2)
    sessions = [Asking(server, "a"), Asking(server, "a")]
    refused = sessions[0].post("session/create")
    assert (refused.status_code, code_of(refused)) == (429, "sessions")
    assert "2 sessions per token" in refused.text
    Asking(server, "b")
    headers = {"Authorization": "Bearer c"}
    refused = httpx.post(f"{server.url}{API_PREFIX}/session/create", json={}, headers=headers)
    assert refused.status_code == 429
    assert "3 sessions at the same time" in refused.text
    sessions[0].close()
    assert sessions[1].post("session/create").status_code == 200


def test_a_layout_does_not_change_a_reply_in_json(serve: ServerMaker) -> None:
    ask = Asking(serve()).begin("Counting", auto_reset=True)
    step = ask.ask("vectorized_step", actions=[1], layout=0).json()
    assert step["rewards"] == [1.0]
    assert step["infos"]
    assert "frame" not in step


def test_the_number_of_environments_is_limited(serve: ServerMaker) -> None:
    server = serve(environments=5, environments_per_session=3)
    one, two = Asking(server), Asking(server)
    assert one.ask("create", env_id="Counting", num_envs=4).status_code == 429
    assert one.ask("create", env_id="Counting", num_envs=3).status_code == 200
    refused = one.ask("create", env_id="Counting", num_envs=1)
    assert "environments per session to 3: 3 in use, 1 more" in refused.text
    assert two.ask("create", env_id="Counting", num_envs=3).status_code == 429
    assert two.ask("create", env_id="Counting", num_envs=2).status_code == 200
    one.close()
    assert two.ask("create", env_id="Counting", num_envs=1).status_code == 200


def test_the_size_of_a_request_is_limited_also_where_it_does_not_say_it(serve: ServerMaker) -> None:
    server = serve(body=1000)
    url = f"{server.url}{API_PREFIX}/session/create"
    headers = {"Content-Type": "application/json"}
    assert httpx.post(url, content=b" " * 998 + b"{}", headers=headers).status_code == 200
    refused = httpx.post(url, content=b" " * 1001, headers=headers)
    assert (refused.status_code, code_of(refused)) == (413, "body")

    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    assert httpx.post(url, content=pieces(), headers=headers).status_code == 413


def test_the_size_of_an_answer_is_limited(serve: ServerMaker) -> None:
    in_json, in_msgpack = 100 * 3 * 25, 100 * 3 * 4
    for accept, reply in (("application/json", in_json), ("application/msgpack", in_msgpack)):
        ask = Asking(serve(reply=reply))
        ask.ask("create", env_id="Counting", num_envs=2, kwargs={})
        ask.client.headers["accept"] = accept
        ask.ask("vectorized_reset")
        for steps, status in ((51, 413), (50, 200), (51, 413)):
            answer = ask.ask("vectorized_step", actions=[1, 1], steps=steps)
            assert answer.status_code == status


def test_a_request_that_does_not_arrive_is_given_up(serve: ServerMaker) -> None:
    server = serve(upload=0.3)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        head = f"POST {API_PREFIX}/session/create HTTP/1.1\r\nHost: localhost\r\n"
        head += "Content-Type: application/json\r\nContent-Length: 10\r\n\r\n"
        connection.sendall(f"{head}{{".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_requests_of_a_session_wait_for_their_turn_but_not_too_many(
    background: Background, serve: ServerMaker, impatient: None
) -> None:
    ask = Asking(serve(requests_per_session=1)).begin("Mischievous")
    hanging = background(ask.ask, "vectorized_step", actions=[4])
    deadline = time.monotonic() + 20
    while (refused := ask.ask("vectorized_reset", episode_ids=["9"])).status_code != 429:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert code_of(refused) == "waiting"
    ask.close()
    assert hanging.result().status_code == 404, "the session was closed under it"


def test_a_session_that_is_not_used_expires(serve: ServerMaker) -> None:
    server = serve(idle=1.2)
    ask = Asking(server)
    ask.ask("create", env_id="Counting", num_envs=3)
    for _ in range(5):
        time.sleep(0.3)
        assert ask.ask("vectorized_reset").status_code == 200, "it is in use"
    counts = lambda: httpx.get(f"{server.url}/status.json").json()  # noqa: E731
    assert counts()["environments"] == 3
    wait_until(lambda: counts()["sessions"] == 0)
    assert counts()["environments"] == 0
    gone = ask.ask("vectorized_reset")
    assert gone.status_code == 404
    assert "after 1.2 s without a request" in gone.text


# --- requests that are repeated -----------------------------------------------------------------


def test_a_repeated_request_is_answered_again_and_not_done_again(ask: Asking) -> None:
    ask.ask("create", env_id="Counting", sequence=1)
    ask.ask("vectorized_reset", sequence=2)
    first = ask.ask("vectorized_step", actions=[3], sequence=3)
    again = ask.ask("vectorized_step", actions=[3], sequence=3)
    assert again.content == first.content
    assert ask.ask("vectorized_step", actions=[3], sequence=4).json()["observations"] == [
        [[0, 0, 2]]
    ]


def test_a_repeated_refusal_is_refused_again(ask: Asking) -> None:
    ask.ask("create", env_id="Counting", sequence=1)
    ask.ask("vectorized_reset", sequence=2)
    first = ask.ask("vectorized_step", actions=["x"], sequence=3)
    assert first.status_code == 422
    assert ask.ask("vectorized_step", actions=["x"], sequence=3).content == first.content


def test_a_number_is_for_one_request_only_and_numbers_grow(ask: Asking) -> None:
    ask.ask("create", env_id="Counting", sequence=3)
    ask.ask("vectorized_reset", sequence=5)
    for path, message in (("vectorized_reset", {"seed": 1}), ("vectorized_step", {"actions": [1]})):
        refused = ask.ask(path, sequence=5, **message)
        assert (refused.status_code, code_of(refused)) == (409, "sequence")
    assert ask.ask("vectorized_reset", sequence=4).status_code == 409
    assert ask.ask("vectorized_reset", sequence=6).status_code == 200


def test_a_repetition_while_the_first_is_still_under_way_waits_for_it(
    ask: Asking, background: Background
) -> None:
    ask.ask("create", env_id="CartPole", num_envs=200, sequence=1)
    ask.ask("vectorized_reset", seed=0, sequence=2)
    message = {"actions": [0] * 200, "steps": 100, "sequence": 3}
    asked = [background(ask.ask, "vectorized_step", **message) for _ in range(3)]
    (answer,) = {each.result().content for each in asked}
    assert b'"step":' in answer


# --- environments that fail ---------------------------------------------------------------------


def test_an_environment_that_is_never_made_is_given_up(serve: ServerMaker) -> None:
    ask = Asking(serve({"SlowStart": SlowStartEnv}, start=0.5))
    refused = ask.ask("create")
    assert (refused.status_code, code_of(refused)) == (409, "worker_timeout")
    assert ask.close().status_code == 200


def test_a_server_that_ends_while_environments_are_made_has_not_failed(
    background: Background,
    serve: ServerMaker,
    impatient: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = serve({"SlowStart": SlowStartEnv})
    creating = background(Asking(server).ask, "create")
    time.sleep(0.5)
    server.close()
    creating.exception()  # whether it was answered or not
    wait_until(lambda: not multiprocessing.active_children())
    assert "Traceback" not in caplog.text
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.slow("waits for slow requests")
@pytest.mark.parametrize("grace", [None, "1"])
def test_a_server_that_ends_finishes_the_requests_it_has_begun(
    background: Background, grace: str | None
) -> None:
    options = [] if grace is None else ["--shutdown-grace", grace]
    served = ServedProcess("--env", "remote_envs:Slow-v0", *options, PYTHONPATH=SHARED)
    with httpx.Client(base_url=served.url + API_PREFIX, timeout=60) as client:
        message = {"session_id": client.post("session/create", json={}).json()["session_id"]}
        for path in ("create", "vectorized_reset"):
            assert client.post(f"episode/{path}", json=message).status_code == 200
        asked = {**message, "actions": [0], "steps": 140}  # seven seconds
        stepping = background(client.post, "episode/vectorized_step", json=asked)
        time.sleep(0.5)
        served.close()
        if grace is None:
            assert stepping.result().status_code == 200
        else:
            assert isinstance(stepping.exception(), httpx.TransportError)


def test_a_server_that_ends_ends_what_hangs(
    background: Background, serve: ServerMaker, impatient: None
) -> None:
    server = serve()
    ask = Asking(server).begin("Mischievous")
    hanging = background(ask.ask, "vectorized_step", actions=[4])
    time.sleep(0.3)
    start = time.monotonic()
    server.close()
    hanging.exception()
    assert time.monotonic() - start < 40


# --- what monitors read -------------------------------------------------------------------------


def test_health_and_metrics_are_to_be_had_without_a_token(serve: ServerMaker) -> None:
    server = serve(tokens=("secret",))
    ask = Asking(server, "secret").begin("Counting", num_envs=2)
    ask.ask("vectorized_step", actions=[1, 1], steps=2)
    ask.client.request("PROPFIND", "/")
    assert httpx.get(f"{server.url}/healthz").json() == {"status": "ok"}
    answer = httpx.get(f"{server.url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    for line in (
        "xuance_envs_sessions 1",
        "xuance_envs_max_sessions 64",
        "xuance_envs_environments 2",
        "xuance_envs_steps_total 4",
        'xuance_envs_step_seconds_bucket{le="+Inf"} 1',
        "xuance_envs_step_seconds_count 1",
        'xuance_envs_requests_total{method="POST",status="200"} 4',
    ):
        assert line in lines
    assert 'method="other"' in answer.text
    assert ask.id not in answer.text


def test_the_interface_is_described(server: Server) -> None:
    described = httpx.get(f"{server.url}/openapi.json").json()
    step = described["paths"][f"{API_PREFIX}/episode/vectorized_step"]["post"]
    schema = step["requestBody"]["content"]["application/msgpack"]["schema"]
    assert set(schema["required"]) == {"session_id", "actions"}
    assert described["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert {
        f"{API_PREFIX}/version",
        f"{API_PREFIX}/session/create",
        f"{API_PREFIX}/session/{{session_id}}",
    } <= set(described["paths"])
