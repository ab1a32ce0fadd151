"""Files from which what went wrong in an environment can be made to happen again."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.serialization import dumps_for_worker, loads
from xuance_envs.errors import StateError
from xuance_envs.state.env_states import EnvStates
from xuance_envs.state.file_format import header_of, write, write_file
from xuance_envs.state.pickling import dumps_plain

__all__ = ["FailureRecord", "FailureRecorder"]

logger = logging.getLogger("xuance_envs")

_NAME = "failure"


class FailureRecord:
    """What is in such a file.

    Reading one imports and calls what its environments are made of: read only what you trust.
    """

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        header = header_of(data)
        self.states = EnvStates.from_bytes(data, trusted=True)
        content = self.states.shared_extra(_NAME)
        if content is None:
            raise StateError(
                -1, "replay", f"{path}: expected the record of a failure, got states only"
            )
        self.what: str = header[_NAME]["what"]
        self.first: int = header[_NAME]["first"]
        functions, self.actions = content
        self.functions, self.keywords = loads(functions)


class FailureRecorder:
    """Writes them."""

    def __init__(self, folder: str | Path, recipe: Recipe) -> None:
        self._folder = Path(folder)
        self._recipe = list(recipe.env_fns), [dict(each) for each in recipe.keywords]
        self._first = recipe.first
        self._count = 0

    def write(self, states: Any, actions: Sequence[Sequence[Any]], what: str) -> Path | None:
        """Writes one; a failure to do so is logged, because another one is being told already."""
        if states is None:
            logger.warning("a failure was not recorded: there is no state from before it")
            return None
        try:
            content = dumps_for_worker(self._recipe), actions
            told = EnvStates.from_groups(*states)
            data = write(
                told.envs,
                told.facts,
                {_NAME: dumps_plain(content)},
                failure={"what": what, "first": self._first, "steps": len(actions)},
            )
            self._folder.mkdir(parents=True, exist_ok=True)
            when = time.strftime("%Y%m%d-%H%M%S")
            name = f"{when}-{os.getpid()}-env{self._first}-{self._count}.xenvs"
            path = self._folder / name
            write_file(path, data)
        except Exception:
            logger.warning("a failure was not recorded", exc_info=True)
            return None
        self._count += 1
        logger.warning("a failure was recorded in %s: python -m xuance_envs replay %s", path, path)
        return path
