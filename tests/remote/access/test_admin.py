"""Administration of a server: list and end sessions; the log, the pages and the command line."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import httpx
import pytest
from serving import API_PREFIX, Asking, ServerMaker

from xuance_envs.__main__ import main
from xuance_envs.remote.server import Server


@pytest.fixture
def course(serve: ServerMaker, tmp_path: Path) -> Server:
    file = tmp_path / "tokens"
    file.write_text("alice one\nbob two\nstaff three admin\n", encoding="utf-8")
    file.chmod(0o600)
    return serve(token_file=file)


def test_sessions_are_listed_and_ended(
    course: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alice, bob = Asking(course, "one"), Asking(course, "two")
    alice.begin("Counting", num_envs=3)
    alice.ask("vectorized_step", actions=[0, 0, 0])
    file = tmp_path / "admin"
    file.write_text("three\n", encoding="utf-8")
    assert main(["sessions", "--url", course.url, "--token-file", str(file)]) == 0
    head, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert head[:4] == ["session", "name", "environments", "steps"]
    assert [row[:4] for row in rows] == [["1", "alice", "3", "3"], ["2", "bob", "0", "0"]]
    monkeypatch.setenv("XUANCE_ENVS_TOKEN", "three")
    assert main(["sessions", "--url", course.url, "--end", "1", "--json"]) == 0
    ended = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in ended["sessions"]] == ["bob"]
    assert alice.ask("vectorized_reset").status_code == 404
    assert bob.close().status_code == 200


def test_only_an_admin_may(
    course: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Asking(course, "one")
    for token, status in (("one", 403), ("wrong", 401)):
        headers = {"Authorization": f"Bearer {token}"}
        for method, path in (("GET", "sessions"), ("DELETE", "sessions/1")):
            answer = httpx.request(method, f"{course.url}{API_PREFIX}/{path}", headers=headers)
            assert answer.status_code == status
    monkeypatch.delenv("XUANCE_ENVS_TOKEN", raising=False)
    for token, args, said in (
        (None, [], "give --token-file FILE or set XUANCE_ENVS_TOKEN"),
        ("one", [], "an admin token is required"),
        ("three", ["--end", "9"], "no session 9"),
    ):
        if token is not None:
            monkeypatch.setenv("XUANCE_ENVS_TOKEN", token)
        assert main(["sessions", "--url", course.url, *args]) == 2
        assert said in capsys.readouterr().err


def test_without_tokens_there_is_no_admin(serve: ServerMaker) -> None:
    assert httpx.get(f"{serve().url}{API_PREFIX}/sessions").status_code == 403


@pytest.mark.parametrize(
    ("arguments", "told"), [(("--url", "foo"), "--url: expected an"), (("--ca", "no"), "--ca: ")]
)
def test_what_the_command_line_cannot_use_is_named_as_its_option(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    assert main(["sessions", "--url", "https://localhost:1", *arguments]) == 2
    assert f"sessions: {told}" in capsys.readouterr().err


def test_names_are_in_the_log_and_steps_only_where_they_are_wanted(
    course: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "xuance_envs")
    alice = Asking(course, "one").begin("Counting")
    alice.ask("vectorized_step", actions=[0])
    httpx.get(f"{course.url}/healthz")
    course.close()
    lines = {r.getMessage(): r.levelname for r in caplog.records if r.name == "xuance_envs.access"}
    levels = {
        path: level
        for line, level in lines.items()
        for path in ("create", "vectorized_step", "healthz")
        if path in line
    }
    assert levels == {"create": "INFO", "vectorized_step": "DEBUG", "healthz": "INFO"}
    assert any(" alice POST /api/v1/episode/vectorized_step 200 " in line for line in lines)
    assert any(" - GET /healthz 200 " in line for line in lines)
    assert "session 1 of alice opened" in caplog.text


def test_names_are_on_the_pages_for_admins_only(course: Server) -> None:
    alice, bob = Asking(course, "one"), Asking(course, "two")
    alice.begin("Counting", num_envs=2)
    alice.ask("vectorized_step", actions=[0, 0])
    bob.close()
    admin = {"Authorization": "Bearer three"}
    shown = httpx.get(f"{course.url}/status.json", headers=admin).json()
    assert shown["names"] == {"alice": {"sessions": 1, "environments": 2, "steps": 2}}
    lines = httpx.get(f"{course.url}/metrics", headers=admin).text.splitlines()
    assert 'xuance_envs_name_environments{name="alice"} 2' in lines
    assert 'xuance_envs_name_steps_total{name="alice"} 2' in lines
    alice.close()
    lines = httpx.get(f"{course.url}/metrics", headers=admin).text.splitlines()
    assert 'xuance_envs_name_steps_total{name="alice"} 2' in lines, "a counter never falls"
    for headers in ({}, {"Authorization": "Bearer one"}):
        assert "names" not in httpx.get(f"{course.url}/status.json", headers=headers).json()
        assert "alice" not in httpx.get(f"{course.url}/metrics", headers=headers).text


def test_a_monitor_may_ask_for_heads(course: Server) -> None:
    for path in ("/healthz", "/", "/metrics", "/status.json", f"{API_PREFIX}/version"):
        answer = httpx.head(f"{course.url}{path}")
        assert (answer.status_code, answer.content) == (200, b"")
