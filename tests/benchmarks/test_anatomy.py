"""The parts of a vector step, measured in a few steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_runs import run_script


@pytest.mark.parametrize(("backend", "groups"), [("dummy", 1), ("caller", None)])
def test_the_parts_are_within_the_whole(tmp_path: Path, backend: str, groups: int | None) -> None:
    arguments = ("--num-envs", "4", "--steps", "30", "--backend", backend)
    answer = run_script("anatomy", tmp_path, *arguments)
    parts = answer.record["results"]
    names = [name for name in parts if name.startswith("group")]
    assert len(names) == groups if groups else names
    for name in names:
        within = zip(parts[name], parts["total"], strict=True)
        assert all(0 < part < whole for part, whole in within)
    assert "| total " in answer.page
