"""Recordings of one environment's episodes as GIFs."""

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

__all__ = ["GifRecorder", "image_of", "render_folder"]

logger = logging.getLogger("xuance_envs")

TEXT_COLOUR = (0, 204, 102)


def render_folder() -> str:
    """Where recordings go: ``renders/<project>/<run>`` of the wandb run that is active.

    Without an active run it is ``renders/misc``. wandb is not imported: a run can only be active
    where somebody has imported it.
    """
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is None:
        return "renders/misc"
    project = _folder_name(getattr(run, "project", None) or "uncategorized")
    name = _folder_name(getattr(run, "name", None) or getattr(run, "id", None) or "unnamed")
    return f"renders/{project}/{name}"


def _folder_name(name: Any) -> str:
    """A name as that of one folder, whatever is in it."""
    return re.sub(r'[\\/:*?"<>|\x00-\x1f]', "-", str(name)).strip(". ") or "unnamed"


def image_of(frame: Any) -> Image.Image:
    """What an environment rendered as an image.

    Raises:
        ValueError: it is not an array of a picture.
    """
    array = np.asarray(frame)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise ValueError(
            "expected render to return a picture, (height, width) or (height, width, 3), got "
            f"{type(frame).__name__} of shape {array.shape}: make the environments with "
            "render_mode='rgb_array'"
        )
    return Image.fromarray(array.astype(np.uint8)).convert("RGB")


class GifRecorder:
    """Records episodes of environment 0: its first, then one whenever some steps have gone by.

    Each recording is of one whole episode, one frame per step however long it is, on each of which
    the reward so far is drawn. It is saved as ``render_<k>.gif`` when the episode ends, k counting
    from 0.

    Args:
        render_every: environment steps, those of all environments counted, from one recording to
            the next. The first episode that begins thereafter is recorded.
        fps: frames per second of the GIF.
        folder: where the GIFs go, made at once; None for :func:`render_folder`, looked up each
            time.

    Raises:
        ValueError: ``render_every`` or ``fps`` is not above 0.

    Attributes:
        render_every: as given.
        fps: as given.
        count (int): how many recordings have been saved; k of the next.
        paths (list[pathlib.Path]): where.
        is_recording (bool): whether this episode is recorded.

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
        if not render_every >= 1:
            raise ValueError(f"render_every: expected at least 1 step, got {render_every}")
        if not 0 < fps < float("inf"):
            raise ValueError(f"fps: expected a number above 0, got {fps}")
        self.render_every = render_every
        self.fps = fps
        self.paths: list[Path] = []
        self._folder = folder
        self._next_recording = 0.0
        self._writer: GifWriter | None = None
        self._reward = 0.0
        Path(self.folder).mkdir(parents=True, exist_ok=True)

    @property
    def count(self) -> int:
        """How many recordings have been saved."""
        return len(self.paths)

    @property
    def is_recording(self) -> bool:
        """Whether this episode is recorded."""
        return self._writer is not None

    @property
    def folder(self) -> str:
        """Where recordings are saved."""
        return render_folder() if self._folder is None else str(self._folder)

    def begin(self, global_steps: int) -> None:
        """Environment 0 begins an episode; what was recorded of an unfinished one is dropped.

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
        """Takes a picture, if a recording is on.

        Args:
            render: renders environment 0.
        """
        if self._writer is not None:
            self._writer.add(self._frame(render()))

    def after_step(self, reward: float, finished: bool, global_steps: int) -> None:
        """Environment 0 has made a step.

        Args:
            reward: of that step.
            finished: whether an episode finished, and the next one has begun.
            global_steps: environment steps so far.
        """
        self._reward += reward
        if finished:
            writer, self._writer = self._writer, None
            if writer is not None and writer.count:
                self._save(writer)
            self.begin(global_steps)

    def state(self) -> dict[str, Any]:
        """What it goes on from, an episode that is being recorded included."""
        return {
            "paths": [str(path) for path in self.paths],
            "due": self._next_recording,
            "reward": float(self._reward),
            "film": None if self._writer is None else self._writer.state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from there.

        Args:
            state: what :meth:`state` gave.
        """
        if self._writer is not None:
            self._writer.close()
        self.paths = [Path(path) for path in state["paths"]]
        self._next_recording, self._reward = state["due"], state["reward"]
        self._writer = None if state["film"] is None else GifWriter.restored(state["film"])

    def _frame(self, rendered: Any) -> Image.Image:
        image = image_of(rendered)
        size = max(10, image.height // 20)
        ImageDraw.Draw(image).text(
            (size, size),
            f"Total Reward: {self._reward:g}",
            fill=TEXT_COLOUR,
            font=ImageFont.load_default(size),
        )
        return image

    def _save(self, writer: GifWriter) -> None:
        path = Path(self.folder) / f"render_{self.count}.gif"
        path.parent.mkdir(parents=True, exist_ok=True)
        writer.save(path)
        self.paths.append(path)
        logger.info("recorded an episode of total reward %g in %s", self._reward, path)
