"""What a bug report needs to know of a machine."""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

import pytest
from warm_python import run_python

import xuance_envs
from xuance_envs import doctor

SETUP = Path(__file__).parent.parent / "setup.py"


def run_doctor() -> None:
    doctor.run_doctor(argparse.Namespace(ray=False))


@pytest.mark.slow("tries every backend")
def test_it_says_what_there_is_and_that_everything_works() -> None:
    answer = run_python("-m", "xuance_envs", "doctor")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    cells = [[cell.strip() for cell in row.split("|")] for row in answer.stdout.splitlines()]
    told = {row[1]: row[2] for row in cells if len(row) == 4}
    assert told["xuance_envs"] == xuance_envs.__version__
    assert re.match(r"\d+ \(\d+ available to this process\)", told["CPUs"])
    assert set(doctor.EXTRAS) <= set(told)
    tried = [line for line in answer.stdout.splitlines() if "including startup" in line]
    assert all(" ok, " in line for line in tried)
    assert {line.split()[0].strip(",") for line in tried} >= {"DummyVecEnv_Gym", "RemoteVecEnv"}


def test_what_does_not_work_is_said_with_its_error_and_the_rest_is_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[object] = []

    def fails_first(make: object) -> None:
        tried.append(make)
        if len(tried) == 1:
            raise OSError("no room")

    monkeypatch.setattr(doctor, "_smoke_test", fails_first)
    with pytest.raises(SystemExit) as ended:
        run_doctor()
    assert ended.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    kinds = lines.index(f"## {doctor.STEPS} steps of 4 {doctor.ENV}") + 2
    assert re.fullmatch(r"DummyVecEnv_Gym +failed: OSError: no room", lines[kinds])
    assert any(re.match(r"compat.gymnasium.SyncVectorEnv +ok", line) for line in lines[kinds:])


def test_the_import_that_turned_the_gil_on_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    warning = (
        "<frozen importlib._bootstrap>:491: RuntimeWarning: The global interpreter lock (GIL) has "
        "been enabled to load module 'slow.core', which has not declared that it can run safely "
        "without the GIL."
    )
    commands = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command[-1])
        return subprocess.CompletedProcess(command, 0, "", warning)

    monkeypatch.setattr(doctor.sysconfig, "get_config_var", lambda name: 1)
    monkeypatch.setattr(doctor, "gil_is_enabled", lambda: True)
    monkeypatch.setattr(doctor.subprocess, "run", run)
    assert doctor._gil() == "on, by the import of slow.core"
    assert "import gymnasium\n" in commands[0], "not only suspects are imported"
    warning = ""
    assert doctor._gil() == "on, by PYTHON_GIL=1 or -X gil=1"
    monkeypatch.setattr(doctor, "gil_is_enabled", lambda: False)
    assert doctor._gil() == "off"


def test_what_is_missing_is_said_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(doctor.EXTRAS, "remote", ("no_such_module", "httpx"))
    monkeypatch.setattr(doctor, "_smoke_test", lambda make: None)
    run_doctor()
    text = capsys.readouterr().out
    assert 'no_such_module missing: pip install "xuance_envs[remote]"' in text
    assert "RemoteVecEnv" not in text


def test_a_clone_that_is_not_installed_is_said_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing_is(name: str) -> str:
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", nothing_is)
    monkeypatch.setattr(doctor, "_smoke_test", lambda make: None)
    run_doctor()
    clone = Path(xuance_envs.__file__).parents[1]
    assert f'not installed: pip install "{clone}"' in capsys.readouterr().out


def test_the_extras_are_those_there_are() -> None:
    declared = set(re.findall(r'^    "([\w-]+)": \[', SETUP.read_text(), re.MULTILINE))
    assert set(doctor.EXTRAS) == declared


def test_what_the_system_lacks_is_not_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor.system, "HAS_SERVER", False)
    monkeypatch.setattr(doctor.system, "NAME", "Windows")
    monkeypatch.setattr(doctor, "_smoke_test", lambda make: None)
    run_doctor()
    text = capsys.readouterr().out
    assert re.search(r"RemoteVecEnv +not on this system: the server does not run on Windows", text)
    assert re.search(r"SubprocVecEnv_Gym, spawn +ok", text)
    assert "failed" not in text
    assert re.search(r"\| HTTP server +\| +not on this system", text)
