"""States that a server keeps: results, lifetimes and limits."""

from __future__ import annotations

import gc
import pickle
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from interrupts import Instant
from serving import TESTS, Asking, ServedProcess, ServerMaker, wait_until

from xuance_envs import DummyVecEnv, EnvStates, RemoteVecEnv, errors
from xuance_envs.engine.system.current import system
from xuance_envs.remote.client import (
    StudentGymEnvVectorized,
    create_student_gym_env_vectorized,
    remote_session,
)
from xuance_envs.remote.client.api_client import ApiClient
from xuance_envs.remote.server import Server
from xuance_envs.remote.server.hosting import sessions
from xuance_envs.remote.server.hosting.env_host import EnvHost


def student(server: Server, num_envs: int, step_size: int, **options: Any) -> Any:
    return create_student_gym_env_vectorized(
        num_envs, step_size, "any", base_url=server.url, env_id="Counting", **options
    )


def cart_poles(server: Server, num_envs: int) -> RemoteVecEnv:
    return RemoteVecEnv(server.url, "CartPole", num_envs, user_token="any", seed=1)


def played(env: StudentGymEnvVectorized, actions: list[list[int]]) -> list[Any]:
    found = []
    for each in actions:
        found.append((*env.step(each), env.get_terminated_env_indices()))
    return found


# --- what a student's environments return -------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1, 3])
def test_students_go_back(server: Server, before: int) -> None:
    actions = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    with student(server, 3, 1) as env:
        first = env.reset(seed=3)
        steps = played(env, actions[:before])
        state = env.save_state()
        expected = played(env, [[9, 9, 9]] * 2)
        env.reset()
        obs, infos = env.load_state(state)
        shown = (np.stack([each[-1] for each in steps[-1][0]]), steps[-1][4]) if steps else first
        assert_same((obs, infos), shown)
        assert env.get_active_count() == (0 if before == 3 else 3)
        assert_same(played(env, [[9, 9, 9]] * 2), expected)


def test_students_go_back_with_some(server: Server) -> None:
    with student(server, 3, 5) as env:
        env.reset(seed=3)
        env.reset_specific_envs([1])
        state = env.save_state([2, 1])
        env.step([1, 1, 1])
        assert env.get_terminated_env_indices() == [0, 1, 2]
        obs, infos = env.load_state(state, env_ids=[0, 1])
        assert_same(obs, np.float32([[5, 0, 0], [4, 1, 0]]))
        assert len(infos) == 2
        assert env.get_terminated_env_indices() == [2]
        assert_same(env.load_state(state[1], env_ids=[2])[0], np.float32([[4, 1, 0]]))
        nothing = env.load_state(env.save_state([]), env_ids=[])
        assert (nothing[0].shape, nothing[1]) == ((0, 3), [])


def test_students_clone(server: Server) -> None:
    with student(server, 4, 1) as env:
        env.reset(seed=3)
        env.step([1, 2, 3, 4])
        played(env, [[1] * 4] * 2)
        env.reset_specific_envs([0, 1])
        obs, infos = env.clone_state([0, 3], [3, 0])
        assert_same(obs, np.float32([[3, 1, 0], [6, 0, 3]]))
        assert (infos[0], infos[1]["step"]) == ({}, 2)
        assert env.get_terminated_env_indices() == [0, 2]
        env.clone_state(1, [0, 2, 3], fork_rng=True)
        found = played(env, [[2] * 4] * 3)
        for step in found:
            assert_same([each.tolist() for each in step[0]], [step[0][1].tolist()] * 4)
        assert env.get_terminated_env_indices() == [0, 1, 2, 3]


