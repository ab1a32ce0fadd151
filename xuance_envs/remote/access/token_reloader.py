"""Tokens that change while the server runs."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress

from xuance_envs.remote.access.tokens import Tokens
from xuance_envs.remote.serving.admission import Accounts
from xuance_envs.remote.sessions import Sessions

__all__ = ["TokenReloader"]

logger = logging.getLogger("xuance_envs")

POLL_INTERVAL = 1.0
"""Seconds between two looks at the file."""


class TokenReloader:
    """Reads the tokens again when it is told to; sessions of tokens that are gone are closed."""

    def __init__(self, tokens: Tokens, accounts: Accounts, sessions: Sessions) -> None:
        self._tokens = tokens
        self._accounts = accounts
        self._sessions = sessions
        self._reloading: asyncio.Task[None] | None = None

    def handle_sighup(self) -> None:
        """Has SIGHUP read the tokens again, where this thread is told of signals."""
        with suppress(AttributeError, NotImplementedError, RuntimeError, ValueError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._begin)

    def _begin(self) -> None:
        self._reloading = asyncio.create_task(self.reload())

    async def reload(self, only_if_changed: bool = False) -> None:
        """Reads the tokens again; where they cannot be read, they stay as they are."""
        try:
            if only_if_changed:
                if not await asyncio.to_thread(self._tokens.reload_if_changed):
                    return
            else:
                await asyncio.to_thread(self._tokens.reload)
        except (OSError, ValueError) as error:
            logger.error("the tokens stay as they are: %s", error)
            return
        logger.info("read the tokens again: %d", len(self._tokens))
        for session in self._sessions:
            if not self._tokens.accepts(session.account.owner):
                await self._sessions.close(session, "its token is none of the server's any more")
        self._accounts.forget_idle()  # the others' limits change when their sessions have ended

    async def watch(self) -> None:
        """Looks after the file, for ever."""
        while True:
            await asyncio.sleep(POLL_INTERVAL)
            await self.reload(only_if_changed=True)
