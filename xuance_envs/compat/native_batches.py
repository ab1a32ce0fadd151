"""Helpers for the batches of observations and infos that engines return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Infos = Mapping[str, Any]

Envs = NDArray[np.intp]
"""Ascending indices."""


def rows_of(batch: Any, rows: Any) -> Any:
    """Return some rows of an array, or of each array in dicts and tuples."""
    if isinstance(batch, dict):
        return {key: rows_of(part, rows) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(rows_of(part, rows) for part in batch)
    return batch[rows]


def array_rows_of(infos: Infos, rows: Envs) -> Infos:
    return {key: part[rows] for key, part in infos.items() if isinstance(part, np.ndarray)}


def with_last(batch: Any, envs: Envs, last: Any) -> Any:
    """Return a copy of the batch in which the rows of ``envs`` are taken from ``last``."""
    if isinstance(batch, dict):
        return {key: with_last(part, envs, _part(last, key, envs)) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(with_last(part, envs, _part(last, i, envs)) for i, part in enumerate(batch))
    replaced = np.array(batch)
    if isinstance(last, np.ndarray) and last.dtype != object:
        replaced[envs] = last[envs]
    else:
        for env in envs.tolist():
            replaced[env] = last[env]
    return replaced


def _part(last: Any, key: Any, envs: Envs) -> Any:
    """Return one entry of the observations in ``last``, a batch or an object array."""
    if isinstance(last, dict | tuple):
        return last[key]
    return {env: last[env][key] for env in envs.tolist()}


def with_final_infos(infos: Infos, final_info: Infos, ended: Envs) -> Infos:
    """Return the step's infos, with those of ended episodes taken from ``final_info``."""
    combined: dict[str, Any] = {}
    for key, part in infos.items():
        if not key.startswith("_") and isinstance(part, np.ndarray):
            mask = np.array(infos.get(f"_{key}", np.ones(len(part), np.bool_)))
            mask[ended] = False
            combined[key], combined[f"_{key}"] = np.array(part), mask
    for key, part in final_info.items():
        if key.startswith("_") or not isinstance(part, np.ndarray):
            continue
        mask = final_info.get(f"_{key}", np.ones(len(part), np.bool_))
        if key not in combined or combined[key].dtype != part.dtype:
            combined[key] = np.zeros_like(part)
            combined[f"_{key}"] = np.zeros(len(part), np.bool_)
        combined[key][ended] = part[ended]
        combined[f"_{key}"][ended] = mask[ended]
    return combined