def test_students_are_told_what_cannot_be(server: Server) -> None:
    with student(server, 2, 1) as env, student(server, 2, 1) as other:
        with pytest.raises(errors.RemoteConflictError, match="call reset first"):
            env.save_state()
        env.reset_specific_envs([0])
        with pytest.raises(errors.RemoteConflictError, match="reset first: environment 1"):
            env.clone_state(1, 0)
        env.clone_state(0, 1)
        state = env.save_state()
        other.reset()
        for ask, error, text in (
            (lambda: env.load_state(state[0]), ValueError, "expected states of 2 .*, got 1"),
            (lambda: env.load_state(b""), TypeError, "expected an EnvStates, got bytes"),
            (lambda: other.load_state(state), errors.StateError, "the same session"),
            (lambda: env.clone_state(0, [1, 1]), ValueError, "at most once"),
        ):
            with pytest.raises(error, match=text):
                ask()
        env.step([1, 1])
    with pytest.raises(errors.ClosedVecEnvError):
        env.save_state()


def test_an_interrupted_save_keeps_its_states_if_it_is_repeated(server: Server) -> None:
    came, number = True, 0
    with student(server, 2, 1) as env:
        env.reset(seed=3)
        while came:
            state = None
            with Instant(number, [remote_session.__file__]) as instant:
                state = env.save_state()
            state = state or env.save_state()
            assert env.load_state(state)[0].tolist() == [[3, 0, 0], [4, 0, 0]], instant.place
            came, number = instant.came, number + 1
    assert number > 20


@pytest.mark.parametrize("load", ["load_state", "clone_state"])
def test_a_load_whose_reply_is_lost_closes_the_environments(
    server: Server, monkeypatch: pytest.MonkeyPatch, load: str
) -> None:
    original = ApiClient._send_with_retries

    def lose(self: ApiClient, *args: Any) -> Any:
        original(self, *args)
        raise errors.RemoteUnreachableError("no reply", self.server)

    with RemoteVecEnv(server.url, "Counting", 2, seed=3) as envs:
        envs.reset()
        arguments = (envs.save_state(),) if load == "load_state" else (0, 1)
        envs.step([1, 1])
        with monkeypatch.context() as patch:
            patch.setattr(ApiClient, "_send_with_retries", lose)
            with pytest.raises(errors.RemoteUnreachableError):
                getattr(envs, load)(*arguments)
        assert envs.closed, "buf_obs may differ from the environments' states"


# --- handles ------------------------------------------------------------------------------------


def test_a_handle_tells_its_size_and_gives_no_bytes(server: Server, tmp_path: Path) -> None:
    with cart_poles(server, 3) as envs:
        envs.reset()
        state = envs.save_state()
        assert len(state) == 3
        assert 3 * 1000 < state.nbytes < 3 * 10_000
        assert state.nbytes == sum(one.nbytes for one in state)
        path = tmp_path / "state.xenvs"
        for ask in (state.to_bytes, lambda: state.save(path), lambda: pickle.dumps(state[1])):
            with pytest.raises(errors.StateError, match="cannot leave the server"):
                ask()
        assert not path.exists()
        more = state.adding("mine", [1, 2, 3])
        assert more[[2, 0]].extra("mine") == [3, 1]
        envs.load_state(more)


def test_no_state_goes_from_one_place_to_another(server: Server) -> None:

    with cart_poles(server, 1) as envs, cart_poles(server, 1) as others:
        fns = [_cart_pole]
        with DummyVecEnv(fns) as here:
            for each in (envs, others, here):
                each.reset()
            state, own = envs.save_state(), here.save_state()
            for ask, text in (
                (lambda: others.load_state(state), "from another session cannot be loaded"),
                (lambda: envs.load_state(own), "from the client"),
                (lambda: here.load_state(state), "cannot leave the server"),
                (lambda: envs.load_state(EnvStates.joined([own])), "from the client"),
            ):
                with pytest.raises(errors.StateError, match=text):
                    ask()
            for each in (envs, others, here):
                each.step([1])


def _cart_pole() -> Any:
    import gymnasium

    return gymnasium.make("CartPole-v1")


