"""State dicts that were saved to a checkpoint and loaded again."""

from __future__ import annotations

import io
from typing import Any

import torch


def through_torch(state: Any) -> Any:
    """Save a state, and load it with ``weights_only=True``, which PyTorch 2.4 cannot do."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=not torch.__version__.startswith("2.4"))
