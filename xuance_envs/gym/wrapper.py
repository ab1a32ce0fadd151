"""What the environments of this package have in common, whatever they wrap."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

__all__ = ["EnvWrapper"]


class EnvWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that renders in one mode, and can be closed more than once.

    Args:
        env: What the library's ``make`` returned.
    """

    _is_closed = False

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)

    def render(self, mode: str | None = None) -> Any:
        """Render as the environment's ``render_mode`` says.

        Args:
            mode: None, or the ``render_mode`` given at construction.

        Raises:
            ValueError: ``mode`` is another one: Gymnasium fixes it at construction.
        """
        if mode is not None and mode != self.render_mode:
            raise ValueError(
                f"cannot render in mode {mode!r}: the environment was made with "
                f"render_mode={self.render_mode!r}; give render_mode={mode!r} when making it"
            )
        return self.env.render()

    def close(self) -> None:
        """Close the environment; closing again does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self.env.close()

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]  # as in gymnasium.Wrapper
        """The spec of the environment that ``make`` returned, which ``gymnasium.make`` takes."""
        return self.env.spec