def test_what_nobody_holds_is_dropped(serve: ServerMaker) -> None:
    server = serve(states_per_session=4)
    with cart_poles(server, 2) as envs:
        envs.reset()
        first, second = envs.save_state(), envs.save_state()
        with pytest.raises(
            errors.RemoteLimitError, match=r"limits environment states .* to 4: 4 in use, 1"
        ):
            envs.save_state([0])
        part = first[1]
        del first
        third = envs.save_state([1])
        with pytest.raises(errors.RemoteLimitError, match="4 in use"):
            envs.save_state([0])
        envs.load_state(part, env_ids=[0])
        envs.load_state(third, env_ids=[1])
        del part
        for _ in range(20):  # even in a reference cycle
            part = [envs.save_state([0])]
            part.append(part)
            del part
            gc.collect()
        envs.load_state(second)
        envs.step([0, 0])


def test_a_step_tells_what_nobody_holds(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[int]] = []
    with cart_poles(server, 2) as envs:
        session = envs._session
        drop = session._drop_states
        monkeypatch.setattr(
            session, "_drop_states", lambda: (told.append(list(session.released)), drop())
        )
        envs.reset()
        state = envs.save_state()
        for _ in range(2):
            envs.step([0, 0])
        assert told == []
        del state
        for _ in range(3):
            envs.step([0, 0])
        assert len(told) == 1
        assert len(told[0]) == 2


