from xuance_envs.remote.client.making import (
    create_student_gym_env_vectorized as create_student_gym_env_vectorized,
)
from xuance_envs.remote.client.notebook_client import (
    StudentGymEnvVectorized as StudentGymEnvVectorized,
)
