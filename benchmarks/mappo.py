"""Measure the duration and the returns of MAPPO, against XuanCe's MAPPO.

examples/train_mappo.py and XuanCe's MAPPO train on simple_spread for the same number of
environment steps. XuanCe's MAPPO uses all settings of the example that it supports. It runs on
XuanCe's SubprocVecMultiAgentEnv and on this package's.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.peers.elsewhere import ROOT, in_xuance
from benchmarks.shared.contest import in_turn
from benchmarks.shared.question import add_outputs, begin, finish, make_parser
from xuance_envs.report import markdown_table

ENV_ID = "mpe2:simple_spread_v3"
EXAMPLE = "examples/train_mappo.py"
LEARNERS = {
    EXAMPLE: None,
    "XuanCe's MAPPO, xuance_envs.SubprocVecMultiAgentEnv": "ours",
    "XuanCe's MAPPO": "xuance",
}
"""By learner: the package whose environments XuanCe's MAPPO uses; None for the example."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser("mappo", __doc__)
    add = parser.add_argument
    add("--num-envs", type=int, default=32, metavar="N", help="default: %(default)s")
    add("--steps", type=int, default=60_000, help="environment steps (default: %(default)s)")
    add(
        "--seeds",
        type=int,
        nargs="+",
        default=[1, 2, 3],
        metavar="SEED",
        help="one training run per seed",
    )
    add("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS), metavar="LEARNER")
    add_outputs(parser, "mappo table")
    args = parser.parse_args(argv)
    run = begin()
    sys.path.insert(0, str(ROOT / "examples"))
    example = vars(importlib.import_module("train_mappo"))
    trainings: dict[str, list[Sequence[float]]] = {name: [] for name in args.learners}
    for seed, name in in_turn(trainings, args.seeds, "training"):
        training = train(LEARNERS[name], example, args.num_envs, args.steps, seed)
        trainings[name].append(training)
    found = []
    for name, each in trainings.items():
        seconds, busy, returns = np.transpose(each).tolist()
        found.append({"learner": name, "seconds": seconds, "busy": busy, "returns": returns})
    last = np.array(found[-1]["seconds"])
    header = (
        "learner",
        "seconds",
        "range",
        "CPU seconds of the main process",
        "speedup",
        "returns",
    )
    rows = [
        [
            row["learner"],
            f"{np.median(row['seconds']):.1f}",
            f"{min(row['seconds']):.1f}-{max(row['seconds']):.1f}",
            f"{np.median(row['busy']):.1f}",
            f"{np.median(last / row['seconds']):.2f}",
            ", ".join(f"{each:.1f}" for each in row["returns"]),
        ]
        for row in found
    ]
    text = markdown_table(header, rows)
    print(f"\n{args.num_envs} × {ENV_ID}, {args.steps:,} environment steps of MAPPO\n\n{text}")
    finish(args, __doc__, run, text, results=found)


def train(
    whose: str | None, example: dict[str, Any], num_envs: int, steps: int, seed: int
) -> Sequence[float]:
    """Return seconds, CPU seconds of the main process, and mean return of the last episodes."""
    if whose is not None:
        given = json.dumps(settings(example, num_envs))
        measured: list[float] = in_xuance(
            "benchmarks.peers.xuance_mappo", whose, num_envs, steps, seed, given=given
        )
        return measured
    busy = time.process_time()
    seconds, curve = example["train"](ENV_ID, num_envs, steps, seed=seed)
    return seconds, time.process_time() - busy, curve[-1][1]


def settings(example: dict[str, Any], num_envs: int) -> dict[str, Any]:
    """Return the example's settings under XuanCe's names."""
    rollout = num_envs * example["STEPS_PER_ENV"]
    return {
        "policy": "Categorical_MAAC_Policy",
        "continuous_action": False,
        "representation_hidden_size": [64],
        "actor_hidden_size": [64],
        "critic_hidden_size": [64],
        "activation": "tanh",
        "buffer_size": rollout,
        "n_epochs": example["EPOCHS"],
        "n_minibatch": max(rollout // example["BATCH"], 1),
        "learning_rate": example["LEARNING_RATE"],
        "gamma": example["GAMMA"],
        "gae_lambda": example["GAE_LAMBDA"],
        "clip_range": example["CLIP"],
        "ent_coef": example["ENTROPY_WEIGHT"],
        "grad_clip_norm": example["MAX_GRADIENT"],
        "vf_coef": 1.0,
        "huber_delta": 1.0,
        "use_value_clip": False,
    }


if __name__ == "__main__":
    main()
