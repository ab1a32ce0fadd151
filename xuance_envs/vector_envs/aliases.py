"""Attributes of ``VecEnv`` under the names of other libraries; an error for pickling."""

from __future__ import annotations

from operator import attrgetter
from typing import NoReturn


def _alias(name: str, library: str = "XuanCe") -> property:
    """Create an alias of an attribute."""
    return property(
        attrgetter(name),
        lambda vec_env, value: setattr(vec_env, name, value),
        doc=f"{library}'s name for ``{name}``.",
    )


class VecEnvAliases:
    """Aliases; ``dir()`` omits XuanCe's, which differ in spelling only. Pickling raises."""

    buf_truncated = _alias("buf_truncations")
    buf_trunctions = _alias("buf_truncations")
    buf_terminated = _alias("buf_dones")
    buf_rewards = _alias("buf_rews")
    buf_info = _alias("buf_infos")
    max_episode_length = _alias("max_episode_steps")
    single_observation_space = _alias("observation_space", "Gymnasium")
    single_action_space = _alias("action_space", "Gymnasium")

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot pickle or copy {type(self).__name__}; use save_state()")

    def __dir__(self) -> list[str]:
        hidden = {name for name in vars(VecEnvAliases) if name.startswith(("buf_", "max_"))}
        return sorted({*super().__dir__()} - hidden)
