"""Steps multi-agent environments with another library, in its own virtual environment.

The script does not import this package. Run it as ``python many_standalone.py LIBRARY WORLD
NUM_ENVS``. Its input and output have the format of ``standalone.py``.
"""

import importlib.metadata
import itertools
import json
import os
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

HERE = str(Path(__file__).parent)


def worlds():
    """Import ``many_worlds``, without making the modules beside it importable."""
    sys.path.insert(0, HERE)
    import many_worlds

    sys.path.remove(HERE)
    return many_worlds


def one_xuance_env(world, env_seed=None):
    """Create one environment with XuanCe's interface."""
    from xuance.environment.utils import RawMultiAgentEnv, XuanCeMultiAgentEnvWrapper

    class World(RawMultiAgentEnv):
        def __init__(self):
            super().__init__()
            self.env = worlds().make(world)
            self.env.reset(seed=env_seed)
            self.metadata, self.render_mode = self.env.metadata, None
            self.agents = list(self.env.possible_agents)
            self.num_agents = len(self.agents)
            self.observation_space = {a: self.env.observation_space(a) for a in self.agents}
            self.action_space = {a: self.env.action_space(a) for a in self.agents}
            self.state_space = getattr(self.env, "state_space", None)
            if self.state_space is None:
                from gymnasium import spaces

                self.state_space = spaces.Box(-1, 1, (1,), np.float32)
                self.env.state = lambda: np.zeros(1, np.float32)
            self.max_episode_steps = 25 if world in ("spread", "states") else 100

        def reset(self):
            return self.env.reset()[0], {}

        def step(self, actions):
            obs, rewards, terminated, truncated, _ = self.env.step(actions)
            return obs, rewards, terminated, all(truncated.values()), {}

        def state(self):
            return self.env.state()

        def render(self, *args):
            pass

        def close(self):
            self.env.close()

    return XuanCeMultiAgentEnvWrapper(World())


def xuance(kind, world, num_envs, **options):
    from xuance.environment.vector_envs import REGISTRY_VEC_ENV

    envs = REGISTRY_VEC_ENV[kind]([partial(one_xuance_env, world)] * num_envs, 0, **options)
    envs.reset()
    return lambda rows: envs.step(
        [dict(zip(envs.agents, row, strict=True)) for row in rows.tolist()]
    )


def supersuit(world, num_envs):
    import supersuit

    env = worlds().make(world)
    if world == "terminating":
        env = supersuit.black_death_v3(env)
    envs = supersuit.concat_vec_envs_v1(
        supersuit.pettingzoo_env_to_vec_env_v1(env), num_envs, num_cpus=2, base_class="gymnasium"
    )
    envs.reset(seed=0)
    return lambda rows: envs.step(rows.reshape(-1))


def agilerl(world, num_envs):
    from agilerl.vector.pz_async_vec_env import AsyncPettingZooVecEnv

    envs = AsyncPettingZooVecEnv([partial(worlds().make, world)] * num_envs)
    envs.reset(seed=0)
    agents = envs.possible_agents
    return lambda rows: envs.step(dict(zip(agents, rows.T, strict=True)))


LIBRARIES = {
    "xuance-dummy": partial(xuance, "DummyVecMultiAgentEnv"),
    "xuance-subproc": partial(xuance, "SubprocVecMultiAgentEnv"),
    "xuance-subproc-8": partial(xuance, "SubprocVecMultiAgentEnv", in_series=8),
    "supersuit": supersuit,
    "agilerl": agilerl,
}


def main():
    answers = os.fdopen(os.dup(1), "w")  # libraries print to stdout
    os.dup2(2, 1)

    def answer(**content):
        print(json.dumps(content), file=answers, flush=True)

    library, world, num_envs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    actions = itertools.cycle([np.array(row) for row in json.loads(sys.stdin.readline())])
    try:
        step = LIBRARIES[library](world, num_envs)
        step(next(actions))
    except BaseException as error:
        answer(error=f"{type(error).__name__}: {error}")
        raise
    answer(value=importlib.metadata.version(library.partition("-")[0]))
    for line in sys.stdin:
        batches = itertools.islice(actions, json.loads(line))
        start = time.perf_counter()
        try:
            for batch in batches:
                step(batch)
        except BaseException as error:
            answer(error=f"{type(error).__name__}: {error}")
            raise
        answer(value=time.perf_counter() - start)


if __name__ == "__main__":
    main()
