"""What do info dicts cost? The environments do nothing but hand them over, one a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.shared.envs import MadeUpEnv
from benchmarks.shared.sweep import answer, sweep_parser


def numbers(count: int) -> dict[str, float]:
    return {f"number_{k}": k / 2 for k in range(count)}


INFOS: dict[str, Callable[[], Any]] = {
    "nothing": MadeUpEnv,
    "2 numbers": partial(MadeUpEnv, info=numbers(2)),
    "20 numbers": partial(MadeUpEnv, info=numbers(20)),
    "a string": partial(MadeUpEnv, info={"words": "what cannot be a column of numbers"}),
    "1 kB array": partial(MadeUpEnv, info={"array": np.zeros(128)}),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = sweep_parser("infos", __doc__, num_envs=16)
    parser.add_argument("--infos", nargs="+", choices=INFOS, default=list(INFOS), metavar="INFO")
    args = parser.parse_args(argv)
    answer(args, __doc__, "what is in each info", {name: INFOS[name] for name in args.infos})


if __name__ == "__main__":
    main()
