"""What the environments of this package have in common, whatever they wrap."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from xuance_envs.errors import caller_stacklevel

__all__ = ["EnvWrapper"]


class EnvWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that renders in one mode, and can be closed more than once.

    Args:
        env: What the library's ``make`` returned.
    """

    _is_closed = False
    _has_warned = False

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)

    def render(self, mode: str | None = None, *, render_mode: str | None = None) -> Any:
        """Render as the environment's ``render_mode`` says.

        Args:
            mode: None, or the ``render_mode`` given at construction. ``"human"`` is taken where
                frames are made, too: they are returned, and a warning says once that nothing is
                shown.
            render_mode: The same, by the name that XuanCe's Atari environment has for it.

        Raises:
            ValueError: The mode is another one: Gymnasium fixes it at construction.
        """
        mode = render_mode if mode is None else mode
        if mode is not None and mode != self.render_mode:
            fault = (
                f"cannot render in mode {mode!r}: the environment was made with "
                f"render_mode={self.render_mode!r}; give render_mode={mode!r} when making it"
            )
            if mode != "human" or self.render_mode is None:
                raise ValueError(fault)
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"{fault}. Its frames are returned instead", stacklevel=caller_stacklevel()
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
