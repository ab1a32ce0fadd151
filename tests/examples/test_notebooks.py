"""The notebooks in ``examples``, run cell by cell; that with a server is in tests/remote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_are_notebooks_without_outputs(path: Path) -> None:
    notebook = read(path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        expected = {"cell_type", "id", "metadata", "source"}
        if cell["cell_type"] == "code":
            expected |= {"execution_count", "outputs"}
            assert (cell["execution_count"], cell["outputs"]) == (None, [])
        assert set(cell) == expected


def run(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that there are when all cells have run."""
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot as plt

    shown: list[int] = []
    monkeypatch.setattr(plt, "show", lambda: shown.extend(plt.get_fignums()))
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in read(EXAMPLES / name)["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    assert shown, "there is a picture at the end"
    plt.close("all")
    return names


@pytest.mark.slow("a training run")
def test_the_first_training_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    history = run("first_training.ipynb", monkeypatch)["history"]
    assert history[-1].mean() > max(400, 5 * history[0].mean())


def test_what_is_saved_goes_on_as_it_did_here_and_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = run("saving_and_branching.ipynb", monkeypatch)
    assert names["same"]
    assert names["elsewhere"]
    angles = names["angles"]
    assert angles.shape == (20, 16)
    assert np.nanstd(angles[5]) > 0, "the futures part"


@pytest.mark.slow("a training run")
def test_many_agents_learn_to_cover_their_landmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpe2")
    history = run("multi_agent.ipynb", monkeypatch)["history"]
    assert history[-1].mean() > 0.75 * history[0].mean()  # returns are negative


def test_every_example_has_a_row_in_their_readme() -> None:
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert {name for name in files if f"| [`{name}`]({name}) |" not in readme} == set()
    rows = [line for line in readme.splitlines() if line.startswith("| [`")]
    assert len(rows) == len(files)
    assert {row.count(" | ") for row in rows} == {3}
