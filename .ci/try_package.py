"""Step environments with the installed package, in an environment without extras."""

import importlib.metadata
import importlib.resources
import importlib.util

import numpy as np

import xuance_envs
from xuance_envs import DummyVecEnv_Gym, Gym_Env, SubprocVecEnv_Gym

EXTRAS = ["ale_py", "cv2", "fastapi", "gym", "httpx", "matplotlib", "ray", "torch", "tqdm"]

present = [name for name in EXTRAS if importlib.util.find_spec(name)]
assert not present, f"expected required dependencies only, found {present}"
exec("from xuance_envs import *", {})
assert importlib.metadata.version("xuance_envs") == xuance_envs.__version__
for file in ("py.typed", "remote/server/routes/status.html"):
    assert importlib.resources.files("xuance_envs").joinpath(file).is_file(), file

returns = {}
for backend in (DummyVecEnv_Gym, SubprocVecEnv_Gym):
    with backend([lambda: Gym_Env("CartPole-v1") for _ in range(4)]) as envs:
        envs.reset(seed=0)
        actions = np.tile([0, 1], 2)
        returns[backend.__name__] = np.stack([envs.step(actions)[0] for _ in range(100)])
    print(f"{backend.__name__}: 400 environment steps")
assert np.array_equal(*returns.values()), "the backends returned different trajectories"
print(f"xuance_envs {xuance_envs.__version__} works from its wheel")
