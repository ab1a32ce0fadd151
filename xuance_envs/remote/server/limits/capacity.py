"""Effective limits, which depend on file descriptors and on the number of token names."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from xuance_envs.engine.system.current import system
from xuance_envs.remote.server.settings import LIMIT_SHARES, Limits, Settings

logger = logging.getLogger("xuance_envs")

FDS_PER_WORKER = 8  # seven for one group, and one for a second group
RESERVED_FDS = 64  # for libraries, the event loop and workers that are starting
MIN_FILES = RESERVED_FDS + 32
PROCESSES_PER_WORKER = 2 if system.HAS_GUARDIANS else 1  # a worker and its guardian


class Capacity:
    """Settings of a server with its effective limits."""

    settings: Settings

    def __init__(self, settings: Settings) -> None:
        self._given = settings
        system.raise_open_files_limit()
        max_files, _ = system.open_files_limits() or (None, None)
        self._max_files: float = math.inf if max_files is None else max_files
        if self._max_files < MIN_FILES:
            raise ValueError(
                f"the server needs a limit of at least {MIN_FILES} open files, got "
                f"{self._max_files}: raise it with ulimit -n or LimitNOFILE"
            )
        self._connections: int | None = None
        self.update_limits()

    @property
    def limits(self) -> Limits:
        return self.settings.limits

    @property
    def max_groups(self) -> float:
        """Maximum number of groups that file descriptors permit, possibly infinite."""
        workers = self.limits.processes // PROCESSES_PER_WORKER
        available = self._max_files - RESERVED_FDS - self.limits.connections
        return available - (FDS_PER_WORKER - 2) * workers

    def update_limits(self) -> None:
        """Adjust the limits to the number of names in the tokens and to the file descriptors."""
        given, names = self._given.limits, self._given.tokens.count_names()
        by_tokens = self._given.limits_by_tokens if names else frozenset()
        least = {"sessions": 1, "environments": 1, "processes": PROCESSES_PER_WORKER}
        totals = {
            name: max(getattr(given, name), names * least[name])
            for name in LIMIT_SHARES.keys() & by_tokens
        }
        wanted = replace(given, **totals)
        limits = self._fit(wanted)
        self._connections = limits.connections
        shares = {
            share: max(least[name], getattr(limits, name) // names)
            for name, share in LIMIT_SHARES.items()
            if share in by_tokens
        }
        limits = replace(limits, **shares)
        self.settings = replace(self._given, limits=limits)
        fields = {name: value or "no limit" for name, value in vars(limits).items()}
        fields["open_files"] = "unlimited" if self._max_files == math.inf else self._max_files
        logger.info(
            "limits: %(sessions)s sessions (%(sessions_per_token)s per token), %(environments)s "
            "environments (%(environments_per_token)s per token), %(processes)s processes "
            "(%(processes_per_token)s per token), %(connections)s connections, %(open_files)s open "
            "files",
            fields,
        )
        if limits.processes < wanted.processes or limits.connections < given.connections:
            logger.warning(
                "the limit of %d open files allows only %d of %d processes and %d of %d "
                "connections: raise it with ulimit -n or LimitNOFILE",
                self._max_files,
                limits.processes,
                wanted.processes,
                limits.connections,
                given.connections,
            )

    def _fit(self, limits: Limits) -> Limits:
        """Reduce workers and connections so that file descriptors suffice for all of them."""
        available = self._max_files - RESERVED_FDS
        connections, workers = self._connections, limits.processes // PROCESSES_PER_WORKER
        if connections is None:
            scale = min(1.0, available / (limits.connections + FDS_PER_WORKER * workers))
            connections = max(1, int(limits.connections * scale))
        most = max(1, (available - connections) / FDS_PER_WORKER)
        if workers > most:
            limits = replace(limits, processes=int(most) * PROCESSES_PER_WORKER)
        return replace(limits, connections=connections)
