"""GIF recordings of one environment's episodes."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from xuance_envs.rollout.gif import GifWriter
from xuance_envs.vector_envs.arguments import checked_number

__all__ = ["GifRecorder", "image_of", "render_folder"]

logger = logging.getLogger("xuance_envs")

TEXT_COLOR = (0, 204, 102)


def render_folder() -> str:
    """Return ``renders/<project>/<run>`` of the active wandb run, else ``renders/misc``."""
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is None:
        return "renders/misc"
    project = _folder_name(getattr(run, "project", None) or "uncategorized")
    name = _folder_name(getattr(run, "name", None) or getattr(run, "id", None) or "unnamed")
    return f"renders/{project}/{name}"


def _folder_name(name: Any) -> str:
    return re.sub(r'[\\/:*?"<>|\x00-\x1f]', "-", str(name)).strip(". ") or "unnamed"


def image_of(frame: Any) -> Image.Image:
    """Convert a frame, ``(height, width)`` or with 3 or 4 channels as last axis, to RGB.

    Values are from 0 to 255. Booleans, and floats of at most 1, are multiplied by 255.
    """
    array = np.asarray(frame)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise ValueError(
            "render: expected an image, (height, width) or (height, width, 3 or 4), got "
            f"{type(frame).__name__} of shape {array.shape}: make the environments with "
            "render_mode='rgb_array'"
        )
    low, high = array.min(), array.max()
    if not (low >= 0 and high <= 255):
        raise ValueError(
            f"render: expected values from 0 to 255, or floats from 0 to 1, got {array.dtype} from "
            f"{low} to {high}"
        )
    if array.dtype.kind in "bf" and high <= 1:
        array = np.rint(array * 255.0)
    return Image.fromarray(array.astype(np.uint8)).convert("RGB")


class GifRecorder:
    """A recorder of environment 0's first episode, and then of one episode after each interval.

    Each recording is a complete episode with one frame per step. Frames show the reward so far, one
    number per component. The recording is saved at the end of the episode as ``render_<k>.gif``,
    with k counting from 0.

    Args:
        render_every: interval between recordings, in steps summed over all environments. The first
            episode that starts after an interval is recorded.
        fps: frames per second of the GIF.
        folder: folder of the GIFs, created immediately; None for :func:`render_folder`, evaluated
            at each recording.

    Raises:
        ValueError: ``render_every`` is below 1, or ``fps`` is not a positive finite number; in
            :meth:`before_step`, ``render`` did not return an image.

    Attributes:
        paths (list[pathlib.Path]): paths of the saved recordings.

    Example:
        >>> import tempfile
        >>> from xuance_envs import Gym_Env
        >>> from xuance_envs.rollout import GifRecorder
        >>> env = Gym_Env("CartPole-v1", seed=0, render_mode="rgb_array")
        >>> _ = env.reset()
        >>> recorder = GifRecorder(render_every=1, folder=tempfile.mkdtemp())
        >>> recorder.begin(global_steps=0)
        >>> steps, finished = 0, False
        >>> while not finished:
        ...     recorder.before_step(env.render)
        ...     _, reward, terminated, truncated, _ = env.step(1)
        ...     steps, finished = steps + 1, terminated or truncated
        ...     recorder.after_step(reward, finished, steps)
        >>> recorder.count, recorder.paths[0].name
        (1, 'render_0.gif')
        >>> env.close()
    """

    def __init__(
        self, render_every: float, fps: float = 30.0, folder: str | Path | None = None
    ) -> None:
        self.render_every = checked_number(
            "render_every", render_every, lambda steps: steps >= 1, "at least 1 step"
        )
        self.fps = checked_number(
            "fps", fps, lambda rate: 0 < rate < float("inf"), "a finite number above 0"
        )
        self.paths: list[Path] = []
        self._folder = folder
        self._next_recording = 0.0
        self._writer: GifWriter | None = None
        self._reward: Any = 0.0
        Path(self.folder).mkdir(parents=True, exist_ok=True)

    @property
    def count(self) -> int:
        """Number of saved recordings; the next file is named after this number."""
        return len(self.paths)

    @property
    def is_recording(self) -> bool:
        """True if the current episode is being recorded."""
        return self._writer is not None

    @property
    def folder(self) -> str:
        """Folder of the recordings."""
        return render_folder() if self._folder is None else str(self._folder)

    def begin(self, global_steps: int) -> None:
        """Start a new episode; discard the frames of an unfinished one.

        Args:
            global_steps: environment steps so far.
        """
        self._reward = 0.0
        wanted = global_steps >= self._next_recording
        if wanted:
            self._next_recording = (global_steps // self.render_every + 1) * self.render_every
        if self._writer is not None:
            self._writer.close()
            wanted = True
        self._writer = GifWriter(self.fps) if wanted else None

    def before_step(self, render: Callable[[], Any]) -> None:
        """Capture a frame if the episode is being recorded.

        Args:
            render: a function that returns an image of environment 0: an array
                ``(height, width)``, or with 3 or 4 color channels as last axis; its values are from
                0 to 255, or floats from 0 to 1.
        """
        if self._writer is not None:
            image = image_of(render())
            size = max(10, image.height // 20)
            text, font = f"Total Reward: {_text(self._reward)}", ImageFont.load_default(size)
            ImageDraw.Draw(image).text((size, size), text, fill=TEXT_COLOR, font=font)
            self._writer.add(image)

    def after_step(self, reward: Any, finished: bool, global_steps: int) -> None:
        """Record a step of environment 0 and, at the end of its episode, save the GIF.

        Args:
            reward: reward of the step: a number, or an array of the components of a vector.
            finished: True if the episode finished and the next one has started.
            global_steps: environment steps so far.
        """
        self._reward = self._reward + reward
        if finished:
            writer, self._writer = self._writer, None
            if writer is not None and writer.count:
                path = Path(self.folder) / f"render_{self.count}.gif"
                path.parent.mkdir(parents=True, exist_ok=True)
                writer.save(path)
                self.paths.append(path)
                total = _text(self._reward)
                logger.info("saved a recording with total reward %s: %s", total, path)
            self.begin(global_steps)

    def state(self) -> dict[str, Any]:
        """Return the recorder's state, including the current recording."""
        return {
            "paths": [str(path) for path in self.paths],
            "due": self._next_recording,
            "reward": np.asarray(self._reward).tolist(),
            "film": None if self._writer is None else self._writer.state(),
        }

    def set_state(self, state: dict[str, Any] | None) -> None:
        """Restore the result of :meth:`state`; None discards the frames of the current episode."""
        if self._writer is not None:
            self._writer.close()
            self._writer, self._next_recording = None, 0.0
        if state is None:
            return
        self.paths = [Path(path) for path in state["paths"]]
        self._next_recording = state["due"]
        self._reward = np.asarray(state["reward"], np.float64)[()]
        self._writer = None if state["film"] is None else GifWriter.restored(state["film"])


def _text(reward: Any) -> str:
    """Format a number, or the components of a vector."""
    components = [f"{each:g}" for each in np.atleast_1d(reward).tolist()]
    return f"({', '.join(components)})" if np.ndim(reward) else components[0]
