from xuance_envs.remote.client.notebook_client import (
    StudentGymEnvVectorized as StudentGymEnvVectorized,
)
from xuance_envs.remote.client.notebook_client import (
    create_student_gym_env_vectorized as create_student_gym_env_vectorized,
)
