"""Base class of all transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from xuance_envs._override import override
from xuance_envs.engine.data.space_layout import shape_of_rewards
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.errors import AlreadySteppingError, NotSteppingError
from xuance_envs.state.env_states import EnvStates
from xuance_envs.transforms.stateful_transform import (
    StatefulTransform,
    TransformSnapshot,
    check_single_agent,
    saved_by_transform,
    transforms_of,
)
from xuance_envs.transforms.transform_batch import Batch, RawResults
from xuance_envs.vector_envs.arguments import EnvIds, Seeds, checked_env_ids, seed_per_env
from xuance_envs.vector_envs.last_results import check_saved_shape, checked_clones
from xuance_envs.vector_envs.vector_env import StepBatch, StepResult, VecEnv


class Transform(StatefulTransform):
    """Wrapper that changes the actions or results of a vectorized environment.

    It supports ``step``, ``step_async``/``step_wait``, ``send``/``recv`` and partial resets. Where
    an episode ended, transforms of observations change both the final observation and
    ``reset_obs``. They change no other values in infos.

    A subclass defines :meth:`_transform`, or :meth:`_forward` for actions. It keeps its state in
    ``_state``. Each call replaces ``_state`` and never modifies it in place. An interrupted step
    can therefore be repeated, and counts only once.

    Args:
        vec_env: the vectorized environment.
        observation_space: space of one transformed observation; None for the inner space.
        action_space: space of one action passed to the transform; None for the inner space.
        keep_raw: True to keep the untransformed observations (:attr:`raw_observations`) from the
            first reset on. By default, they are kept from the first access on.

    Raises:
        TypeError: ``vec_env`` is not a ``VecEnv``, or it is multi-agent.

    Attributes:
        vec_env (VecEnv): the inner vectorized environment.
        training (bool): True if the transform updates its statistics; ``freeze`` sets it to False.
        raw_results (RawResults): results before any transform.
    """

    def __init__(
        self,
        vec_env: VecEnv,
        *,
        observation_space: Space[Any] | None = None,
        action_space: Space[Any] | None = None,
        keep_raw: bool = False,
    ) -> None:
        vec_env = check_single_agent(type(self).__name__, vec_env)
        super().__init__(vec_env, observation_space=observation_space, action_space=action_space)
        below = transforms_of(vec_env)
        self.training = True
        self.raw_results = below[0].raw_results if below else RawResults(vec_env)
        self.raw_results.keep |= keep_raw
        self._is_innermost = not below
        self._inner_step_batch: Callable[[], Batch] | None = None
        if isinstance(vec_env, Transform) and type(vec_env).step_wait is Transform.step_wait:
            self._inner_step_batch = vec_env.step_batch
        self._changes_actions = type(self)._forward is not Transform._forward
        self._state: Any = None
        self._steps = 0
        self._buf_obs: Any = None  # cache of `buf_obs`
        self._exact_rewards: NDArray[np.float64] | None = None
        # Progress of unfinished calls: an interrupted one can be repeated.
        self._stepping = self._sending = False
        self._received: StepBatch | None = None
        self._transformed: tuple[Batch, NDArray[np.intp], Any] | None = None
        self._awaiting_first_result: NDArray[np.bool_] | None = None
        self.buf_rews, self.buf_dones = vec_env.buf_rews, vec_env.buf_dones
        self.buf_truncations, self.buf_infos = vec_env.buf_truncations, vec_env.buf_infos

    # -- hooks for subclasses -----------------------------------------------------------

    def _transform(self, batch: Batch) -> Any:
        """Transform the results of a call in place, and return the next ``_state``."""
        return self._state

    def _forward(
        self, actions: Any, env_ids: Sequence[int] | NDArray[np.integer[Any]] | None
    ) -> Any:
        """Convert the agent's actions for ``env_ids`` (None: all) to the environments' actions."""
        return actions

    def _merge_partial(self, batch: Batch) -> None:
        """Update ``_state`` with results of some environments; called again after an interrupt."""

    def _update_buf_obs(self, batch: Batch) -> None:
        """Update ``buf_obs`` after a reset of some environments."""

    def _restart_episodes(self, envs: NDArray[np.intp]) -> None:
        """Restart the episodes of ``envs`` after a failed call in which they ended or began."""

    @property
    def transforms(self) -> list[Transform]:
        """This transform and those inside it, outermost first."""
        return transforms_of(self)

    @property
    def raw_rewards(self) -> NDArray[np.float32]:
        """Untransformed rewards of the last step or ``recv``, ``(n,)`` or ``(n, k)`` float32."""
        return self.raw_results.rewards.copy()

    @property
    def raw_observations(self) -> Any:
        """Observations of the last step, reset, ``recv``, load or clone before any transform.

        Without ``keep_raw``, the first access returns the latest observations of all environments.
        From then on, each call stores its observations.
        """
        if not self.raw_results.keep:
            self.raw_results.keep = True
            self.raw_results.record_observations(self.transforms[-1].vec_env.buf_obs)
        return self.raw_results.observations

    # -- stepping all environments ------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """True while a step that :meth:`step_async` started is pending."""
        return self._stepping or self.vec_env.waiting

    @property
    def exact_rewards(self) -> NDArray[np.float64]:
        """Unrounded rewards of the last step, ``(num_envs,)`` or ``(num_envs, k)`` float64."""
        exact = self._exact_rewards
        return self.vec_env.exact_rewards if exact is None else exact.copy()

    @override
    def reset(
        self, *, seed: Seeds = None, options: dict[str, Any] | None = None, env_ids: EnvIds = None
    ) -> tuple[Any, StepInfos]:
        envs = None
        if not self.closed:
            ids = checked_env_ids(env_ids, self.num_envs)
            seed_per_env(seed, ids)
            if env_ids is None:
                self._discard_pending()
            else:
                if self.waiting:
                    self.step_wait()
                while self._sending:
                    try:
                        self.recv()
                    except NotSteppingError:
                        self._sending = False
                env_ids, envs = ids, np.array(ids, np.intp)
        batch = None
        try:
            obs, infos = self.vec_env.reset(seed=seed, options=options, env_ids=env_ids)
            count = len(infos)
            rewards = np.zeros((count, *shape_of_rewards(self.vec_env.reward_space)), np.float32)
            never = np.zeros(count, np.bool_)
            batch = Batch(obs, rewards, never, never, infos, envs=envs, began=~never)
            if self._is_innermost:
                self.raw_results.record_observations(obs)
            state = self._transform(batch)
        except Exception:
            self._lose_results(batch)
            raise
        if envs is None:
            self._buf_obs = None
        else:
            self._update_buf_obs(batch)
            self._merge_partial(batch)
        self._state, self._steps = state, batch.call_number_after(self._steps)
        return batch.obs, batch.infos

    @override
    def step_async(self, actions: Any) -> None:
        if self._stepping or self._received is not None:
            self._check_idle("step or step_async")
        if self._changes_actions:
            actions = self._forward(actions, None)
        self.vec_env.step_async(actions)

    @override
    def step_wait(self) -> StepResult:
        batch = self.step_batch()
        return batch.obs, batch.rewards, batch.terminated, batch.truncated, batch.infos

    def step_batch(self) -> Batch:
        """Wait for the step like :meth:`step_wait`; return a batch for the next outer transform."""
        vec_env, batch = self.vec_env, None
        try:
            if self._stepping and not vec_env.waiting:
                batch = Batch.of_last_step(vec_env)
            elif self._inner_step_batch is None:
                self._stepping = True
                batch = Batch(*vec_env.step_wait(), vec_env)
            else:
                self._stepping = True
                batch = self._inner_step_batch()
                batch.source, batch.exact_rewards = vec_env, None
            if self._is_innermost:
                self.raw_results.record_step(batch)
            state = self._transform(batch)
        except Exception:
            self._stepping = False
            self._lose_results(batch)
            raise
        # There are no calls here, so an interrupt cannot separate these assignments.
        self._state, self._buf_obs, self._exact_rewards = state, None, batch.exact_rewards
        self._steps += 1
        self.buf_rews, self.buf_dones = batch.rewards, batch.terminated
        self.buf_truncations, self.buf_infos = batch.truncated, batch.infos
        self._stepping = False
        return batch

    # -- asynchronous stepping ----------------------------------------------------------

    @override
    def async_reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> None:
        self._check_idle("async_reset", results_may_wait=True)
        every = np.ones(self.num_envs, np.bool_)
        self.vec_env.async_reset(seed=seed, options=options)
        self._received = self._transformed = None
        self._awaiting_first_result, self._sending = every, True

    @override
    def send(self, actions: Any, env_ids: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        self._check_idle("send", results_may_wait=True)
        self.vec_env.send(self._forward(actions, env_ids), env_ids)
        self._sending = True

    @override
    def recv(self, min_envs: int | None = None, timeout: float | None = None) -> StepBatch:
        self._check_idle("recv", results_may_wait=True)
        if self._transformed is None:
            batch = None
            try:
                if self._received is None:
                    self._received = self.vec_env.recv(min_envs, timeout)
                batch = Batch.of_received(self._received, self._awaiting_first_result)
                if self._is_innermost:
                    self.raw_results.record_step(batch)
                self._transformed = batch, self._received.env_ids, self._transform(batch)
            except Exception:
                self._received = None
                self._lose_results(batch)
                raise
        batch, envs, state = self._transformed
        self._merge_partial(batch)
        awaiting = _without(envs, self._awaiting_first_result)
        self._state, self._steps, self._awaiting_first_result = state, self._steps + 1, awaiting
        self._received = self._transformed = None
        results = batch.obs, batch.rewards, batch.terminated, batch.truncated, batch.infos
        return StepBatch(*results, envs)

    # -- checkpoints --------------------------------------------------------------------

    def save_state(self, env_ids: EnvIds = None, *, verify: bool = False) -> EnvStates:
        """Save states, as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.save_state` does.

        The states include the transform's state for each environment, and its learned statistics.
        """
        self._check_idle("save_state")
        state = self.vec_env.save_state(env_ids, verify=verify)
        ids = checked_env_ids(env_ids, self.num_envs)
        saved = [tuple(self._snapshot(env)) for env in ids]
        return state.adding(_state_key(self), saved, self.learned() or None)

    def load_state(self, state: EnvStates, env_ids: EnvIds = None) -> tuple[Any, StepInfos]:
        """Load states, as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.load_state` does.

        Learned statistics are loaded only if ``env_ids`` is None. The loaded observations do not
        update the statistics.
        """
        self._check_idle("load_state")
        saved, learned = saved_by_transform(state, _state_key(self))
        for one in saved:
            check_saved_shape("reward", one.reward, self.buf_rews)
            self._check_env_state(one.env_state)
        learns = env_ids is None and learned is not None
        learn = self.prepare_learned(learned) if learns else None
        obs, infos = self.vec_env.load_state(state, env_ids)
        if learn is not None:
            learn()
        ids = checked_env_ids(env_ids, self.num_envs)
        return self._restore(ids, saved, obs), infos

    @override
    def clone_state(
        self, src_ids: int | Sequence[int], dst_ids: int | Sequence[int], *, fork_rng: bool = False
    ) -> tuple[Any, StepInfos]:
        self._check_idle("clone_state")
        sources, targets = checked_clones(src_ids, dst_ids, self.num_envs)
        saved = [self._snapshot(env) for env in sources]
        obs, infos = self.vec_env.clone_state(src_ids, dst_ids, fork_rng=fork_rng)
        return self._restore(targets, saved, obs), infos

    def _snapshot(self, env: int) -> TransformSnapshot:
        exact = None if self._exact_rewards is None else self._exact_rewards[env].tolist()
        return TransformSnapshot(
            self.buf_rews[env].tolist(), exact, dict(self.buf_infos[env]), self._env_state(env)
        )

    def _restore(self, ids: Sequence[int], saved: Sequence[TransformSnapshot], obs: Any) -> Any:
        """Restore snapshots; return the transformed observations for the next actions."""
        self._discard_pending()
        if self._is_innermost:
            self.raw_results.record_observations(obs)
        rewards, infos, exact = self.buf_rews.copy(), list(self.buf_infos), self.exact_rewards
        for env, one in zip(ids, saved, strict=True):
            rewards[env], infos[env] = one.reward, dict(one.info)
            exact[env] = one.reward if one.exact_reward is None else one.exact_reward
        if self._exact_rewards is not None or any(one.exact_reward is not None for one in saved):
            self._exact_rewards = exact
        self.buf_rews, self.buf_infos = rewards, infos
        self.buf_dones = self.vec_env.buf_dones
        self.buf_truncations = self.vec_env.buf_truncations
        return self._restore_env_state(ids, [one.env_state for one in saved], obs)

    def _env_state(self, env: int) -> Any:
        """Return one environment's part of ``_state``: numbers, arrays and containers of them."""
        return None

    def _check_env_state(self, env_state: Any) -> None:
        """Raise if a saved value of :meth:`_env_state` does not fit this transform."""

    def _restore_env_state(self, ids: Sequence[int], shares: Sequence[Any], obs: Any) -> Any:
        """Restore values of :meth:`_env_state`; return the observations, transformed."""
        return obs

    # -- pending results ----------------------------------------------------------------

    def _discard_pending(self) -> None:
        """Discard all pending results, before a reset of all environments."""
        self._stepping = self._sending = False
        self._received = self._transformed = self._awaiting_first_result = None

    def _lose_results(self, batch: Batch | None) -> None:
        """Discard the results of a failed call; ``batch`` is None if an inner call failed."""
        raw = self.raw_results
        if batch is not None or self._is_innermost:
            raw.lost = None if batch is None else batch.boundaries
        if raw.lost is not None:
            envs, restarted = raw.lost
            self._awaiting_first_result = _without(envs, self._awaiting_first_result)
            self._restart_episodes(restarted)

    def _check_idle(self, what: str, *, results_may_wait: bool = False) -> None:
        if self._stepping and not self.vec_env.waiting:
            raise AlreadySteppingError(
                f"{what} was called while a step is pending: call step_wait first"
            )
        if self._received is not None and not results_may_wait:  # left by an interrupt
            raise AlreadySteppingError(
                f"{what} was called while results are outstanding: receive them with recv first"
            )


def _without(envs: Any, awaiting: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Return ``awaiting`` with ``envs`` unmarked: their results have arrived or were lost."""
    if awaiting is not None:
        awaiting = awaiting.copy()
        awaiting[envs] = False
    return awaiting


def _state_key(transform: Transform) -> str:
    """Return the key of a transform's data in saved states: position and class name."""
    return f"{len(transform.transforms) - 1} {type(transform).__name__}"
