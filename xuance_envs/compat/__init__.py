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

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xuance_envs.compat.as_gymnasium import to_gymnasium as to_gymnasium
    from xuance_envs.compat.as_sb3 import to_sb3 as to_sb3
    from xuance_envs.compat.native import from_gymnasium as from_gymnasium

__all__ = ["from_gymnasium", "to_gymnasium", "to_sb3"]

# Loaded when they are used: workers import a module of this package, and need none of these.
_HOMES = {"from_gymnasium": "native", "to_gymnasium": "as_gymnasium", "to_sb3": "as_sb3"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
