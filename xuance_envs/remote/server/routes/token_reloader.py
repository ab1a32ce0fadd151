from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from xuance_envs.engine.system.current import system
from xuance_envs.remote.server.access.tokens import Tokens
from xuance_envs.remote.server.routes.api import Api

logger = logging.getLogger("xuance_envs")

POLL_INTERVAL = 1.0  # seconds between checks of the token file


class TokenReloader:
    """Reloader of the token file; it closes the sessions of revoked tokens."""

    def __init__(self, tokens: Tokens, api: Api) -> None:
        self._tokens = tokens
        self._api = api
        self._reload_task: asyncio.Task[None] | None = None

    def handle_sighup(self) -> None:
        """Reload the tokens on SIGHUP, if this thread can handle signals."""
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(system.hangup_signal(), self._start_reload)

    def _start_reload(self) -> None:
        self._reload_task = asyncio.create_task(self.reload())

    async def reload(self, only_if_changed: bool = False) -> None:
        """Reload the tokens; if they cannot be read, keep the old ones."""
        try:
            reload = self._tokens.reload_if_changed if only_if_changed else self._tokens.reload
            if await asyncio.to_thread(reload) is False:
                return
        except (OSError, ValueError) as error:
            logger.error("cannot reload the tokens, the previous ones stay valid: %s", error)
            return
        logger.info("reloaded the tokens: %d", len(self._tokens))
        sessions = self._api.sessions
        for session in sessions:
            if not self._tokens.accepts(session.account.owner):
                await sessions.close(session, "token revoked")
        for limited in (self._api.capacity, sessions, self._api.accounts):
            limited.update_limits()

    async def watch(self) -> None:
        """Reload the tokens when their file changes; never returns."""
        while True:
            await asyncio.sleep(POLL_INTERVAL)
            await self.reload(only_if_changed=True)
