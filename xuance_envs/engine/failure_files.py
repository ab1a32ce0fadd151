"""Files that reproduce a recorded failure."""

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

logger = logging.getLogger("xuance_envs")

_NAME = "failure"


class FailureRecord:
    """Content of a failure file; reading it unpickles functions, so the file must be trusted."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        header = header_of(data)
        self.states = EnvStates.from_bytes(data, trusted=True)
        content = self.states.shared_extra(_NAME)
        if content is None:
            raise StateError(
                -1, "replay", f"{path}: expected a recorded failure, got a file of saved states"
            )
        self.what: str = header[_NAME]["what"]
        self.first: int = header[_NAME]["first"]
        functions, self.actions = content
        self.functions, self.keywords = loads(functions)


class FailureRecorder:
    """Writer of failure files for one group."""

    def __init__(self, folder: str | Path, recipe: Recipe) -> None:
        self._folder = Path(folder)
        self._env_fns = list(recipe.env_fns)
        self.keywords = recipe.keywords  # those with which the environments were created
        self._first = recipe.first
        self._count = 0

    def write(self, states: Any, actions: Sequence[Sequence[Any]], what: str) -> Path | None:
        """Write a file and return its path; if this fails, log a warning and return None."""
        if states is None:
            logger.warning("failure not recorded: no environment states were saved before it")
            return None
        try:
            recipe = self._env_fns, [dict(each) for each in self.keywords]
            content = dumps_for_worker(recipe), actions
            saved = EnvStates.from_groups(*states)
            data = write(
                saved.envs,
                saved.facts,
                {_NAME: dumps_plain(content)},
                failure={"what": what, "first": self._first, "steps": len(actions)},
            )
            self._folder.mkdir(parents=True, exist_ok=True)
            timestamp = time.strftime("%Y%m%d-%H%M%S")
            name = f"{timestamp}-{os.getpid()}-env{self._first}-{self._count}.xenvs"
            path = self._folder / name
            write_file(path, data)
        except Exception:
            # The original failure is raised next, so this one is only logged.
            logger.warning("failure not recorded: writing the file failed", exc_info=True)
            return None
        self._count += 1
        logger.warning(
            "failure recorded in %s; reproduce it with: python -m xuance_envs replay %s", path, path
        )
        return path
