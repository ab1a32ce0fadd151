"""Save a running vectorized environment, be killed, and go on from the file when run again."""

import os
import signal
import sys

from xuance_envs import EnvStates, Gym_Env, SubprocVecEnv

path = sys.argv[1]
with SubprocVecEnv([lambda: Gym_Env("CartPole-v1")] * 4, num_workers=2) as envs:
    if os.path.exists(path):
        obs, infos = envs.load_state(EnvStates.load(path))
        print("resumed at", [info["episode_step"] for info in infos])
    else:
        envs.reset(seed=1)
        for _ in range(5):
            obs, *_ = envs.step([0, 1, 0, 1])
        envs.save_state().save(path)
        obs, *_ = envs.step([1, 1, 0, 0])
        print("next:", obs.tolist(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    obs, *_ = envs.step([1, 1, 0, 0])
    print("next:", obs.tolist())
