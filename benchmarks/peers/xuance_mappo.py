"""XuanCe's MAPPO on simple_spread, in its own virtual environment, with the example's settings.

Run as ``python -m benchmarks.peers.xuance_mappo WHOSE NUM_ENVS STEPS SEED``. WHOSE is ``xuance``
for XuanCe's vectorized environment, or ``ours`` for this package's. The script reads settings as
JSON from stdin. All other settings are XuanCe's defaults. The output line has the seconds of the
training run, the CPU seconds of this process, and the mean return of the last episodes.
"""

import json
import os
import sys
import time
from argparse import Namespace
from functools import partial

from benchmarks.peers.many_standalone import one_xuance_env


def main():
    answers = os.fdopen(os.dup(1), "w")  # XuanCe prints to stdout
    os.dup2(2, 1)
    whose, num_envs, steps, seed = sys.argv[1], *map(int, sys.argv[2:])
    import numpy as np  # not at module level, because XuanCe's processes would import it too
    import torch

    from benchmarks.peers.xuance_training import stand_in_for_torchvision

    stand_in_for_torchvision()
    from xuance.common import get_arguments
    from xuance.environment import SubprocVecMultiAgentEnv
    from xuance.torch.agents import REGISTRY_Agents
    from xuance.torch.utils.operations import set_seed

    import xuance_envs

    torch.set_num_threads(1)
    settings = Namespace(
        parallels=num_envs, seed=seed, env_seed=seed, logger="tensorboard", **json.load(sys.stdin)
    )
    config = get_arguments("mappo", "mpe", "simple_spread_v3", None, settings)
    config.agent_name, config.render = "mappo", False
    config.log_dir = config.model_dir = os.getcwd()
    del config.normalize  # normalization layers, which the example does not have
    kind = SubprocVecMultiAgentEnv if whose == "xuance" else xuance_envs.SubprocVecMultiAgentEnv
    envs = kind([partial(one_xuance_env, "spread")] * num_envs, seed)
    returns = []
    step = envs.step

    def watched(actions):
        result = step(actions)
        for ended, info in zip(result[3], result[4], strict=True):
            if ended:
                returns.append(np.mean(list(info["episode_score"].values())))
        return result

    envs.step = watched
    set_seed(seed)
    agent = REGISTRY_Agents[config.agent](config, envs)
    start, busy = time.perf_counter(), time.process_time()
    agent.train(steps // num_envs)
    seconds = time.perf_counter() - start, time.process_time() - busy
    agent.finish()
    envs.close()
    last = float(np.mean(returns[-10 * num_envs :]))
    print(json.dumps([*seconds, last]), file=answers, flush=True)


if __name__ == "__main__":
    main()
