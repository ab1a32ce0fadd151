"""Vector environments that cost nothing: they give again what others gave before."""

from __future__ import annotations

from typing import Any


class Replayed:
    """What a XuanCe agent takes for a vector environment, whatever actions it sends.

    Episodes end where they did, so the agent does all that it would do.

    Args:
        envs: a vector environment of XuanCe's kind, which steps no more once this is made.
        batches: actions for each of the steps that are given again and again.
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
        """The next step's result, at no cost."""
        result, self.buf_obs = self._steps[self._next]
        self._next = (self._next + 1) % len(self._steps)
        return result
