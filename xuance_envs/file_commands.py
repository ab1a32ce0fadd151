"""The commands ``state`` and ``replay``, which read state and failure files."""

from __future__ import annotations

import argparse
import datetime
import math
import pdb
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.engine.recovery import FailureRecord
from xuance_envs.errors import EnvError, counted
from xuance_envs.extras import how_to_install
from xuance_envs.report import markdown_table
from xuance_envs.state.file_format import header_of
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv

_MAX_FRAME_BYTES = 1 << 28

_MAX_SIDE = 400
"""Maximum height and width of a recorded frame, in pixels."""

_FRAME_MILLISECONDS = 40


def add_state_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run_state)
    parser.add_argument("file", type=Path, metavar="FILE", help="state or failure file (.xenvs)")


def run_state(args: argparse.Namespace) -> None:
    """Print a file's metadata without executing anything in the file."""
    data = args.file.read_bytes()
    header = header_of(data)
    when = datetime.datetime.fromtimestamp(args.file.stat().st_mtime).isoformat(" ", "seconds")
    print(
        f"{args.file}: {counted(len(header['envs']), 'environment')}, {len(data):,} bytes "
        f"({header['bytes']:,} in memory), written {when}"
    )
    print("saved with", ", ".join(f"{k} {v}" for k, v in header["versions"].items()))
    for digest, what in header["what"].items():
        print(f"\n{digest}:")
        for name, value in what["is"].items():
            shown = ", ".join(value) if isinstance(value, list) else value
            print(f"  {name}: {shown}")
        versions = ", ".join(f"{name} {version}" for name, version in what["versions"].items())
        print("  versions:", versions)
    if "failure" in header:
        failure = header["failure"]
        print(f"\nfailure in step {failure['steps']} after saving: {failure['what']}")
    print()
    first = header.get("failure", {}).get("first", 0)
    rows = []
    for number, env in enumerate(header["envs"], first):
        extras = ", ".join(f"{name} ({length:,} bytes)" for name, length in env["extras"].items())
        rows.append([str(number), env["kind"], f"{env['bytes']:,}", env["what"][:8], extras])
    print(markdown_table(["environment", "kind", "bytes", "description", "extras"], rows))
    if header["shared"]:
        print("shared by all environments:", ", ".join(header["shared"]))


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run_replay)
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="file written by environments with record_failures; replaying executes code from it, "
        "so open only files that you trust",
    )
    parser.add_argument(
        "--pdb",
        action="store_true",
        help="start the debugger at the exception, or after the step that returned a NaN",
    )
    parser.add_argument(
        "--render",
        action="store_true",
        help="render every step: in a window if the environments were made with "
        "render_mode='human', to a GIF beside FILE if they were made with 'rgb_array'",
    )


def run_replay(args: argparse.Namespace) -> None:
    failure = FailureRecord(args.file)
    print(f"recorded failure: {failure.what.splitlines()[0]}")
    print(
        f"replaying {counted(len(failure.actions), 'step')} of "
        f"{counted(len(failure.functions), 'environment')}; the last step failed"
    )
    pairs = zip(failure.functions, failure.keywords, strict=True)
    functions = [partial(function, **given) for function, given in pairs]
    frames = _FrameHistory()
    render = frames.add if args.render else (lambda envs: None)
    failing_env = failure.first
    with _recorded_indices(failure.first), DummyVecEnv(functions) as envs:
        layout = SpaceLayout(envs.action_space)
        envs.reset()
        envs.load_state(failure.states)
        render(envs)
        for number, leaves in enumerate(failure.actions, 1):
            try:
                with _recorded_indices(failure.first):
                    obs, rewards, *_ = envs.step(layout.unflatten(leaves))
            except EnvError as error:
                if args.pdb and error.__cause__ is not None:
                    pdb.post_mortem(error.__cause__.__traceback__)
                print(f"step {number} raised: {error}")
                failing_env = error.env_index
                break
            render(envs)
            if (has_nan := _find_nan(obs, rewards)).any():
                failing_env = failure.first + int(has_nan.argmax())
                print(
                    f"environment {failing_env} returned a NaN in step {number}: rewards "
                    f"{rewards}, observations {obs}"
                )
                if args.pdb:
                    pdb.set_trace()
                break
        else:
            print("not reproduced: the failure depends on something outside the saved states")
    if args.render:
        frames.save(args.file.with_suffix(".gif"), failing_env, failure.first)


@contextmanager
def _recorded_indices(first: int) -> Iterator[None]:
    """Change environment indices in errors to the indices in the recorded vec env."""
    try:
        yield
    except EnvError as error:
        if error.env_index >= 0:
            error.env_index += first
        raise


def _find_nan(obs: Any, rewards: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a boolean array of the environments that returned a NaN."""
    parts = obs.values() if isinstance(obs, dict) else obs if isinstance(obs, tuple) else [obs]
    found = np.zeros(len(rewards), np.bool_)
    for array in map(np.asarray, (rewards, *parts)):
        if array.dtype.kind == "f":
            found |= np.isnan(array.reshape(len(rewards), -1)).any(axis=1)
    return found


class _FrameHistory:
    def __init__(self) -> None:
        self._images: deque[list[Any]] = deque()
        self._mode: str | None = None

    def add(self, envs: DummyVecEnv) -> None:
        """Render all environments and store the frames."""
        self._mode = envs.render_mode
        images = [_downscaled(image) for image in envs.render()]
        self._images.append(images)
        size = sum(image.nbytes for image in images if image is not None)
        while len(self._images) > max(1, _MAX_FRAME_BYTES // max(size, 1)):
            self._images.popleft()

    def save(self, path: Path, env: int, first: int) -> None:
        place = env - first
        images = [each[place] for each in self._images if each[place] is not None]
        if not images:
            if self._mode != "human":
                print("no frames to save: the environments were made without 'rgb_array' rendering")
            return
        try:
            from PIL import Image
        except ImportError:
            print(f"saving a GIF requires Pillow: {how_to_install('torch')}")
            return
        image, *rest = map(Image.fromarray, images)
        image.save(path, save_all=True, append_images=rest, duration=_FRAME_MILLISECONDS, loop=0)
        print(f"last {counted(len(images), 'frame')} of environment {env}: {path}")


def _downscaled(image: Any) -> NDArray[Any] | None:
    """Reduce an RGB frame to the maximum size; return None for any other value."""
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3:
        return None
    step = max(1, math.ceil(max(image.shape[:2]) / _MAX_SIDE))
    return image[::step, ::step].copy()
