"""What every transform is: a vector environment that changes what another one takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.errors import AlreadySteppingError, NotSteppingError
from xuance_envs.state.env_states import EnvStates
from xuance_envs.transforms.batches import Batch, Originals
from xuance_envs.transforms.learning import Learner
from xuance_envs.transforms.leaves import of_one_agent
from xuance_envs.transforms.saved import Saved, saved_with
from xuance_envs.vector_envs.arguments import checked_env_ids, seeds_of
from xuance_envs.vector_envs.seen import checked_clones
from xuance_envs.vector_envs.vector_env import StepBatch, StepResult, VecEnv
from xuance_envs.vector_envs.wrapper import VecEnvWrapper

__all__ = ["Transform", "transforms_of"]


class Transform(Learner, VecEnvWrapper):
    """A vector environment that changes what another one takes and gives.

    It steps at once, in halves, and with ``send`` and ``recv``, resets some environments or all,
    and hands on what it does not change. Where an episode ended, the last observation and
    ``reset_obs`` are both transformed, and nothing else in the infos.

    To derive from it, define :meth:`_transform`, or :meth:`_forward` where actions are changed.
    What a transform remembers from call to call is its ``_state``, which is never changed but
    replaced, once a call is over: so a step that was interrupted can be repeated, and counts once.

    Args:
        vec_env: the vector environment.
        observation_space: of one environment, if another than its.
        action_space: of one environment, if another than its.
        keep_raw: whether :attr:`raw_observations` are kept from the beginning.

    Raises:
        TypeError: it is no ``VecEnv``, or one of environments with many agents.

    Attributes:
        vec_env (VecEnv): the vector environment.
        training (bool): whether it learns from what it sees, which ``freeze`` ends.
        originals (Originals): what came before any transform.
    """

    def __init__(
        self,
        vec_env: VecEnv,
        *,
        observation_space: Space[Any] | None = None,
        action_space: Space[Any] | None = None,
        keep_raw: bool = False,
    ) -> None:
        vec_env = of_one_agent(type(self).__name__, vec_env)
        super().__init__(vec_env, observation_space=observation_space, action_space=action_space)
        below = transforms_of(vec_env)
        self.training = True
        self.originals: Originals = below[0].originals if below else Originals(self.num_envs)
        self.originals.keep |= keep_raw
        self._is_innermost = not below
        self._within: Callable[[], Batch] | None = None
        if isinstance(vec_env, Transform) and type(vec_env).step_wait is Transform.step_wait:
            self._within = vec_env.step_batch
        self._changes_actions = type(self)._forward is not Transform._forward
        self._state: Any = None
        self._steps = 0
        self._held: Any = None  # the last observations, once somebody has read them
        self._exact: NDArray[np.float64] | None = None
        # Of calls that are not over: what they brought is not transformed yet.
        self._stepping = self._sending = False
        self._received: StepBatch | None = None
        self._transformed: tuple[Batch, NDArray[np.intp], Any] | None = None
        self._began: NDArray[np.bool_] | None = None
        self.buf_rews, self.buf_dones = vec_env.buf_rews, vec_env.buf_dones
        self.buf_truncations, self.buf_infos = vec_env.buf_truncations, vec_env.buf_infos

    # -- what a transform does --------------------------------------------------------

    def _transform(self, batch: Batch) -> Any:
        """Changes what a call brought.

        Args:
            batch: its attributes may be replaced; what they refer to stays as it is, and so does
                all that this transform remembers.

        Returns:
            The transform's ``_state`` after the call.
        """
        return self._state

    def _forward(
        self, actions: Any, env_ids: Sequence[int] | NDArray[np.integer[Any]] | None
    ) -> Any:
        """The environments' own actions for those given to some of them, or to all."""
        return actions

    def _settle(self, batch: Batch) -> None:
        """Puts what was made of some environments beside what is known of the others.

        It may be called twice with the same batch.
        """

    def _hold(self, batch: Batch) -> None:
        """Has ``buf_obs`` show what some environments' reset brought."""

    # -- what it knows ----------------------------------------------------------------

    @property
    def transforms(self) -> list[Transform]:
        """This one and those within it, from the outside to the inside."""
        return transforms_of(self)

    @property
    def raw_rewards(self) -> NDArray[np.float32]:
        """The last rewards before any transform, ``(k,)`` float32: of a step, or of a ``recv``."""
        return self.originals.rewards.copy()

    @property
    def raw_observations(self) -> Any:
        """The last observations before any transform: of a step, a reset, or a ``recv``.

        They are kept from the first time they are read, or from the beginning with ``keep_raw``.
        """
        if not self.originals.keep:
            self.originals.keep = True
            self.originals.take_observations(self.transforms[-1].vec_env.buf_obs)
        return self.originals.observations

    # -- all at a time ----------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether a step is pending."""
        return self._stepping or self.vec_env.waiting

    @property
    def exact_rewards(self) -> NDArray[np.float64]:
        """The last step's rewards before they were rounded, ``(num_envs,)`` float64."""
        return self.vec_env.exact_rewards if self._exact is None else self._exact.copy()

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
        env_ids: Sequence[int] | None = None,
    ) -> tuple[Any, StepInfos]:
        """See :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.reset`."""
        envs = None
        if not self.closed:
            ids = checked_env_ids(env_ids, self.num_envs)
            seeds_of(seed, ids)
            if env_ids is None:
                self._forget()
            else:
                self._catch_up()
                env_ids, envs = ids, np.array(ids, np.intp)
        obs, infos = self.vec_env.reset(seed=seed, options=options, env_ids=env_ids)
        count = len(infos)
        never = np.zeros(count, np.bool_)
        batch = Batch(
            obs, np.zeros(count, np.float32), never, never, infos, envs=envs, began=~never
        )
        if self._is_innermost:
            self.originals.take_observations(obs)
        state = self._transform(batch)
        if envs is None:
            self._held = None
        else:
            self._hold(batch)
            self._settle(batch)
        self._state, self._steps = state, batch.number_after(self._steps)
        return batch.obs, batch.infos

    def step_async(self, actions: Any) -> None:
        """See :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.step_async`."""
        if self._stepping:
            self._check_not_stepping("step_async")
        if self._changes_actions:
            actions = self._forward(actions, None)
        self.vec_env.step_async(actions)

    def step_wait(self) -> StepResult:
        """See :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.step_wait`."""
        batch = self.step_batch()
        return batch.obs, batch.rewards, batch.terminated, batch.truncated, batch.infos

    def step_batch(self) -> Batch:
        """Waits for the step, as :meth:`step_wait`; what it brought, for the next transform."""
        vec_env = self.vec_env
        try:
            if self._stepping and not vec_env.waiting:
                batch = Batch.of_last_step(vec_env)
            elif self._within is None:
                self._stepping = True
                batch = Batch(*vec_env.step_wait(), vec_env)
            else:
                self._stepping = True
                batch = self._within()
                batch.source, batch.exact_rewards = vec_env, None
            if self._is_innermost:
                self.originals.take(batch)
            state = self._transform(batch)
        except Exception:
            self._stepping = False
            raise
        # No call in between, so that an interrupt finds either all of it or nothing.
        self._state, self._held, self._exact = state, None, batch.exact_rewards
        self._steps += 1
        self.buf_rews, self.buf_dones = batch.rewards, batch.terminated
        self.buf_truncations, self.buf_infos = batch.truncated, batch.infos
        self._stepping = False
        return batch

    # -- some at a time ---------------------------------------------------------------

    def async_reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """See :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.async_reset`."""
        self._check_not_stepping("async_reset")
        every = np.ones(self.num_envs, np.bool_)
        self.vec_env.async_reset(seed=seed, options=options)
        self._received = self._transformed = None
        self._began, self._sending = every, True

    def send(self, actions: Any, env_ids: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        """See :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.send`."""
        self._check_not_stepping("send")
        self.vec_env.send(self._forward(actions, env_ids), env_ids)
        self._sending = True

    def recv(self, min_envs: int | None = None, timeout: float | None = None) -> StepBatch:
        """See :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.recv`."""
        self._check_not_stepping("recv")
        if self._transformed is None:
            if self._received is None:
                self._received = self.vec_env.recv(min_envs, timeout)
            try:
                self._transformed = self._of(self._received)
            except Exception:
                self._received = None
                raise
        batch, envs, state = self._transformed
        self._settle(batch)
        began = None if self._began is None else self._began.copy()
        if began is not None:
            began[envs] = False
        self._state, self._steps, self._began = state, self._steps + 1, began
        self._received = self._transformed = None
        return StepBatch(
            batch.obs, batch.rewards, batch.terminated, batch.truncated, batch.infos, envs
        )

    def _of(self, received: StepBatch) -> tuple[Batch, NDArray[np.intp], Any]:
        """What is made of it, and of this transform."""
        envs = received.env_ids
        began = None if self._began is None else self._began[envs]
        batch = Batch(
            *received[:5], envs=envs, began=began if began is not None and began.any() else None
        )
        if self._is_innermost:
            self.originals.take(batch)
        return batch, envs, self._transform(batch)

    # -- states -----------------------------------------------------------------------

    def save_state(self, env_ids: Sequence[int] | None = None) -> EnvStates:
        """See :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.save_state`.

        What the transform remembers of each environment is a part of it, and so is what it has
        learned.
        """
        self._check_not_stepping("save_state")
        state = self.vec_env.save_state(env_ids)
        ids = checked_env_ids(env_ids, self.num_envs)
        saved = [tuple(self._saved(env)) for env in ids]
        return state.adding(self._key, saved, self.learned() or None)

    def load_state(
        self, state: EnvStates, env_ids: Sequence[int] | None = None
    ) -> tuple[Any, StepInfos]:
        """See :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.load_state`.

        What was learned is loaded where all environments are. Nothing of it is counted.
        """
        self._check_not_stepping("load_state")
        saved, learned = saved_with(state, self._key)
        learn = None
        if env_ids is None and learned is not None:
            learn = self.relearning(learned)
        obs, infos = self.vec_env.load_state(state, env_ids)
        if learn is not None:
            learn()
        ids = checked_env_ids(env_ids, self.num_envs)
        return self._loaded(ids, saved, obs), infos

    def clone_state(
        self,
        src_ids: int | Sequence[int],
        dst_ids: int | Sequence[int],
        *,
        fork_rng: bool = False,
    ) -> tuple[Any, StepInfos]:
        """See :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.clone_state`."""
        self._check_not_stepping("clone_state")
        sources, targets = checked_clones(src_ids, dst_ids, self.num_envs)
        saved = [self._saved(env) for env in sources]
        obs, infos = self.vec_env.clone_state(src_ids, dst_ids, fork_rng=fork_rng)
        return self._loaded(targets, saved, obs), infos

    @property
    def _key(self) -> str:
        """Under which its own is kept with states of environments."""
        return f"{len(self.transforms) - 1} {type(self).__name__}"

    def _saved(self, env: int) -> Saved:
        """What it remembers of an environment."""
        exact = None if self._exact is None else float(self._exact[env])
        return Saved(float(self.buf_rews[env]), exact, dict(self.buf_infos[env]), self._share(env))

    def _loaded(self, ids: Sequence[int], saved: Sequence[Saved], obs: Any) -> Any:
        """Remembers that of environments; what their next actions are chosen from."""
        self._forget()
        vec_env = self.vec_env
        rewards, infos = self.buf_rews.copy(), list(self.buf_infos)
        exact = self.exact_rewards
        for env, one in zip(ids, saved, strict=True):
            rewards[env], infos[env] = one.reward, dict(one.info)
            exact[env] = one.reward if one.exact_reward is None else one.exact_reward
        if self._exact is not None or any(one.exact_reward is not None for one in saved):
            self._exact = exact
        self.buf_rews, self.buf_infos = rewards, infos
        self.buf_dones, self.buf_truncations = vec_env.buf_dones, vec_env.buf_truncations
        return self._put_share(ids, [one.share for one in saved], obs)

    def _share(self, env: int) -> Any:
        """What its ``_state`` has of an environment, as numbers, arrays and containers of them."""
        return None

    def _put_share(self, ids: Sequence[int], shares: Sequence[Any], obs: Any) -> Any:
        """Puts that back.

        Args:
            ids: the environments.
            shares: of each.
            obs: what their next actions are chosen from, before this transform.

        Returns:
            The same after it.
        """
        return obs

    # -- what is on its way -----------------------------------------------------------

    def _catch_up(self) -> None:
        """Takes in what is on its way, of environments that are not to be reset."""
        if self.waiting:
            self.step_wait()
        while self._sending:
            try:
                self.recv()
            except NotSteppingError:
                self._sending = False

    def _forget(self) -> None:
        """Lets go of what is on its way: all environments are to be reset."""
        self._stepping = self._sending = False
        self._received = self._transformed = self._began = None

    def _check_not_stepping(self, what: str) -> None:
        if self._stepping and not self.vec_env.waiting:
            raise AlreadySteppingError(
                f"{what} was called while a step is pending: finish it with step_wait first"
            )


def transforms_of(vec_env: VecEnv) -> list[Transform]:
    """The transforms that a vector environment is made of, from the outside to the inside."""
    found: list[Transform] = []
    while isinstance(vec_env, VecEnvWrapper):
        if isinstance(vec_env, Transform):
            found.append(vec_env)
        vec_env = vec_env.vec_env
    return found
