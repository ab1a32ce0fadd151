"""Adapters between this package and other libraries' vectorized environments.

- :mod:`xuance_envs.compat.gymnasium`: drop-in replacements for Gymnasium's vector environments.
- :mod:`xuance_envs.compat.sb3`: drop-in replacements for Stable-Baselines3's vec envs.
- :mod:`xuance_envs.compat.tianshou`: drop-in replacements for Tianshou's vectorized environments.
- :mod:`xuance_envs.compat.xuance`: makes XuanCe use this package.
- :func:`from_gymnasium`: converts an environment vectorized by Gymnasium, ale-py or EnvPool to a
  :class:`~xuance_envs.vector_envs.vector_env.VecEnv`.
- :func:`to_gymnasium`, :func:`to_sb3`: convert any
  :class:`~xuance_envs.vector_envs.vector_env.VecEnv` for Gymnasium or Stable-Baselines3.
"""

from __future__ import annotations

from xuance_envs.lazy_exports import lazy_exports

# Loaded lazily: workers import a module of this package but need none of these.
__getattr__, __dir__ = lazy_exports(__name__)
