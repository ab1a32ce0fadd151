"""Failures that leave a file, and happen again from it."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from faulty_envs import be_killed, wait
from gymnasium import spaces

from xuance_envs import DummyVecEnv, EnvError, SubprocVecEnv, WorkerDiedError, WorkerTimeoutError
from xuance_envs.__main__ import main

ROOT = Path(__file__).resolve().parents[2]


class Late(gymnasium.Env[Any, Any]):
    """Fails once the actions it was given add up to 30."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(9)

    def __init__(self, how: str) -> None:
        self.how = how
        self.total = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.total = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.total += int(action)
        reward = 1.0
        if self.total >= 30 and self.how != "is fine":
            if self.how == "raises":
                raise ValueError(f"too much: {self.total}")
            if self.how == "is killed":
                be_killed()
            if self.how == "hangs":
                wait()
            reward = float("nan")
        return np.full(2, self.total, np.float32), reward, False, False, {}


def failed(how: str, folder: Path, **options: Any) -> Path:
    """The file that is left when the third environment fails at its tenth step."""
    with SubprocVecEnv(
        [lambda: Late(how)] * 4,
        in_series=2,
        context="forkserver",
        record_failures=folder,
        **options,
    ) as envs:
        envs.reset(seed=1)
        for _ in range(9):
            envs.step([1, 1, 3, 1])
        error = {"raises": EnvError, "is killed": WorkerDiedError, "hangs": WorkerTimeoutError}
        if how in error and options.get("on_worker_failure", "raise") == "raise":
            with pytest.raises(error[how]):
                envs.step([1, 1, 3, 1])
        else:
            envs.step([1, 1, 3, 1])
    (path,) = folder.iterdir()
    return path


HERE = {
    "dummy": (lambda fns, **how: DummyVecEnv(fns, **how), 2),
    "the caller's share": (
        lambda fns, **how: SubprocVecEnv(
            fns, in_series=2, context="forkserver", caller_steps=True, **how
        ),
        4,
    ),
}


