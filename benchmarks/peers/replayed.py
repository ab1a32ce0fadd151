"""Vectorized environment that replays recorded steps at almost no cost."""

from __future__ import annotations

from typing import Any


class Replayed:
    """Vectorized environment for XuanCe's agents that replays recorded steps, ignoring actions.

    Episodes end as recorded, so the agent does all of its usual work.

    Args:
        envs: XuanCe's vectorized environment to record; it is not stepped afterwards.
        batches: actions for the recorded steps.
    """

    def __init__(self, envs: Any, batches: Any) -> None:
        envs.reset()
        self._envs = envs
        self._steps = []
        for actions in batches:
            result = envs.step(actions)
            dicts = [dict(info) for info in result[4]]
            self._steps.append(((*result[:4], dicts), envs.buf_obs.copy()))
        self._next = 0
        self.buf_obs = self._steps[0][1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._envs, name)

    def step(self, actions: Any) -> Any:
        """Return the next recorded result."""
        result, self.buf_obs = self._steps[self._next]
        self._next = (self._next + 1) % len(self._steps)
        return result
