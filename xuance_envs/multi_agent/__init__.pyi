"""Public names of this package, and the modules that define them."""

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
