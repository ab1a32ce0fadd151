"""The benchmark of the remote environments, for a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmark_runs import run_script


def run(folder: Path, attacks: int) -> Any:
    short = ("--num-envs", "2", "--rounds", "1", "--seconds", "0.05", "--sessions", "2")
    return run_script("remote", folder, *short, "--attacks", str(attacks))


@pytest.mark.slow("starts two servers")
def test_it_measures_all_four_and_counts_requests(tmp_path: Path) -> None:
    answer = run(tmp_path, attacks=0)
    results = answer.record["results"]
    remote = ["RemoteVecEnv", "RemoteVecEnv, two workers"]
    names = ["DummyVecEnv_Gym", *remote, "SubprocVecEnv_Gym, one worker"]
    assert all(results[name]["rates"][0] > 0 for name in names)
    assert results["requests per vector step"] == {"count": 1.0}
    assert "requests per vector step: 1\n" in answer.printed
    many = results["2 sessions"]
    assert many["requests"] > 0
    assert 0 < many["least"] <= 1
    assert 0 < many["p50"] <= many["p99"]
    assert "attacks" not in results


@pytest.mark.long  # a server, and a process for each attack
def test_the_effects_of_an_attack_are_measured() -> None:
    from benchmarks import remote
    from benchmarks.shared.attacks import effects

    with remote.served("CartPole-v1") as (url, pid):
        found = effects(url, pid, 1, lambda attacker: {"a": attacker.renew, "b": attacker.keys})
    assert list(found) == ["a", "b"]
    assert all(each.health > 0 and each.step > 0 for each in found.values())


@pytest.mark.long
def test_each_attack_is_in_the_record(tmp_path: Path) -> None:
    attacks = run(tmp_path, attacks=1).record["results"]["attacks"]
    assert all(each["health"] > 0 and each["step"] > 0 for each in attacks.values())
    names = {"none", "64,000 texts of 30 KB", "16 states of 60 MiB, beyond the limit"}
    assert names < attacks.keys()
    assert max(each["growth"] for name, each in attacks.items() if "states" in name) < 100
