"""State dicts as a checkpoint takes them."""

from __future__ import annotations

import io
from typing import Any

import torch


def through_torch(state: Any) -> Any:
    """What comes of a state that is saved, and read by a stranger who trusts nothing."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
