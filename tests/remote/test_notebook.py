"""Run the notebook in ``examples`` cell by cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from remote_envs import cart_pole
from serving import ServerMaker

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "remote_notebook.ipynb"


def cells(kind: str) -> list[str]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


@pytest.mark.slow("trains an agent over HTTP")
def test_it_runs_from_the_first_cell_to_the_last(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve({"CartPole-v1": cart_pole}, tokens=("student-1", "student-2"))
    monkeypatch.setenv("XUANCE_ENVS_URL", server.url)
    monkeypatch.setenv("XUANCE_ENVS_TOKEN", "student-1")
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(cells("code")):
        exec(compile(source, f"cell {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert "(8, 4) float32" in printed
    assert "[(4, 4), (4, 4)," in printed
    history, lengths = names["history"], names["lengths"]
    assert printed.count("mean return") == len(history)
    assert history[-1] > max(150, 3 * history[0]), "nobody can see that it has learned"
    assert len(set(map(tuple, lengths))) > 4, "the environments end at the same times"
    for ended, picture in zip(lengths, names["pictures"], strict=True):
        assert picture.count("|") == len(ended)
    assert httpx.get(f"{server.url}/status.json").json()["sessions"] == 0
