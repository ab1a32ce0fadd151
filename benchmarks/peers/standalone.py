"""Steps a library in its own virtual environment.

The script does not import this package. Run it as ``python standalone.py LIBRARY ENV_ID NUM_ENVS``.
The first input line has the actions, one list per step, which are repeated in a cycle. The reply is
the library's version. Each further line is a number of steps; the reply is their duration in
seconds.
"""

import importlib.metadata
import itertools
import json
import os
import sys
import time
from argparse import Namespace
from functools import partial

import gymnasium
import numpy as np


def one_xuance_env(env_id, env_seed=None):
    """Create one environment as XuanCe's configurations do."""
    from xuance.environment.single_agent_env.gym import Gym_Env
    from xuance.environment.utils import XuanCeEnvWrapper

    config = Namespace(env_id=env_id, env_seed=env_seed, render_mode="rgb_array")
    return XuanCeEnvWrapper(Gym_Env(config))


def xuance(kind, env_id, num_envs):
    from xuance.environment.vector_envs import REGISTRY_VEC_ENV

    envs = REGISTRY_VEC_ENV[kind]([partial(one_xuance_env, env_id)] * num_envs, 0)
    envs.reset()
    return envs


def pufferlib(kind, env_id, num_envs):
    import pufferlib.emulation
    import pufferlib.vector

    workers = {}
    if kind == "Multiprocessing":
        # The main process spins, like the workers, so it needs a core too.
        most = max(1, min(num_envs, len(os.sched_getaffinity(0)) - 1))
        workers["num_workers"] = max(k for k in range(1, most + 1) if num_envs % k == 0)
    envs = pufferlib.vector.make(
        partial(one_puffer_env, env_id),
        num_envs=num_envs,
        backend=getattr(pufferlib.vector, kind),
        **workers,
    )
    envs.reset()
    return envs


def one_puffer_env(env_id, **kwargs):
    import pufferlib.emulation

    creator = partial(gymnasium.make, env_id)
    return pufferlib.emulation.GymnasiumPufferEnv(env_creator=creator, **kwargs)


LIBRARIES = {
    "xuance-dummy": partial(xuance, "DummyVecEnv"),
    "xuance-subproc": partial(xuance, "SubprocVecEnv"),
    "pufferlib-serial": partial(pufferlib, "Serial"),
    "pufferlib": partial(pufferlib, "Multiprocessing"),
}


def main():
    answers = os.fdopen(os.dup(1), "w")  # libraries print to stdout
    os.dup2(2, 1)

    def answer(**content):
        print(json.dumps(content), file=answers, flush=True)

    library, env_id, num_envs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    actions = itertools.cycle([np.array(row) for row in json.loads(sys.stdin.readline())])
    try:
        step = LIBRARIES[library](env_id, num_envs).step
        step(next(actions))
    except BaseException as error:
        answer(error=f"{type(error).__name__}: {error}")
        raise
    answer(value=importlib.metadata.version(library.partition("-")[0]))
    for line in sys.stdin:
        batches = itertools.islice(actions, json.loads(line))
        start = time.perf_counter()
        for batch in batches:
            step(batch)
        answer(value=time.perf_counter() - start)


if __name__ == "__main__":
    main()
