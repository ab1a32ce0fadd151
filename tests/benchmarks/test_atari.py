"""The Atari benchmark, as short as it can be: what it writes, never how fast anything is."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_runs import run_script


@pytest.mark.long
def test_every_contender_is_in_the_table_the_json_and_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    answer = run_script(
        *("atari", tmp_path, "--games", "Pong", "--num-envs", "2"),
        *("--rounds", "1", "--seconds", "0.02", "--backends", "dummy", "subproc", "caller"),
        *("--png", str(tmp_path / "out.png")),
    )
    assert (tmp_path / "out.png").stat().st_size > 1000
    record = answer.record
    contenders = {row["contender"] for row in record["results"]}
    notes = str([row["notes"] for row in record["results"]])
    assert {"limit of the cores", "Dummy", "Subproc", "Subproc, caller_steps"} <= contenders
    for peer in ("ale-py AtariVectorEnv", "EnvPool", "Gymnasium Async"):
        assert (peer in contenders) != (f"{peer}, 2 environments: left out" in notes)
    assert "Gymnasium Async" in contenders
    for row in record["results"]:
        assert row["environment"] == "ALE/Pong-v5"
        assert row["steps_per_second"] > 0
        assert row["relative_to"]["limit of the cores"] > 0
        assert f"| {row['contender']} " in answer.page
    _, _, *rows = answer.page.splitlines()
    assert len([row for row in rows if row.startswith("| 2 ALE/Pong-v5")]) == len(contenders)


def test_a_file_without_the_markers_is_left_alone(tmp_path: Path) -> None:
    from benchmarks.shared.record import replace_between

    page = tmp_path / "page.md"
    page.write_text("<!-- table: begin -->")
    with pytest.raises(ValueError, match="table: end"):
        replace_between(page, "table", "new")
    assert page.read_text() == "<!-- table: begin -->"
