"""What the tests of rollouts share."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("PIL")
pytest.importorskip("tqdm")
