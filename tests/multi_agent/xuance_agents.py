"""Trains one of XuanCe's algorithms for a moment; prints hashes of its scores and weights.

Run as ``python xuance_agents.py ALGORITHM``. It trains with XuanCe's own classes (``xuance``), and
with ours over XuanCe's environment (``ours``) and over our own (``world``).
"""

from __future__ import annotations

import hashlib
import importlib
import os
import random
import sys
import tempfile
import warnings
from argparse import Namespace
from pathlib import Path

warnings.filterwarnings("ignore")

import mpe2
import numpy as np
import torch
import yaml

WORLD = "simple_spread_v3"
sys.modules["pettingzoo.mpe"] = mpe2  # where XuanCe looks for it
sys.modules[f"pettingzoo.mpe.{WORLD}"] = importlib.import_module(f"mpe2.{WORLD}")

import xuance
from xuance.environment import DummyVecMultiAgentEnv, XuanCeMultiAgentEnvWrapper
from xuance.environment.multi_agent_env.mpe import MPE_Env
from xuance.torch.agents import REGISTRY_Agents

import xuance_envs


def configuration(algorithm: str) -> Namespace:
    configs = Path(xuance.__file__).parent / "configs"
    read = lambda path: yaml.safe_load((configs / path).read_text())  # noqa: E731  # twice
    settings = read("basic.yaml") | read(f"{algorithm.lower()}/mpe/{WORLD}.yaml")
    on_policy = algorithm in ("IPPO", "MAPPO")
    folder = tempfile.mkdtemp()
    settings |= {
        "parallels": 4,
        "device": "cpu",
        "logger": "tensorboard",
        "log_dir": folder,
        "model_dir": folder,
        "buffer_size": 400 if on_policy else 4000,
        "n_epochs": 2,
        "distributed_training": False,
        "render": False,
        "render_mode": None,
        "start_training": 200,
        "continuous_action": algorithm != "QMIX",
        "env_seed": 1,
    }
    os.chdir(folder)
    return Namespace(**settings)


def train(algorithm: str, classes: str) -> str:
    config = configuration(algorithm)

    def theirs(env_seed):
        config.env_seed = env_seed
        return XuanCeMultiAgentEnvWrapper(MPE_Env(config))

    def ours(env_seed):
        config.env_seed = env_seed
        return xuance_envs.MPE_Env(config)

    kind = DummyVecMultiAgentEnv if classes == "xuance" else xuance_envs.DummyVecMultiAgentEnv
    envs = kind([ours if classes == "world" else theirs] * 4, 1)
    scores = []
    step = envs.step

    def watched(actions):
        if classes == "xuance":  # which writes into what its caller holds
            for name in ("buf_obs", "buf_state", "buf_avail_actions"):
                setattr(envs, name, list(getattr(envs, name)))
            actions = [dict(each) for each in actions]
        result = step(actions)
        for ended, info in zip(result[3], result[4], strict=True):
            if ended:
                scores.append([float(score) for score in info["episode_score"].values()])
        return result

    envs.step = watched
    random.seed(0)
    np.random.seed(0)  # XuanCe's
    torch.manual_seed(0)
    for i, space in enumerate(envs.action_space.values()):
        space.seed(i)
    agent = REGISTRY_Agents[config.agent](config=config, envs=envs)
    agent.train(400)
    weights = hashlib.sha256()
    for parameter in agent.policy.state_dict().values():
        weights.update(parameter.numpy().tobytes())
    envs.close()
    hashed = hashlib.sha256(repr(scores).encode())
    return f"{len(scores)} scores {hashed.hexdigest()}, weights {weights.hexdigest()}"


def main() -> None:
    torch.set_num_threads(1)
    for classes in ("xuance", "ours", "world"):
        print("trained with", classes, train(sys.argv[1], classes), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
