"""A newcomer's own environment in worker processes: a random walk, 200 steps."""

import gymnasium as gym
import numpy as np

from xuance_envs import SubprocVecEnv


class Walk(gym.Env):
    def __init__(self, length):
        self.length = length
        self.observation_space = gym.spaces.Box(-length, length, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return np.array([0], np.float32), {}

    def step(self, action):
        self.place += 1 if action == 1 else -1
        done = abs(self.place) == self.length
        return np.array([self.place], np.float32), float(done), done, False, {"place": self.place}


envs = SubprocVecEnv([lambda: Walk(4) for _ in range(8)], num_workers=2)
print(envs)
obs, infos = envs.reset(seed=0)
ended = 0
for _ in range(200):
    obs, rewards, terminated, truncated, infos = envs.step(envs.sample_actions())
    for i in np.flatnonzero(terminated | truncated):
        ended += 1
        assert abs(infos[i]["place"]) == 4
        assert infos[i]["reset_obs"] == 0
envs.close()
print("episodes:", ended > 10)
