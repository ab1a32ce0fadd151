"""Single-agent views of multi-agent environments, with one row per agent, for parameter sharing."""

from __future__ import annotations

from typing import Any

from xuance_envs.multi_agent.agent_rows import AgentRows, GymnasiumRows
from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv

__all__ = ["per_agent_rows"]

LIBRARIES = ("gymnasium", "sb3")


def per_agent_rows(
    envs: MultiAgentVecEnv, library: str = "gymnasium", *, on_death: str = "pad"
) -> Any:
    """Return a single-agent vectorized environment with one row per agent, for parameter sharing.

    All agents then share one policy. Row ``i * A + k`` is agent k of environment i. A row ends when
    its agent ends, as :meth:`~xuance_envs.multi_agent.step.MultiAgentStep.ends` defines it. If a
    worker failed and was restarted, the rows of active agents in its environments are truncated.

    While an agent is inactive in a running episode, its row is padding: zeros, reward 0 and no
    flags. In the last step before the agent becomes active, ``terminated`` is True, so that returns
    do not extend across the padding. ``acted`` in the infos is False for padding and in the step of
    a worker failure; do not learn from these rows.

    If ``library`` is ``"gymnasium"``, :func:`~xuance_envs.compat.native.from_gymnasium` converts
    the result to a ``VecEnv``. Transforms and
    :class:`~xuance_envs.rollout.collector.RolloutCollector` then handle an agent as an environment.

    Args:
        envs: environments whose agents have equal spaces. Closing the result closes them.
        library: ``"gymnasium"`` for a :class:`gymnasium.vector.VectorEnv` in same-step autoreset
            mode; ``"sb3"`` for a Stable-Baselines3 ``VecEnv``, whose ``env_method("action_masks")``
            returns the action masks.
        on_death: ``"pad"`` to pad the rows of inactive agents, ``"raise"`` to raise an error
            instead.

    Raises:
        ValueError: the agents have different spaces or are in groups, an argument is out of range,
            or rewards are vectors and the library is ``"sb3"``.
        ImportError: the library is not installed.
        RuntimeError: with ``on_death="raise"``, in a reset or step after which an agent is inactive
            while the episode continues.

    Example:
        >>> from xuance_envs import make_multi_agent_vec, per_agent_rows
        >>> rows = per_agent_rows(make_multi_agent_vec("mpe2:simple_spread_v3", 2, backend="dummy"))
        >>> obs, infos = rows.reset(seed=0)
        >>> obs.shape, rows.num_envs, rows.single_action_space
        ((6, 18), 6, Discrete(5))
        >>> rows.close()
    """
    if library not in LIBRARIES:
        raise ValueError(f"library: expected one of {LIBRARIES}, got {library!r}")
    rows = AgentRows(envs, on_death)
    if library == "sb3":
        if envs.reward_space is not None:
            raise ValueError(
                "per_agent_rows: library='sb3': expected agents whose rewards are numbers, got the "
                f"reward_space {envs.reward_space}; use to_sb3(ScalarizeRewards(from_gymnasium("
                "per_agent_rows(envs)), weights))"
            )
        from xuance_envs.multi_agent.sb3_rows import SB3Rows

        return SB3Rows(rows)
    return GymnasiumRows(rows)
