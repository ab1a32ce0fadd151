"""Tokens: files, names, limits, and changes while the server runs."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from serving import Asking, ServedProcess, ServerMaker, wait_until

from xuance_envs.__main__ import main
from xuance_envs.remote.cli.serve import TOKEN_LIMITS
from xuance_envs.remote.server.access import Tokens
from xuance_envs.remote.wire.failures import RefusedError


def written(folder: Path, text: str) -> Path:
    file = folder / "tokens"
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    return file


def owner_of(tokens: Tokens, token: str) -> Any:
    return tokens.owner(f"Bearer {token}".encode())


def test_a_line_is_a_token_or_a_name_and_a_token(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "# a course\n\n  plain-token  # a guest\nalice one max-envs-per-session=3 max-memory=5\n"
        "alice two\nstaff three admin\nbob a#b\n#aa\n",
    )
    tokens = Tokens.load(file, TOKEN_LIMITS)
    assert len(tokens) == 5
    alice = owner_of(tokens, "one")
    assert (alice.name, alice.is_admin) == ("alice", False)
    assert alice.limits == {"environments_per_session": 3, "memory_per_session": 5 * 2**20}
    assert owner_of(tokens, "two") == alice, "it is the same person"
    assert owner_of(tokens, "three").is_admin
    assert owner_of(tokens, "a#b").name == "bob"
    guest = owner_of(tokens, "plain-token")
    assert guest.name.startswith("token-")
    assert "plain" not in guest.name
    assert len({alice, guest, owner_of(tokens, "three")}) == 3
    for wrong in ("#aa", "alice", "admin", ""):
        with pytest.raises(RefusedError):
            owner_of(tokens, wrong)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# nothing\n", "expected one token per line, got none"),
        ("a/b secret\n", "line 1: expected a name"),
        (
            "a\nalice secret max-chairs=3\n",
            "line 2: after the token, expected admin or any",
        ),
        ("alice secret max-envs-per-session=many\n", "line 1"),
        ("alice secret max-envs-per-session=-1\n", "at least"),
        ("alice secret\nbob secret\n", "different tokens, got the same one for alice and bob"),
        ("é\n", "line 1: expected a token of visible ASCII"),
    ],
)
def test_a_file_that_is_not_of_its_form_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        Tokens.load(written(tmp_path, text), TOKEN_LIMITS)
    assert "secret" not in str(caught.value)


@pytest.mark.skipif(os.name != "posix", reason="files have no such permissions")
def test_a_file_that_everybody_may_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(tmp_path, "secret\n")
    Tokens.load(file)
    assert "everybody" not in caplog.text
    file.chmod(0o644)
    Tokens.load(file)
    assert f"all users of this machine can read the tokens in {file}" in caplog.text


def test_a_name_may_have_limits_of_its_own(serve: ServerMaker, tmp_path: Path) -> None:
    text = "alice one max-envs-per-session=2 max-sessions-per-token=1 max-repeats=3\nbob two\n"
    server = serve(token_file=written(tmp_path, text), environments_per_session=5)
    alice, bob = Asking(server, "one"), Asking(server, "two")
    assert alice.ask("create", env_id="Counting", num_envs=3).status_code == 429
    assert alice.ask("create", env_id="Counting", num_envs=2).status_code == 200
    assert bob.ask("create", env_id="Counting", num_envs=5).status_code == 200
    assert alice.post("session/create").status_code == 429
    assert bob.post("session/create").status_code == 200
    for ask in (alice, bob):
        ask.ask("vectorized_reset")
    assert alice.ask("vectorized_step", actions=[0, 0], steps=4).status_code == 422
    assert bob.ask("vectorized_step", actions=[0] * 5, steps=4).status_code == 200


def test_a_file_that_changes_is_read_again(
    serve: ServerMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "xuance_envs")
    file = written(tmp_path, "alice old\nbob two\n")
    server = serve(token_file=file)
    alice, bob = Asking(server, "old"), Asking(server, "two")
    alice.ask("create", env_id="Counting")
    file.write_text("a/b c\n", encoding="utf-8")
    wait_until(lambda: "the previous ones stay valid" in caplog.text)
    assert alice.ask("vectorized_reset").status_code == 200
    file.write_text("alice new\n", encoding="utf-8")
    wait_until(lambda: bob.ask("vectorized_reset").status_code == 401)
    assert alice.ask("vectorized_reset").status_code == 401
    alice.client.headers["Authorization"] = "Bearer new"
    assert alice.ask("vectorized_reset").status_code == 200, "her session goes on"
    wait_until(lambda: "of bob closed: token revoked" in caplog.text)
    assert "of alice opened" in caplog.text


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no such signal here")
def test_a_hangup_has_the_file_read_again(tmp_path: Path) -> None:
    file = written(tmp_path, "alice old\n")
    served = ServedProcess("--env", "CartPole-v1", "--tokens", str(file))
    try:
        file.write_text("alice new\n", encoding="utf-8")
        os.kill(served.pid, signal.SIGHUP)
        wait_until(lambda: served.status_for("new") == 200)
        assert served.status_for("old") == 401
    finally:
        assert served.close() in (0, -signal.SIGTERM)


def test_new_tokens_are_lines_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", "new", "alice", "--count", "100"]) == 0
    printed = capsys.readouterr().out
    tokens = Tokens.load(written(tmp_path, printed))
    assert tokens.count_names() == len(tokens) == 101
    given = dict(line.split() for line in printed.splitlines())
    assert list(given)[:2] == ["alice", "student001"]
    assert list(given)[-1] == "student100"
    for name, token in given.items():
        assert owner_of(tokens, token).name == name
        assert len(token) == 48
    assert main(["tokens", "new", "--count", "1"]) == 0
    assert capsys.readouterr().out.split()[1] not in given.values()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "no token to create"),
        (["--count", "-1"], "--count: expected at least 0, got -1"),
        (["a b"], "got 'a b'"),
        (["--count", "1", "--prefix", "x/"], "got 'x/1'"),
    ],
)
def test_new_tokens_need_names(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tokens", "new", *args]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""
