"""Mixins of ``VecEnv``: special methods, and attributes under other libraries' names."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NoReturn, TypeVar

_Self = TypeVar("_Self", bound="ClosedOnExit")


def _alias(name: str, library: str = "XuanCe") -> property:
    return property(
        attrgetter(name),
        lambda vec_env, value: setattr(vec_env, name, value),
        doc=f"{library}'s name for ``{name}``.",
    )


class Uncopyable:
    """Mixin that refuses to pickle or copy an object, because it owns environments."""

    def __reduce__(self) -> NoReturn:
        saves = getattr(self, "save_state", None) is not None
        raise TypeError(
            f"cannot pickle or copy {type(self).__name__}; create a new one from the environment "
            "functions" + (", and use save_state() to copy the states" if saves else "")
        )


class ClosedOnExit:
    """Mixin that closes an object at the end of its ``with`` block."""

    close: Any

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class VecEnvAliases(Uncopyable, ClosedOnExit):
    """Attributes under other libraries' names; ``dir()`` omits those of XuanCe."""

    num_envs: int
    closed: Any

    buf_truncated = _alias("buf_truncations")
    buf_trunctions = _alias("buf_truncations")
    buf_terminated = _alias("buf_dones")
    buf_rewards = _alias("buf_rews")
    buf_info = _alias("buf_infos")
    max_episode_length = _alias("max_episode_steps")
    single_observation_space = _alias("observation_space", "Gymnasium")
    single_action_space = _alias("action_space", "Gymnasium")

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"{type(self).__name__}(num_envs={self.num_envs}{state})"

    def __dir__(self) -> list[str]:
        hidden = {name for name in vars(VecEnvAliases) if name.startswith(("buf_", "max_"))}
        return sorted({*super().__dir__()} - hidden)
