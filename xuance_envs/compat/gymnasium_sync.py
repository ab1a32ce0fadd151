"""Gymnasium's ``SyncVectorEnv`` over environments in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium import Space
from gymnasium.vector import AutoresetMode

from xuance_envs.compat.gymnasium_interface import (
    AUTORESET,
    GymnasiumResults,
    ObservationMode,
    StepResult,
    as_batch,
    check_observation_mode,
    checked_spaces,
    parse_reset,
)
from xuance_envs.compat.stepping import Stepper, make_stepper, raise_original
from xuance_envs.engine.data.space_rows import identity
from xuance_envs.engine.group.single_env import spaces_of


class SyncVectorEnv(GymnasiumResults, gymnasium.vector.SyncVectorEnv):
    """Environments in this process, in place of :class:`gymnasium.vector.SyncVectorEnv`.

    Args:
        env_fns: callables that make one environment each.
        copy: True to return copies of the observations. If False, the next step overwrites the
            returned arrays.
        observation_mode: ``"same"`` requires equal observation spaces. ``"different"``, a batched
            space, or a tuple ``(batched space, single space)`` requires only equal shapes and
            dtypes.
        autoreset_mode: when to reset after an episode's end: an ``AutoresetMode`` or its value.

    Raises:
        RuntimeError: the environments' spaces are not compatible.
        ValueError: ``observation_mode`` or ``autoreset_mode`` is invalid, ``env_fns`` is empty,
            two callables returned the same environment, or rewards are vectors.

    Example:
        >>> import gymnasium
        >>> from xuance_envs.compat.gymnasium import SyncVectorEnv
        >>> envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
        >>> observations, infos = envs.reset(seed=42)
        >>> observations, rewards, terminated, truncated, infos = envs.step([0, 1, 0])
        >>> rewards
        array([1., 1., 1.])
        >>> envs.close()
    """

    closed = True  # until the environments exist: Gymnasium's __del__ calls close

    def __init__(
        self,
        env_fns: Iterable[Callable[[], gymnasium.Env[Any, Any]]],
        copy: bool = True,
        observation_mode: ObservationMode = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        autoreset = AUTORESET[AutoresetMode(autoreset_mode)]
        check_observation_mode(observation_mode)
        self._stepper: Stepper = raise_original(make_stepper, env_fns, autoreset)
        self.closed = False
        envs = self._stepper.groups.envs
        try:
            # Checked here too, because Gymnasium's errors differ between releases.
            single, batch = checked_spaces(observation_mode, list(map(spaces_of, envs)))
            shared, before = envs[0].metadata, dict(envs[0].metadata)
            existing = [partial(identity, env) for env in envs]
            mode: Any = observation_mode
            if isinstance(mode, Space):
                mode = batch, single
            super().__init__(existing, copy, mode, autoreset_mode)
            if shared != before:  # Gymnasium before 1.4 writes its mode into the class's metadata
                self.metadata = dict(shared)
                shared.clear()
                shared.update(before)
        except BaseException:
            self._stepper.close()
            raise
        self.env_fns = env_fns  # type: ignore[assignment]  # stored as given, like Gymnasium
        self.observation_mode = observation_mode  # type: ignore[assignment]  # narrower in Gymnasium

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those selected by ``options["reset_mask"]``.

        Args:
            seed: an int gives environment i the seed ``seed + i``; a list has one seed per
                environment; None continues the random streams.
            options: passed to the environments. ``"reset_mask"``, ``(num_envs,)`` bool with at
                least one True, selects the environments and is not passed on.

        Returns:
            ``(observations, infos)``: the observations of all environments, and the infos of the
            environments that were reset, in the form that :meth:`step` returns.

        Raises:
            ValueError: the number of seeds, or the shape or content of the mask, is invalid.
            TypeError: the mask is not an array of bools.
        """
        self._assert_is_running()
        envs, seeds, options = parse_reset(self.num_envs, seed, options)
        raise_original(self._stepper.start_reset, envs.tolist(), seeds, [options] * len(envs))
        return self._reset_result(raise_original(self._stepper.finish_reset), envs)

    def step(self, actions: Any) -> StepResult:
        """Step all environments with a batch of actions from ``action_space``.

        Returns:
            ``(observations, rewards, terminations, truncations, infos)``: observations
            ``(num_envs, *obs_shape)``, rewards ``(num_envs,)`` float64, terminations and
            truncations ``(num_envs,)`` bool, and a dict of infos. Each key of the environments'
            infos has an array of ``num_envs`` values (a dict of arrays for nested dicts).
            ``"_" + key`` is a bool mask of the environments that have the key.
        """
        stepper = self._stepper
        stepper.discard_interrupted()
        pending = stepper.arrays.pending
        if self.autoreset_mode is AutoresetMode.DISABLED and pending.any():
            raise AssertionError(f"self._autoreset_envs={pending!r}")
        self._assert_is_running()
        stepper.start_step(as_batch(self.single_action_space, actions))
        return self._step_result(raise_original(stepper.finish_step))

    def _make_idle(self, what: str) -> None:
        self._assert_is_running()
        self._stepper.discard_interrupted()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        self._stepper.close()
