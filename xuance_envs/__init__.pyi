"""The public names and their homes: the only list of them. See ``__init__.py``."""

from xuance_envs._version import __version__ as __version__
from xuance_envs.errors import AlreadySteppingError as AlreadySteppingError
from xuance_envs.errors import ClosedVecEnvError as ClosedVecEnvError
from xuance_envs.errors import EnvError as EnvError
from xuance_envs.errors import NotSteppingError as NotSteppingError
from xuance_envs.errors import VecEnvError as VecEnvError
from xuance_envs.errors import WorkerDiedError as WorkerDiedError
from xuance_envs.errors import WorkerTimeoutError as WorkerTimeoutError
from xuance_envs.gym.gym_env import Atari_Env as Atari_Env
from xuance_envs.gym.gym_env import Gym_Env as Gym_Env
from xuance_envs.gym.gym_env import LazyFrames as LazyFrames
from xuance_envs.gym.gym_env import MountainCar as MountainCar
from xuance_envs.gym.gym_vec_env import DummyVecEnv_Atari as DummyVecEnv_Atari
from xuance_envs.gym.gym_vec_env import DummyVecEnv_Gym as DummyVecEnv_Gym
from xuance_envs.gym.gym_vec_env import SubprocVecEnv_Atari as SubprocVecEnv_Atari
from xuance_envs.gym.gym_vec_env import SubprocVecEnv_Gym as SubprocVecEnv_Gym
from xuance_envs.tuning import Autotuned as Autotuned
from xuance_envs.tuning import autotune as autotune
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv as DummyVecEnv
from xuance_envs.vector_envs.first_ready import StepBatch as StepBatch
from xuance_envs.vector_envs.statistics import WorkerStatistics as WorkerStatistics
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv as SubprocVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv as VecEnv
