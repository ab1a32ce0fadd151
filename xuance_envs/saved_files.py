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

from xuance_envs.engine.failure_files import Failure
from xuance_envs.errors import EnvError
from xuance_envs.report import markdown_table
from xuance_envs.state.file_format import header_of
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv

__all__ = ["add_replay_arguments", "add_state_arguments", "run_replay", "run_state"]

_FILM = 1 << 28
"""Bytes that pictures may take."""

_SIDE = 400
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
    failure = Failure(args.file)
    print(f"what happened: {failure.what.splitlines()[0]}")
    print(
        f"{len(failure.actions)} steps of {len(failure.functions)} environments, the last one is it"
    )
    functions = [
        (lambda function=function, given=given: function(**given))
        for function, given in zip(failure.functions, failure.keywords, strict=True)
    ]
    film = _Film() if args.render else None
    culprit = 0
    envs = DummyVecEnv(functions)
    with envs:
        envs.reset()
        envs.load_state(failure.states)
        if film is not None:
            film.add(envs)
        for number, leaves in enumerate(failure.actions, 1):
            try:
                obs, rewards, *_ = envs.step(envs.batch_of_actions(leaves))
            except EnvError as error:
                if args.pdb and error.__cause__ is not None:
                    pdb.post_mortem(error.__cause__.__traceback__)
                print(f"step {number} raised: {error}")
                culprit = error.env_index
                break
            if film is not None:
                film.add(envs)
            if (found := _with_nan(obs, rewards)).any():
                print(f"step {number} gave a NaN: rewards {rewards}, observations {obs}")
                if args.pdb:
                    pdb.set_trace()
                culprit = int(found.argmax())
                break
        else:
            print("it did not happen again: what it depends on is not in the environments' states")
    if film is not None:
        film.save(args.file.with_suffix(".gif"), culprit)


def _with_nan(obs: Any, rewards: NDArray[Any]) -> NDArray[np.bool_]:
    """By environment, whether there is a NaN in what it gave."""
    parts = obs.values() if isinstance(obs, dict) else obs if isinstance(obs, tuple) else [obs]
    found: NDArray[np.bool_] = np.isnan(rewards)
    for array in (np.asarray(part) for part in parts):
        if array.dtype.kind == "f":
            found |= np.isnan(array.reshape(len(rewards), -1)).any(axis=1)
    return found


class _Film:
    """The last pictures of environments that draw into arrays."""

    def __init__(self) -> None:
        self._pictures: deque[list[Any]] = deque()
        self._size = 0
        self._mode: str | None = None

    def add(self, envs: DummyVecEnv) -> None:
        """Renders all of them."""
        self._mode = envs.render_mode
        pictures = [_smaller(picture) for picture in envs.render()]
        self._pictures.append(pictures)
        self._size += sum(picture.nbytes for picture in pictures if picture is not None)
        while self._size > _FILM and len(self._pictures) > 1:
            first = self._pictures.popleft()
            self._size -= sum(picture.nbytes for picture in first if picture is not None)

    def save(self, path: Path, env: int) -> None:
        """Writes the pictures of one environment, if it gave any."""
        pictures = [each[env] for each in self._pictures if each[env] is not None]
        if not pictures:
            if self._mode != "human":
                print("there is nothing to see: the environments were made without a render_mode")
            return
        try:
            from PIL import Image
        except ImportError:
            print('pictures need Pillow: pip install "xuance_envs[torch]"')
            return
        first, *rest = map(Image.fromarray, pictures)
        first.save(path, save_all=True, append_images=rest, duration=_DURATION, loop=0)
        print(f"the last {len(pictures)} pictures of environment {env}: {path}")


def _smaller(picture: Any) -> NDArray[Any] | None:
    """A picture of at most some hundred pixels a side; None for anything else."""
    if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.ndim != 3:
        return None
    step = max(1, math.ceil(max(picture.shape[:2]) / _SIDE))
    return picture[::step, ::step].copy()
