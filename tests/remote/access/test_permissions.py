"""Permissions of clients, and the infos that they receive."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import numpy as np
import pytest
from remote_envs import CountingEnv
from serving import Asking, ServerMaker

from xuance_envs import errors
from xuance_envs.remote.client import create_student_gym_env_vectorized
from xuance_envs.remote.remote_vec_env import RemoteVecEnv
from xuance_envs.remote.server.access import Permissions, allowed_values


class InfoFilter(CountingEnv):
    """Environment whose infos have secret keys and values that cannot be sent."""

    def reset(self, **arguments: Any) -> Any:
        return super().reset(**arguments)[0], self.told()

    def step(self, action: Any) -> Any:
        return (*super().step(action)[:4], self.told())

    def told(self) -> dict[Any, Any]:
        odd = {"object": object(), "lock": threading.Lock(), (1, object()): 1}
        return {"score": 3, "state": np.arange(3), **odd}


def told(serve: ServerMaker, **allow: Any) -> tuple[list[Any], list[Any]]:
    """Return the infos of a reset and a step, for the notebook client and for RemoteVecEnv."""
    server = serve({"Telling": InfoFilter}, allow=Permissions(**allow))
    with create_student_gym_env_vectorized(1, 1, None, base_url=server.url) as env:
        student = [env.reset()[1][0], env.step([0])[4][0]]
    with RemoteVecEnv(server.url, None, 1) as envs:
        remote = [envs.reset()[1][0], envs.step([0])[4][0]]
    return student, remote


ENDING = {"step": 0, "terminated": False, "truncated": False}


def test_students_are_told_nothing_but_how_the_episode_goes(serve: ServerMaker) -> None:
    student, remote = told(serve)
    assert student == [{}, ENDING]
    for info in remote:
        assert info.keys() == {"score", "state"}, "what cannot be sent fails no step"
        assert info["state"].tolist() == [0, 1, 2]


def test_what_else_they_are_told_the_operator_says(serve: ServerMaker) -> None:
    student, remote = told(serve, infos=frozenset({"score"}))
    assert student == [{"score": 3}, {"score": 3, **ENDING}]
    assert remote == [{"score": 3}] * 2


def test_everything_may_be_told(serve: ServerMaker) -> None:
    student, remote = told(serve, infos=frozenset({"*"}))
    assert student[1].keys() == {"score", "state", *ENDING}
    assert remote[1].keys() == {"score", "state"}


def test_the_server_keeps_its_tracebacks_and_says_where(
    serve: ServerMaker, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    with create_student_gym_env_vectorized(
        1, 1, None, base_url=server.url, env_id="Mischievous"
    ) as env:
        env.reset()
        with pytest.raises(
            errors.EnvError, match="failed in 'step': ValueError: as told"
        ) as raised:
            env.step([1])
        kept = raised.value.env_traceback
        assert kept.startswith("see the server's log, error ")
        assert f"error {kept.split()[-1]}: environment 0 failed in 'step'" in caplog.text
        assert "remote_envs.py" in caplog.text
        env.reset()
        with pytest.raises(errors.WorkerDiedError) as died:
            env.step([2])
        assert (died.value.command, died.value.exitcode) == ("step", 7)
        assert ".py" not in str(died.value)


def test_a_step_before_the_first_reset_says_so_and_is_no_failure(
    serve: ServerMaker, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    ask = Asking(server)
    ask.ask("create", env_id="Counting", num_envs=2)
    caplog.clear()
    for _ in range(2):
        refused = ask.ask("vectorized_step", actions=[1, 1])
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "reset")
        assert "call reset first: environment 0" in refused.json()["error"]["message"]
        ask.ask("vectorized_reset", episode_ids=ask.episodes[1:])
    assert "Traceback" not in caplog.text
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []
    assert "xuance_envs_failures_total 0" in httpx.get(f"{server.url}/metrics").text


def test_only_what_environments_fail_at_by_themselves_counts(serve: ServerMaker) -> None:
    server = serve(allow=Permissions(calls=frozenset({"describe"}), gets=frozenset({"nothing"})))
    ask = Asking(server).begin("Mischievous")
    for message in (
        {"operation": "call", "name": "describe"},
        {"operation": "get_attr", "name": "nothing"},
    ):
        assert ask.ask("call", **message).status_code == 409
    assert "xuance_envs_failures_total 0" in httpx.get(f"{server.url}/metrics").text
    assert ask.ask("vectorized_step", actions=[1]).status_code == 409
    assert "xuance_envs_failures_total 1" in httpx.get(f"{server.url}/metrics").text


def test_calling_reading_and_setting_are_allowed_apart(serve: ServerMaker) -> None:
    names = {"calls": "describe", "gets": "length", "sets": "number"}
    allow = Permissions(**{kind: frozenset({name}) for kind, name in names.items()})
    ask = Asking(serve(allow=allow))
    ask.ask("create", env_id="Counting")
    done = {}
    for operation, more in (
        ("call", {"args": ["x"]}),
        ("get_attr", {}),
        ("set_attr", {"values": [4]}),
    ):
        for name in names.values():
            answer = ask.ask("call", operation=operation, name=name, **more)
            done[operation, name] = answer.status_code
            if answer.status_code == 403:
                option = operation.replace("_attr", "")
                assert f"--allow-{option} NAME" in answer.text
    assert [key for key, status in done.items() if status == 200] == [
        ("call", "describe"),
        ("get_attr", "length"),
        ("set_attr", "number"),
    ]
    assert set(done.values()) == {200, 403}


def test_options_of_resets_have_to_be_allowed(serve: ServerMaker) -> None:
    server = serve(allow=Permissions(options=frozenset({"low"})))
    with RemoteVecEnv(server.url, "CartPole", 1) as envs:
        obs, _ = envs.reset(seed=0, options={"low": 0.04})
        assert obs.min() >= 0.04
    with (
        RemoteVecEnv(server.url, "CartPole", 1) as envs,
        pytest.raises(
            errors.RemoteForbiddenError, match=r"the option 'high' .*--allow-option NAME"
        ),
    ):
        envs.reset(options={"low": 0.0, "high": 0.1})


def test_keyword_arguments_may_be_limited_to_values(serve: ServerMaker) -> None:
    allowed = allowed_values(["length=5", "length=7", "env_seed"])
    assert allowed == {"length": (5, 7), "env_seed": None}
    server = serve(kwargs=allowed)
    for kwargs in ({"length": 7}, {"env_seed": 3, "length": 5}):
        RemoteVecEnv(server.url, "Counting", 1, env_kwargs=kwargs).close()
    for kwargs in ({"length": 6}, {"length": 5.0}, {"length": True}):
        with pytest.raises(errors.RemoteForbiddenError, match="'length' must be 5 or 7"):
            RemoteVecEnv(server.url, "Counting", 1, env_kwargs=kwargs)


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        (["mode=rgb_array"], {"mode": ("rgb_array",)}),
        (["flag=true", "flag=null"], {"flag": (True, None)}),
        (["x=1", "x"], {"x": None}),
        (["x", "x=1"], {"x": None}),
        (["x="], {"x": ("",)}),
    ],
)
def test_values_are_json_or_text(options: list[str], allowed: dict[str, Any]) -> None:
    assert allowed_values(options) == allowed


def test_a_value_needs_a_name() -> None:
    with pytest.raises(ValueError, match="NAME or NAME=VALUE"):
        allowed_values(["=3"])


@pytest.mark.parametrize("action", [-1, 99, 10])
def test_actions_are_checked_before_they_reach_an_environment(
    serve: ServerMaker, action: int
) -> None:
    server = serve()
    said = rf"environment 1: expected one in Discrete\(10\), got .*{action}"
    with create_student_gym_env_vectorized(
        2, 1, None, base_url=server.url, env_id="Counting"
    ) as env:
        env.reset(seed=0)
        with pytest.raises(ValueError, match=said):
            env.step([0, action])
        assert env.step([9, 9])[0][1].tolist() == [[1, 0, 1]], "nothing has happened"
    for auto_reset in (False, True):
        ask = Asking(server).begin("Counting", num_envs=2, auto_reset=auto_reset)
        refused = ask.ask("vectorized_step", actions=[0, action])
        assert refused.status_code == 422
        assert "environment 1" in refused.text
        assert ask.ask("vectorized_step", actions=[9, 9]).status_code == 200
    with RemoteVecEnv(server.url, "Counting", 2) as envs:
        envs.reset()
        with pytest.raises(ValueError, match=said):
            envs.step([0, action])
        assert envs.step([9, 9])[1].tolist() == [9, 9]


def test_any_action_may_be_allowed(serve: ServerMaker) -> None:
    server = serve(allow=Permissions(any_action=True))
    with RemoteVecEnv(server.url, "Counting", 2) as envs:
        envs.reset()
        assert envs.step([-1, 99])[1].tolist() == [-1, 99]
