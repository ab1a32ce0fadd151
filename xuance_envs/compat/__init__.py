"""Other libraries' interfaces over these environments, and their environments under this one.

- :mod:`xuance_envs.compat.gymnasium`: Gymnasium's vector environments.
- :mod:`xuance_envs.compat.sb3`: Stable-Baselines3's.
- :mod:`xuance_envs.compat.tianshou`: Tianshou's.
- :mod:`xuance_envs.compat.xuance`: makes XuanCe use this package.
- :func:`from_gymnasium`: an environment that Gymnasium, ale-py or EnvPool vectorized, as a
  :class:`~xuance_envs.vector_envs.vector_env.VecEnv`.
- :func:`to_gymnasium`, :func:`to_sb3`: any
  :class:`~xuance_envs.vector_envs.vector_env.VecEnv` as one of Gymnasium's, of Stable-Baselines3's.
"""

from __future__ import annotations

from xuance_envs.lazy_exports import lazy_exports

# Loaded when they are used: workers import a module of this package, and need none of these.
__getattr__, __dir__ = lazy_exports(__name__)
