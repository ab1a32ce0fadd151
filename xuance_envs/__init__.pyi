"""The names of this package, and the modules that define them (see ``__init__.py``)."""

from xuance_envs._version import __version__ as __version__
from xuance_envs.errors import AlreadySteppingError as AlreadySteppingError
from xuance_envs.errors import ClosedVecEnvError as ClosedVecEnvError
from xuance_envs.errors import EnvError as EnvError
from xuance_envs.errors import NotResetError as NotResetError
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
from xuance_envs.errors import StateError as StateError
from xuance_envs.errors import StateMismatchError as StateMismatchError
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
from xuance_envs.multi_agent.making import make_multi_agent_vec as make_multi_agent_vec
from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv as MultiAgentVecEnv
from xuance_envs.multi_agent.parallel_view import as_parallel_env as as_parallel_env
from xuance_envs.multi_agent.raw_env import MPE_Env as MPE_Env
from xuance_envs.multi_agent.raw_env import MultiAgentEnv as MultiAgentEnv
from xuance_envs.multi_agent.raw_env import RawMultiAgentEnv as RawMultiAgentEnv
from xuance_envs.multi_agent.raw_env import XuanCeMultiAgentEnvWrapper as XuanCeMultiAgentEnvWrapper
from xuance_envs.multi_agent.rows import per_agent_rows as per_agent_rows
from xuance_envs.multi_agent.step import MultiAgentStart as MultiAgentStart
from xuance_envs.multi_agent.step import MultiAgentStep as MultiAgentStep
from xuance_envs.multi_agent.xuance import DummyVecEnv_Football as DummyVecEnv_Football
from xuance_envs.multi_agent.xuance import DummyVecEnv_StarCraft2 as DummyVecEnv_StarCraft2
from xuance_envs.multi_agent.xuance import DummyVecMultiAgentEnv as DummyVecMultiAgentEnv
from xuance_envs.multi_agent.xuance import SubprocVecEnv_Football as SubprocVecEnv_Football
from xuance_envs.multi_agent.xuance import SubprocVecEnv_StarCraft2 as SubprocVecEnv_StarCraft2
from xuance_envs.multi_agent.xuance import SubprocVecMultiAgentEnv as SubprocVecMultiAgentEnv
from xuance_envs.state.checking import check_saving as check_saving
from xuance_envs.state.env_states import EnvStates as EnvStates
from xuance_envs.state.handlers import register_state as register_state
from xuance_envs.transforms.actions import ClipActions as ClipActions
from xuance_envs.transforms.actions import RescaleActions as RescaleActions
from xuance_envs.transforms.episodes import EpisodeStatistics as EpisodeStatistics
from xuance_envs.transforms.normalize_observations import (
    NormalizeObservations as NormalizeObservations,
)
from xuance_envs.transforms.normalize_rewards import NormalizeRewards as NormalizeRewards
from xuance_envs.transforms.observations import TransformObservations as TransformObservations
from xuance_envs.transforms.rewards import ClipRewards as ClipRewards
from xuance_envs.transforms.rewards import ScalarizeRewards as ScalarizeRewards
from xuance_envs.transforms.rewards import ScaleRewards as ScaleRewards
from xuance_envs.transforms.rewards import TransformRewards as TransformRewards
from xuance_envs.transforms.stacking import StackObservations as StackObservations
from xuance_envs.tuning import Autotuned as Autotuned
from xuance_envs.tuning import autotune as autotune
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv as DummyVecEnv
from xuance_envs.vector_envs.options import BackendOptions as BackendOptions
from xuance_envs.vector_envs.ray_vec_env import RayVecEnv as RayVecEnv
from xuance_envs.vector_envs.ray_vec_env import RayVecEnv_Gym as RayVecEnv_Gym
from xuance_envs.vector_envs.statistics import WorkerStatistics as WorkerStatistics
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv as SubprocVecEnv
from xuance_envs.vector_envs.thread_vec_env import ThreadVecEnv as ThreadVecEnv
from xuance_envs.vector_envs.thread_vec_env import ThreadVecEnv_Gym as ThreadVecEnv_Gym
from xuance_envs.vector_envs.vector_env import StepBatch as StepBatch
from xuance_envs.vector_envs.vector_env import VecEnv as VecEnv
from xuance_envs.vector_envs.wrapper import VecEnvWrapper as VecEnvWrapper

# These names require extras.
# isort: split
from xuance_envs.remote.client.notebook_client import (
    StudentGymEnvVectorized as StudentGymEnvVectorized,
)
from xuance_envs.remote.client.notebook_client import (
    create_student_gym_env_vectorized as create_student_gym_env_vectorized,
)
from xuance_envs.remote.client.remote_vec_env import RemoteVecEnv as RemoteVecEnv
from xuance_envs.rollout.collector import MultiAgentRolloutCollector as MultiAgentRolloutCollector
from xuance_envs.rollout.collector import RolloutCollector as RolloutCollector
from xuance_envs.rollout.ray_collector import RayRolloutCollector as RayRolloutCollector
from xuance_envs.rollout.sync_vec_env import SyncVecEnv as SyncVecEnv
