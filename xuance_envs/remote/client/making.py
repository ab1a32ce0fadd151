"""Creation of the notebook client."""

from __future__ import annotations

import logging

from xuance_envs.remote.client.api_client import ApiClient
from xuance_envs.remote.client.notebook_client import StudentGymEnvVectorized
from xuance_envs.remote.client.remote_session import RemoteSession, checked_count
from xuance_envs.remote.client.transport import Verify

__all__ = ["create_student_gym_env_vectorized"]


def create_student_gym_env_vectorized(
    num_envs: int,
    step_size: int,
    user_token: str | None,
    *,
    base_url: str = "http://127.0.0.1:8001",
    env_id: str | None = None,
    timeout: float = 120.0,
    share_frames: bool = False,
    verify: Verify = True,
) -> StudentGymEnvVectorized:
    """Create environments on a server.

    Args:
        num_envs: number of environments.
        step_size: maximum number of times each environment repeats its action per step.
        user_token: the user's token; None if the server requires none.
        base_url: the server's address.
        env_id: id of the environment; None if the server offers only one.
        timeout: seconds to wait for the reply to a request.
        share_frames: whether the server's status page may show rendered frames.
        verify: how to check the certificate of an ``https`` server: True uses the system's
            certificate authorities, False skips the check. A path to a file or folder of CA
            certificates or an SSL context replaces the system's authorities.

    Returns:
        The environments; call ``reset`` before the first step.

    Raises:
        ValueError: ``num_envs`` or ``step_size`` is below 1, or the address, token or ``verify`` is
            invalid.
        EnvError: an environment could not be created.
        RemoteAuthenticationError: the token is missing or wrong.
        RemoteNotFoundError: the server does not offer ``env_id``.
        RemoteRequestError: ``env_id`` is None, and the server offers several environments.
        RemoteLimitError: a limit on sessions or environments is reached.
        RemoteVersionError: the server uses a different version of the protocol.
        RemoteUnreachableError: the server does not reply.
        ImportError: msgpack is not installed.

    Example:
        >>> from xuance_envs import create_student_gym_env_vectorized
        >>> from xuance_envs.remote.server import Server
        >>> from xuance_envs.remote.settings import Catalogue, Settings
        >>> with Server(Settings(Catalogue.of_ids(["CartPole-v1"])), port=0) as server:
        ...     with create_student_gym_env_vectorized(2, 5, None, base_url=server.url) as env:
        ...         observations, infos = env.reset(seed=0)
        >>> observations.shape, observations.dtype
        ((2, 4), dtype('float32'))
    """
    num_envs = checked_count("num_envs", num_envs)
    step_size = checked_count("step_size", step_size)
    connection = ApiClient(base_url, user_token, timeout, verify, logging.INFO)
    session = RemoteSession.open(connection, share_frames, StudentGymEnvVectorized.__name__)
    try:
        return StudentGymEnvVectorized(session, num_envs, step_size, env_id)
    except BaseException:
        session.close()
        raise
