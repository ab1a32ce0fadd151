"""A Stable-Baselines3 program whose one changed line is the import."""

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from xuance_envs.compat.sb3 import SubprocVecEnv

envs = VecNormalize(VecMonitor(SubprocVecEnv([lambda: gym.make("CartPole-v1")] * 4)))
model = PPO("MlpPolicy", envs, n_steps=32, batch_size=32, n_epochs=1, device="cpu")
model.learn(256)
print("episodes:", len(model.ep_info_buffer) > 0)
envs.close()
