"""The commands about files: what is in a file of states, and a failure once more."""

from __future__ import annotations

import argparse
import datetime
import math
import pdb
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.failure_files import FailureRecord
from xuance_envs.errors import EnvError
from xuance_envs.report import markdown_table
from xuance_envs.state.file_format import header_of
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv

__all__ = ["add_replay_arguments", "add_state_arguments", "run_replay", "run_state"]

_MAX_FRAME_BYTES = 1 << 28
"""Bytes that pictures may take."""

_MAX_SIDE = 400
"""Pixels that a picture may have a side."""

_DURATION = 40
"""Milliseconds that a picture is shown."""


def add_state_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what ``state`` takes."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a file of states, .xenvs")


def run_state(args: argparse.Namespace) -> None:
    """Print what a file of states says of itself; nothing in it is executed."""
    data = args.file.read_bytes()
    header = header_of(data)
    when = datetime.datetime.fromtimestamp(args.file.stat().st_mtime).isoformat(" ", "seconds")
    print(
        f"{args.file}: {len(header['envs'])} environments, {len(data):,} bytes "
        f"({header['bytes']:,} in memory), written {when}"
    )
    print("saved with", ", ".join(f"{k} {v}" for k, v in header["versions"].items()))
    for digest, what in header["what"].items():
        print(f"\n{digest}:")
        for name, value in what["is"].items():
            shown = ", ".join(value) if isinstance(value, list) else value
            print(f"  {name}: {shown}")
        print("  of", ", ".join(f"{name} {version}" for name, version in what["versions"].items()))
    if "failure" in header:
        print(f"\nafter {header['failure']['steps']} steps: {header['failure']['what']}")
    print()
    rows = [_row(number, env) for number, env in enumerate(header["envs"])]
    print(markdown_table(["environment", "kind", "bytes", "what", "kept besides"], rows))
    if header["shared"]:
        print("for all together:", ", ".join(header["shared"]))


def _row(number: int, env: dict[str, Any]) -> list[str]:
    extras = ", ".join(f"{name} ({length:,} bytes)" for name, length in env["extras"].items())
    return [str(number), env["kind"], f"{env['bytes']:,}", env["what"][:8], extras]


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what ``replay`` takes."""
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="a file that record_failures left; replaying it runs the code in it, so only those "
        "you trust",
    )
    parser.add_argument("--pdb", action="store_true", help="a debugger where it raises")
    parser.add_argument(
        "--render",
        action="store_true",
        help="render each step: in a window if the environments were made with "
        "render_mode='human', into FILE.gif with 'rgb_array'",
    )


def run_replay(args: argparse.Namespace) -> None:
    """Make a recorded failure happen again, in this process."""
    failure = FailureRecord(args.file)
    print(f"what happened: {failure.what.splitlines()[0]}")
    print(
        f"{len(failure.actions)} steps of {len(failure.functions)} environments, the last one is it"
    )
    functions = [
        (lambda function=function, given=given: function(**given))
        for function, given in zip(failure.functions, failure.keywords, strict=True)
    ]
    frame_history = _FrameHistory() if args.render else None
    failing_env = 0
    envs = DummyVecEnv(functions)
    with envs:
        envs.reset()
        envs.load_state(failure.states)
        if frame_history is not None:
            frame_history.add(envs)
        for number, leaves in enumerate(failure.actions, 1):
            try:
                obs, rewards, *_ = envs.step(envs.batch_of_actions(leaves))
            except EnvError as error:
                if args.pdb and error.__cause__ is not None:
                    pdb.post_mortem(error.__cause__.__traceback__)
                print(f"step {number} raised: {error}")
                failing_env = error.env_index
                break
            if frame_history is not None:
                frame_history.add(envs)
            if (found := _with_nan(obs, rewards)).any():
                print(f"step {number} gave a NaN: rewards {rewards}, observations {obs}")
                if args.pdb:
                    pdb.set_trace()
                failing_env = int(found.argmax())
                break
        else:
            print("it did not happen again: what it depends on is not in the environments' states")
    if frame_history is not None:
        frame_history.save(args.file.with_suffix(".gif"), failing_env)


def _with_nan(obs: Any, rewards: NDArray[Any]) -> NDArray[np.bool_]:
    """By environment, whether there is a NaN in what it gave."""
    parts = obs.values() if isinstance(obs, dict) else obs if isinstance(obs, tuple) else [obs]
    found: NDArray[np.bool_] = np.isnan(rewards)
    for array in (np.asarray(part) for part in parts):
        if array.dtype.kind == "f":
            found |= np.isnan(array.reshape(len(rewards), -1)).any(axis=1)
    return found


class _FrameHistory:
    """The last pictures of environments that draw into arrays."""

    def __init__(self) -> None:
        self._images: deque[list[Any]] = deque()
        self._size = 0
        self._mode: str | None = None

    def add(self, envs: DummyVecEnv) -> None:
        """Renders all of them."""
        self._mode = envs.render_mode
        images = [_downscaled(image) for image in envs.render()]
        self._images.append(images)
        self._size += sum(image.nbytes for image in images if image is not None)
        while self._size > _MAX_FRAME_BYTES and len(self._images) > 1:
            first = self._images.popleft()
            self._size -= sum(image.nbytes for image in first if image is not None)

    def save(self, path: Path, env: int) -> None:
        """Writes the pictures of one environment, if it gave any."""
        images = [each[env] for each in self._images if each[env] is not None]
        if not images:
            if self._mode != "human":
                print("there is nothing to see: the environments were made without a render_mode")
            return
        try:
            from PIL import Image
        except ImportError:
            print('pictures need Pillow: pip install "xuance_envs[torch]"')
            return
        first, *rest = map(Image.fromarray, images)
        first.save(path, save_all=True, append_images=rest, duration=_DURATION, loop=0)
        print(f"the last {len(images)} pictures of environment {env}: {path}")


def _downscaled(image: Any) -> NDArray[Any] | None:
    """A picture of at most some hundred pixels a side; None for anything else."""
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3:
        return None
    step = max(1, math.ceil(max(image.shape[:2]) / _MAX_SIDE))
    return image[::step, ::step].copy()