@pytest.mark.parametrize("where", HERE)
@pytest.mark.parametrize("how", ["raises", "nan"])
@pytest.mark.parametrize("steps", [0, 1, 40])
def test_what_fails_in_this_process_happens_again(
    tmp_path: Path, where: str, how: str, steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    make, culprit = HERE[where]
    fns = [lambda: Late("is fine")] * 5
    fns[culprit] = lambda: Late(how)
    with make(fns, record_failures=tmp_path) as envs:
        envs.reset(seed=1)
        for _ in range(steps):
            envs.step([0] * 5)
        envs.reset(env_ids=[culprit])
        envs.get_attr("total")
        envs.step([1] * 5)
        actions = [8] * 5
        envs.step(actions)
        envs.step(actions)
        assert list(tmp_path.iterdir()) == []
        envs.step(actions)
        if how == "raises":
            with pytest.raises(EnvError):
                envs.step(actions)
        else:
            envs.step(actions)
            envs.step(actions)  # the first of its kind is enough
    (path,) = tmp_path.iterdir()
    assert main(["replay", str(path)]) == 0
    printed = capsys.readouterr().out
    again = "failed in 'step': ValueError: too much: 33" if how == "raises" else "returned a NaN"
    assert f"environment {culprit} {again}" in printed
    assert again in printed
    assert f"environment {culprit}" in printed.splitlines()[0]


def test_what_cannot_be_saved_leaves_no_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Held(Late):
        def __init__(self) -> None:
            super().__init__("raises")
            self.numbers = (number for number in range(9))

    with DummyVecEnv([Held], record_failures=tmp_path) as envs:
        envs.reset()
        for _ in range(3):
            envs.step([8])
        with pytest.raises(EnvError, match="too much"):
            envs.step([8])
    assert list(tmp_path.iterdir()) == []
    assert "no environment states were saved before it" in caplog.text


def replayed(
    path: Path, *options: str, stdin: str = "", timeout: float = 60, **variables: str
) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "xuance_envs", "replay", str(path), *options],
        env={
            **os.environ,
            **variables,
            "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}:{ROOT}/tests/shared",
        },
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.parametrize("failure", ["raise", "restart", "resume"])
def test_an_exception_happens_again(
    tmp_path: Path, failure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {} if failure == "raise" else {"restart_on_exception": True}
    path = failed("raises", tmp_path / "new", on_worker_failure=failure, **options)
    assert main(["replay", str(path)]) == 0
    printed = capsys.readouterr().out
    # As in the vec env that recorded it, also where its worker has other environments, too.
    assert "raised: environment 2 failed in 'step': ValueError: too much: 30" in printed
    assert "environment 0" not in printed
    (step,) = re.findall(r"^step (\d+) raised", printed, re.MULTILINE)
    assert main(["state", str(path)]) == 0
    printed = capsys.readouterr().out
    assert f"failure in step {step} after saving: environment 2" in printed
    assert "too much: 30" in printed
    assert [line.split()[1] for line in printed.splitlines() if "snapshot" in line] == ["2", "3"]


class Charged(Late):
    def charge(self) -> None:
        self.total += 20
        raise ValueError("only half done")


@pytest.mark.parametrize("in_workers", [False, True])
def test_a_failure_after_a_call_that_raised_happens_again(
    tmp_path: Path, in_workers: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"in_series": 2, "context": "forkserver"} if in_workers else {}
    make: Any = SubprocVecEnv if in_workers else DummyVecEnv
    with make([lambda: Charged("raises")] * 2, record_failures=tmp_path, **options) as envs:
        envs.reset(seed=1)
        for _ in range(3):
            envs.step([0, 0])
        with pytest.raises(EnvError, match="only half done"):
            envs.call("charge", env_ids=[1])
        envs.step([1, 1])
        envs.step([8, 8])
        with pytest.raises(EnvError, match="too much: 37"):
            envs.step([8, 8])
    (path,) = tmp_path.iterdir()
    assert main(["replay", str(path)]) == 0
    assert "environment 1 failed in 'step': ValueError: too much: 37" in capsys.readouterr().out


def test_a_debugger_is_there_where_it_raises(tmp_path: Path) -> None:
    path = failed("raises", tmp_path)
    result = replayed(path, "--pdb", stdin="p self.total + 1000\nq\n")
    assert result.returncode == 0, result.stderr
    assert "1030" in result.stdout


def test_a_nan_happens_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = failed("nan", tmp_path)
    assert main(["replay", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "NaN in the observation or reward of environment 2" in printed
    assert "environment 2 returned a NaN in step" in printed
    assert ": rewards [nan" in printed


class Drawing(Late):
    """Draws what it was given, as a bar."""

    metadata = {"render_modes": ["rgb_array", "human"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, how: str, render_mode: str | None) -> None:
        super().__init__(how)
        self.render_mode = render_mode

    def render(self) -> Any:
        if self.render_mode == "human":
            print(f"drawn at {self.total}")
            return None
        picture = np.zeros((900, 40, 3), np.uint8)
        picture[:, : self.total] = 255
        return picture if self.render_mode else None


@pytest.mark.parametrize("how", ["raises", "nan"])
def test_a_replay_is_drawn(tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    fns = [lambda: Drawing("is fine", "rgb_array"), lambda: Drawing(how, "rgb_array")]
    path = left_by(fns, tmp_path)
    assert main(["replay", str(path), "--render"]) == 0
    gif = path.with_suffix(".gif")
    assert f"environment 1: {gif}" in capsys.readouterr().out
    with image.open(gif) as film:
        shown = []
        for number in range(film.n_frames):
            film.seek(number)
            picture = np.asarray(film.convert("RGB"))
            assert max(picture.shape[:2]) <= 400
            shown.append(int((picture[0, :, 0] > 128).sum()))
    assert shown == sorted(shown), "the bar of the second one grows"
    assert shown[-1] == {"raises": 8, "nan": 11}[how]


def test_a_replay_draws_itself_or_has_nothing_to_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = left_by([lambda: Drawing("raises", "human")], tmp_path / "one")
    assert main(["replay", str(path), "--render"]) == 0
    printed = capsys.readouterr().out
    assert "drawn at 24" in printed
    assert "no frames to save" not in printed
    path = left_by([lambda: Drawing("raises", None)], tmp_path / "two")
    assert main(["replay", str(path), "--render"]) == 0
    assert "no frames to save" in capsys.readouterr().out


def test_gymnasiums_environments_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    for mode in ("rgb_array", "human"):
        folder = tmp_path / mode
        make = functools.partial(failing_pole, mode)
        path = left_by([make], folder, action=1)
        result = replayed(path, "--render", SDL_VIDEODRIVER="dummy")
        assert result.returncode == 0, result.stderr
        assert "raised: environment 0 failed" in result.stdout
        assert path.with_suffix(".gif").exists() == (mode == "rgb_array")


class FailingLate(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Fails at its fourth step."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps = self.steps + 1
        if self.steps == 4:
            raise ValueError("as told")
        return self.env.step(action)


def failing_pole(mode: str) -> Any:
    return FailingLate(gymnasium.make("CartPole-v1", render_mode=mode))


def left_by(fns: list[Any], folder: Path, action: int = 8) -> Path:
    """The file that is left when one fails at its fourth step, in this process."""
    with DummyVecEnv(fns, record_failures=folder) as envs:
        envs.reset(seed=1)
        for _ in range(3):
            envs.step([action] * len(fns))
        with contextlib.suppress(EnvError):
            envs.step([action] * len(fns))
    (path,) = folder.glob("*.xenvs")
    return path


def test_a_crash_happens_again(tmp_path: Path) -> None:
    path = failed("is killed", tmp_path)
    assert replayed(path).returncode == -9


@pytest.mark.slow("waits for two time limits")
def test_a_hang_happens_again(tmp_path: Path) -> None:
    path = failed("hangs", tmp_path, step_timeout=1.0)
    with pytest.raises(subprocess.TimeoutExpired):
        replayed(path, timeout=4)


def test_what_is_no_failure_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with DummyVecEnv([lambda: Late("raises")]) as envs:
        envs.reset()
        envs.save_state().save(tmp_path / "one.xenvs")
    assert main(["replay", str(tmp_path / "one.xenvs")]) == 2
    assert "expected a recorded failure" in capsys.readouterr().err
    assert main(["state", str(tmp_path / "none.xenvs")]) == 2


class Refusing(Late):
    """Cannot be made, reset or loaded any more once a file is there."""

    def __init__(self, how: str, path: str, what: str) -> None:
        super().__init__(how)
        self.path, self.what = path, what
        self.fail("construct")

    def fail(self, where: str) -> None:
        if self.what == where and os.path.exists(self.path):
            raise ValueError(f"refused in {where}")

    def reset(self, **given: Any) -> Any:
        self.fail("reset")
        return super().reset(**given)

    def __env_state__(self) -> Any:
        return self.total

    def __set_env_state__(self, total: int) -> None:
        self.fail("load_state")
        self.total = total


@pytest.mark.parametrize("what", ["construct", "reset", "load_state"])
def test_what_cannot_be_repeated_names_its_environment(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "refuses"
    fns: list[Any] = [lambda: Late("is fine")] * 3 + [lambda: Refusing("raises", str(path), what)]
    with SubprocVecEnv(fns, in_series=2, record_failures=tmp_path) as envs:
        envs.reset(seed=1)
        for _ in range(3):
            envs.step([8] * 4)
        with pytest.raises(EnvError):
            envs.step([8] * 4)
    (file,) = tmp_path.glob("*.xenvs")
    path.touch()
    with pytest.raises(EnvError, match=f"environment 3 failed in '{what}': .*refused in {what}"):
        main(["replay", str(file)])
