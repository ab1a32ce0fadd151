"""XuanCe's PPO in its own virtual environment, on XuanCe's or this package's environments.

Run as ``python -m benchmarks.peers.xuance_training WHOSE ENV_ID NUM_ENVS STEPS``. WHOSE is
``xuance``, ``ours``, ``ours-with-caller``, or ``nobody`` for replayed steps. The output line has
the seconds of the training run and the CPU seconds of this process.
"""

import json
import os
import sys
import time
import types
from argparse import Namespace

import numpy as np
import torch

from benchmarks.peers.replayed import Replayed
from xuance_envs.compat.xuance import install


def stand_in_for_torchvision():
    """Provide empty modules, because XuanCe imports torchvision for other agents' learners."""
    for name in ("torchvision", "torchvision.transforms"):
        sys.modules[name] = types.ModuleType(name)
    transforms = sys.modules["torchvision.transforms"]
    transforms.transforms = sys.modules["torchvision"].transforms = transforms


def main():
    answers = os.fdopen(os.dup(1), "w")  # XuanCe prints to stdout
    os.dup2(2, 1)
    whose, env_id, num_envs, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    stand_in_for_torchvision()
    from xuance.common import get_arguments
    from xuance.environment import make_envs
    from xuance.torch.agents import REGISTRY_Agents

    torch.set_num_threads(1)
    if whose != "xuance":
        install(caller_steps=whose == "ours-with-caller")
    atari = env_id.startswith("ALE/")
    settings = Namespace(
        vectorize="Subproc_Atari" if atari else "SubprocVecEnv",
        parallels=num_envs,
        running_steps=steps,
        device="cpu",
    )
    kind = "atari" if atari else "classic_control"
    config = get_arguments("ppo", kind, env_id, None, settings)
    config.agent_name, config.render = "ppo", False
    config.log_dir = config.model_dir = os.getcwd()
    envs = make_envs(config)
    if whose == "nobody":
        draws = np.random.default_rng(0).integers(envs.action_space.n, size=(128, num_envs))
        envs = Replayed(envs, draws)
    agent = REGISTRY_Agents[config.agent](config, envs)
    agent.train(max(config.horizon_size // 8, 1))  # one-time initialization of torch
    start, busy = time.perf_counter(), time.process_time()
    agent.train(steps // num_envs)
    seconds = time.perf_counter() - start, time.process_time() - busy
    agent.finish()
    envs.close()
    print(json.dumps(seconds), file=answers, flush=True)


if __name__ == "__main__":
    main()