def test_dropping_that_fails_is_repeated(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with cart_poles(server, 2) as envs:
        envs.reset()
        connection, request = envs._session._connection, envs._session._connection.request

        def refusing(method: str, path: str, *rest: Any, **how: Any) -> Any:
            if path.endswith("states"):
                raise errors.RemoteLimitError("later", server.url, 429)
            return request(method, path, *rest, **how)

        state = envs.save_state()
        del state
        monkeypatch.setattr(connection, "request", refusing)
        envs.step([0, 0])
        assert len(envs._session.released) == 2
        monkeypatch.undo()
        envs.step([0, 0])
        assert not envs._session.released


def test_an_interrupted_drop_loses_no_number(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        session.released.append(100)  # a finalizer, meanwhile
        raise KeyboardInterrupt

    with cart_poles(server, 2) as envs:
        envs.reset()
        session, state = envs._session, envs.save_state()
        del state
        numbers = set(session.released)
        monkeypatch.setattr(session, "_post", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session._drop_states()
        assert set(session.released) == numbers | {100}


# --- the server ---------------------------------------------------------------------------------


def test_bytes_are_limited(serve: ServerMaker) -> None:
    server = serve(state_bytes_per_session=30_000)
    with cart_poles(server, 20) as envs:
        envs.reset()
        held = [envs.save_state([0])]
        with pytest.raises(
            errors.RemoteLimitError, match=r"limits bytes of environment states .* to 30000"
        ):
            envs.save_state()
        held += [envs.save_state(range(5)) for _ in range(2)]
        envs.step([0] * 20)
        assert sum(state.nbytes for state in held) > 11 * 1000


@pytest.fixture
def asking(server: Server) -> Iterator[Callable[[], Asking]]:
    made: list[Asking] = []

    def asking() -> Asking:
        made.append(Asking(server))
        return made[-1]

    yield asking
    for each in made:
        each.close()


def test_a_state_is_asked_for_by_hand(asking: Callable[[], Asking]) -> None:
    ask = asking()
    ask.ask("create", env_id="Counting", num_envs=2)
    ask.ask("vectorized_reset", seed=5)
    kept = ask.ask("states", operation="save").json()
    assert len(kept["states"]) == len(kept["bytes"]) == 2
    assert all(size > 100 for size in kept["bytes"])
    ask.ask("vectorized_step", actions=[1, 1], steps=2)
    two, one = kept["states"][::-1], [ask.episodes[0]]
    back = ask.ask("states", operation="load", states=two)
    assert back.json()["observations"] == [[6, 0, 0], [5, 0, 0]]
    ask.ask("vectorized_step", actions=[1], steps=2, episode_ids=one)
    back = ask.ask("states", operation="clone", episode_ids=one, sources=ask.episodes[1:])
    assert back.json()["observations"] == [[5, 0, 0]]
    for message, status, text in (
        ({"operation": "load", "states": two[:1]}, 422, "expected 2 states, got 1"),
        ({"operation": "load", "states": [two[0], 99]}, 404, "no state 99"),
        ({"operation": "load", "states": [0, -1]}, 422, "states"),
        (
            {"operation": "clone", "episode_ids": one},
            422,
            "expected one source, or one per episode",
        ),
        ({"operation": "upload"}, 422, "operation"),
        ({"operation": "save", "states": [True]}, 422, "states"),
    ):
        answer = ask.ask("states", **message)
        assert (answer.status_code, text in answer.text) == (status, True), (message, answer.text)
    dropped = ask.ask("states", operation="drop", states=[two[0], two[0], 99])
    assert dropped.json() == {"dropped": 1}
    assert ask.ask("states", operation="load", states=two).status_code == 404
    other = asking()
    other.ask("create", env_id="Counting", num_envs=2)
    assert other.ask("states", operation="load", states=kept["states"]).status_code == 404


def test_episodes_of_another_creation_take_them_if_they_are_alike(
    asking: Callable[[], Asking],
) -> None:
    ask = asking()
    ask.ask("create", env_id="Counting")
    ask.ask("create", env_id="Counting")
    ask.ask("create", env_id="CartPole")
    first, second, other = ([episode] for episode in ask.episodes)
    ask.ask("vectorized_reset", seed=5, episode_ids=first)
    kept = ask.ask("states", operation="save", episode_ids=first).json()["states"]
    back = ask.ask("states", operation="load", episode_ids=second, states=kept)
    assert back.json()["observations"] == [[5, 0, 0]]
    step = ask.ask("vectorized_step", actions=[1], episode_ids=second)
    assert step.json()["observations"] == [[[5, 0, 1]]]
    refused = ask.ask("states", operation="load", episode_ids=other, states=kept)
    assert refused.status_code == 409
    told = refused.json()["error"]
    assert told["code"] == "state_mismatch"
    assert told["details"]["what"] == "wrappers"
    assert told["details"]["saved"] != told["details"]["here"]
    clone = ask.ask("states", operation="clone", episode_ids=second, sources=first)
    assert clone.status_code == 422


def test_a_request_that_is_repeated_saves_once(serve: ServerMaker) -> None:
    ask = Asking(serve(states_per_session=2)).begin("Counting", num_envs=2)
    answers = [ask.ask("states", operation="save", sequence=7).json() for _ in range(3)]
    assert answers == [answers[0]] * 3


def saved(ask: Asking, *episodes: str) -> Any:
    """Save the states of episodes, by default of all; return the reply's status and content."""
    answer = ask.ask("states", operation="save", episode_ids=episodes or None)
    return answer.status_code, answer.json()


def heavy(server: Server | ServedProcess, num_envs: int, token: str | None = None) -> Asking:
    """Create environments with states of 16 MiB."""
    ask = Asking(server, token)
    ask.ask("create", env_id="Heavy", num_envs=num_envs, auto_reset=True)
    ask.ask("vectorized_reset", seed=5)
    return ask


@pytest.mark.skipif(not system.HAS_GUARDIANS, reason="not on this system")
def test_states_never_enter_the_servers_memory() -> None:
    def peak() -> int:
        status = Path(f"/proc/{server.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) // 1024

    server = ServedProcess(*TESTS)
    ask = heavy(server, 16)
    (other,) = ask.ask("create", env_id="Heavy", auto_reset=True).json()["episode_ids"]
    ask.ask("vectorized_reset", episode_ids=[other], seed=1)
    before = peak()
    status, refused = saved(ask, *ask.episodes[:16])
    assert (status, refused["error"]["code"]) == (429, "states")
    assert (
        "limits bytes of environment states per session to 67108864" in refused["error"]["message"]
    )
    for _ in range(3):
        status, kept = saved(ask, *ask.episodes[:3])
        assert status == 200
        assert min(kept["bytes"]) > 2**24
        assert saved(ask, *ask.episodes[:2])[0] == 429
        message = {"operation": "load", "states": kept["states"][2:], "episode_ids": [other]}
        assert ask.ask("states", **message).json()["observations"] == [[7, 0, 0]]
        ask.ask("states", operation="drop", states=kept["states"])
    assert peak() - before < 64, "the states refused have 256 MiB, those kept 48"
    server.close()


def test_states_are_limited_per_token_and_in_total(serve: ServerMaker) -> None:
    def refusal(ask: Asking) -> str:
        status, answer = saved(ask)
        assert (status, answer["error"]["code"]) == (429, "states")
        return str(answer["error"]["message"])

    limits = {"states_per_token": 3, "states": 5, "state_bytes_per_token": 40 * 2**20}
    server = serve(tokens=("a", "b", "c"), **limits)
    first, second, large = (Asking(server, "a"), Asking(server, "a"), heavy(server, 3, "b"))
    last = Asking(server, "c")
    for ask in (first, second, last):
        ask.begin("Counting", num_envs=2)
    status, kept = saved(first)
    assert status == 200
    assert "limits environment states per token to 3: 2 in use, 2 more" in refusal(second)
    assert "limits bytes of environment states per token to" in refusal(large)
    assert saved(large, *large.episodes[:2])[0] == 200
    assert "limits environment states at the same time to 5: 4 in use, 2 more" in refusal(last)
    assert first.ask("states", operation="drop", states=kept["states"]).json() == {"dropped": 2}
    assert saved(last)[0] == 200
    large.close()
    assert saved(second)[0] == 200


def test_states_saved_at_the_same_time_are_limited(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(*arguments: Any) -> list[int]:
        time.sleep(0.3)
        return object_sizes(*arguments)

    object_sizes = EnvHost._object_sizes
    monkeypatch.setattr(EnvHost, "_object_sizes", slowly)
    server = serve(states_per_token=3)
    asking = [Asking(server), Asking(server)]
    for ask in asking:
        ask.begin("Counting", num_envs=2)
    with ThreadPoolExecutor(2) as threads:
        statuses = [status for status, _ in threads.map(saved, asking)]
    assert sorted(statuses) == [200, 429]
    for ask in asking:
        ask.close()


def test_states_end_with_the_process_that_keeps_them(serve: ServerMaker) -> None:
    ask = heavy(serve(states=2), 1)
    (number,) = saved(ask)[1]["states"]
    other = ask.ask("create", env_id="Heavy", auto_reset=True).json()["episode_ids"]
    ask.ask("vectorized_reset", episode_ids=other)
    assert saved(ask, *other)[0] == 200
    assert saved(ask, *other)[0] == 429
    died = ask.ask("vectorized_step", actions=[2], episode_ids=ask.episodes[:1])
    assert died.json()["error"]["code"] == "worker_died"
    lost = ask.ask("states", operation="load", states=[number], episode_ids=other)
    assert (lost.status_code, lost.json()["error"]["code"]) == (404, "states")
    assert "the worker process that kept it may have ended" in lost.json()["error"]["message"]
    assert ask.ask("states", operation="drop", states=[number]).json() == {"dropped": 0}
    assert saved(ask, *other)[0] == 200


@pytest.mark.skipif(not system.HAS_GUARDIANS, reason="not on this system")
def test_the_memory_of_a_token_includes_its_states(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "USAGE_INTERVAL", 0.2)
    limits = {"memory_per_token": 200 * 2**20, "state_bytes_per_session": 2**30}
    ask = heavy(serve(tokens=("a",), **limits), 1, "a")
    assert saved(ask)[0] == 200
    time.sleep(1.0)
    assert ask.ask("vectorized_reset").status_code == 200
    for _ in range(13):  # 224 MiB in all
        assert saved(ask)[0] in (200, 429)
    wait_until(lambda: ask.ask("vectorized_reset").status_code == 429)
    assert "MiB of memory per token" in ask.ask("vectorized_reset").text
