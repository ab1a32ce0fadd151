"""The base class of this package's environments."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from xuance_envs.errors import caller_stacklevel


class EnvWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper with a fixed render mode; it can be closed repeatedly."""

    max_episode_steps: int | None
    reward_range: tuple[float, float]
    _is_closed = False
    _has_warned = False

    def render(self, mode: str | None = None, *, render_mode: str | None = None) -> Any:
        """Render in the environment's ``render_mode``.

        Args:
            mode: None, or the ``render_mode`` given at construction. ``"human"`` is also accepted
                by environments that return frames: they return the frame and warn once that nothing
                is displayed.
            render_mode: XuanCe's name for ``mode``.

        Raises:
            ValueError: ``mode`` differs from ``render_mode``, which is fixed at construction.
        """
        mode = render_mode if mode is None else mode
        if mode is not None and mode != self.render_mode:
            fault = (
                f"cannot render in mode {mode!r}: the environment was made with "
                f"render_mode={self.render_mode!r}; make it with render_mode={mode!r}"
            )
            if mode != "human" or self.render_mode is None:
                raise ValueError(fault)
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"{fault}; frames are returned instead", stacklevel=caller_stacklevel()
                )
        return self.env.render()

    def close(self) -> None:
        """Close the environment. Calling ``close`` again does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self.env.close()

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]  # as in gymnasium.Wrapper
        """Spec of the wrapped environment; ``gymnasium.make`` accepts it."""
        return self.env.spec
