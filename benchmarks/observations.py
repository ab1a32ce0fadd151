"""Measure the cost of large observations, with environments that only return them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.shared.envs import MadeUpEnv
from benchmarks.shared.sweep import answer, sweep_parser

SIZES: dict[str, Callable[[], Any]] = {
    "4 floats": partial(MadeUpEnv, shape=(4,)),
    "376 floats": partial(MadeUpEnv, shape=(376,)),
    "84×84×4 bytes": partial(MadeUpEnv, shape=(84, 84, 4), dtype=np.uint8),
    "210×160×3 bytes": partial(MadeUpEnv, shape=(210, 160, 3), dtype=np.uint8),
}
"""Sizes of CartPole, of the larger MuJoCo robots, of stacked frames, of an Atari screen."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = sweep_parser("observations", __doc__, num_envs=16)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), metavar="SIZE")
    args = parser.parse_args(argv)
    answer(args, __doc__, "observation", {size: SIZES[size] for size in args.sizes})


if __name__ == "__main__":
    main()
