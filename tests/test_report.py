"""What readers see of a measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

from xuance_envs.measure import Throughput
from xuance_envs.report import markdown_table, plot_throughput


def test_the_table_is_aligned_and_is_markdown() -> None:
    table = markdown_table(("name", "steps/s"), [("a", "1,000"), ("longer", "7")])
    assert table.splitlines() == [
        "| name   | steps/s |",
        "| ------ | ------: |",
        "| a      |   1,000 |",
        "| longer |       7 |",
    ]


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        markdown_table(("one", "two"), [("only",)])


@pytest.mark.parametrize("sizes", [[1], [1, 8, 64]])
def test_the_picture_is_saved_where_it_was_asked_for(sizes: list[int], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    panels = {
        size: [Throughput("ours", size, (1e5, 2e5, 3e5)), Throughput("limit", size, (3e5,))]
        for size in sizes
    }
    path = tmp_path / "new" / "picture.png"
    plot_throughput(panels, path, title="title", kinds={"ours": "kind"}, limit="limit")
    assert path.read_bytes().startswith(b"\x89PNG")
