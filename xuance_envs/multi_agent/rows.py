"""Each agent as a row of a vector environment with one agent each: for parameter sharing."""

from __future__ import annotations

from typing import Any

from xuance_envs.multi_agent.agent_rows import AgentRows
from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv

__all__ = ["per_agent_rows"]

LIBRARIES = ("gymnasium", "sb3")


def per_agent_rows(
    envs: MultiAgentVecEnv, library: str = "gymnasium", *, on_death: str = "pad"
) -> Any:
    """Each agent of each environment as a row, for libraries with one agent per environment.

    All agents share one policy then. Row ``i * A + k`` is agent k of environment i. Where an agent
    ends before its episode is over, or has not come yet, its row is padded: zeros, reward 0, no
    flags. The padding ends in the step before the agent plays (again), as ``terminated``, so that
    returns on either side do not mix. ``acted`` in the infos is False for padding, whose rows are
    no transitions to learn from.

    As Gymnasium's it becomes a ``VecEnv``, too, by
    :func:`~xuance_envs.compat.native.from_gymnasium`: for transforms, which then see each agent as
    an environment, and for :class:`~xuance_envs.rollout.collector.RolloutCollector`.

    Args:
        envs: the environments, whose agents have equal spaces; closed with the view.
        library: whose vector environment it is: ``"gymnasium"`` for a
            :class:`gymnasium.vector.VectorEnv` that resets in the same step, ``"sb3"`` for
            Stable-Baselines3's, with ``action_masks`` for those that mask.
        on_death: ``"pad"``, or ``"raise"`` for an error as soon as there is padding.

    Raises:
        ValueError: agents have different spaces or are in groups, or an argument is out of its
            range.
        ImportError: the library is not installed.

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
        from xuance_envs.multi_agent.sb3_rows import SB3Rows

        return SB3Rows(rows)
    from xuance_envs.multi_agent.gymnasium_rows import GymnasiumRows

    return GymnasiumRows(rows)
