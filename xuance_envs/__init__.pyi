"""The public names and their homes: the only list of them. See ``__init__.py``."""

from xuance_envs._version import __version__ as __version__
from xuance_envs.errors import AlreadySteppingError as AlreadySteppingError
from xuance_envs.errors import ClosedVecEnvError as ClosedVecEnvError
from xuance_envs.errors import EnvError as EnvError
from xuance_envs.errors import NotSteppingError as NotSteppingError
from xuance_envs.errors import RemoteAuthenticationError as RemoteAuthenticationError
from xuance_envs.errors import RemoteConflictError as RemoteConflictError
from xuance_envs.errors import RemoteError as RemoteError
from xuance_envs.errors import RemoteForbiddenError as RemoteForbiddenError
from xuance_envs.errors import RemoteLimitError as RemoteLimitError
from xuance_envs.errors import RemoteNotFoundError as RemoteNotFoundError
from xuance_envs.errors import RemoteRequestError as RemoteRequestError
from xuance_envs.errors import RemoteTooLargeError as RemoteTooLargeError
from xuance_envs.errors import RemoteUnreachableError as RemoteUnreachableError
from xuance_envs.errors import RemoteVersionError as RemoteVersionError
from xuance_envs.errors import VecEnvError as VecEnvError
from xuance_envs.errors import WorkerDiedError as WorkerDiedError
from xuance_envs.errors import WorkerTimeoutError as WorkerTimeoutError
from xuance_envs.errors import WrongProcessError as WrongProcessError
from xuance_envs.gym.gym_env import Atari_Env as Atari_Env
from xuance_envs.gym.gym_env import Gym_Env as Gym_Env
from xuance_envs.gym.gym_env import LazyFrames as LazyFrames
from xuance_envs.gym.gym_env import MountainCar as MountainCar
from xuance_envs.gym.gym_vec_env import DummyVecEnv_Atari as DummyVecEnv_Atari
from xuance_envs.gym.gym_vec_env import DummyVecEnv_Gym as DummyVecEnv_Gym
from xuance_envs.gym.gym_vec_env import SubprocVecEnv_Atari as SubprocVecEnv_Atari
from xuance_envs.gym.gym_vec_env import SubprocVecEnv_Gym as SubprocVecEnv_Gym
from xuance_envs.making import make_vec as make_vec
from xuance_envs.remote.client import StudentGymEnvVectorized as StudentGymEnvVectorized
from xuance_envs.remote.client import (
    create_student_gym_env_vectorized as create_student_gym_env_vectorized,
)
from xuance_envs.remote.remote_vec_env import RemoteVecEnv as RemoteVecEnv
from xuance_envs.rollout.collector import RolloutCollector as RolloutCollector
from xuance_envs.rollout.ray_collector import RayRolloutCollector as RayRolloutCollector
from xuance_envs.rollout.sync_vec_env import SyncVecEnv as SyncVecEnv
from xuance_envs.tuning import Autotuned as Autotuned
from xuance_envs.tuning import autotune as autotune
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv as DummyVecEnv
from xuance_envs.vector_envs.ray_vec_env import RayVecEnv_Gym as RayVecEnv_Gym
from xuance_envs.vector_envs.statistics import WorkerStatistics as WorkerStatistics
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv as SubprocVecEnv
from xuance_envs.vector_envs.vector_env import StepBatch as StepBatch
from xuance_envs.vector_envs.vector_env import VecEnv as VecEnv
