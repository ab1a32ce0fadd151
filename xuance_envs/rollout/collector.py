"""Rollouts: what an agent and many environments do together, as tensors to learn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from xuance_envs.rollout.advantages import generalized_advantages
from xuance_envs.rollout.agents import (
    ActionLayout,
    Agent,
    checked_answer,
    checked_numbers,
    device_of,
    squeezed,
)
from xuance_envs.rollout.episode_statistics import EpisodeStatistics
from xuance_envs.rollout.recorder import GifRecorder, image_of, render_folder
from xuance_envs.rollout.states import StateLayout, StateRow
from xuance_envs.rollout.storage import Rollout, RolloutStorage, SegmentEnds
from xuance_envs.rollout.transfer import Transfer
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["RolloutCollector"]

RENDER_MODE = "rgb_array"

_RESULTS = (
    *("states", "actions", "rewards", "values", "log_probs", "done_flags", "trunc_flags"),
    *("end_states", "ep_counts", "total_return"),
)
"""The attributes that a rollout leaves behind."""


class RolloutCollector:
    """Has an agent play in a vector environment, and keeps what happens.

    :meth:`rollout` steps every environment ``steps_per_env`` times; what came of it is in the
    attributes below. The environments are reset once, by the constructor; each rollout goes on
    where the last one stopped. An interrupted rollout, or one that raised, is lost, so that its
    attributes are missing, and if a step was under way then, the environments are reset before the
    next.

    The tensors are on ``device``, and yours: where you hold anything of a rollout, be it a part of
    a tensor or what autograd has saved, no later rollout writes. What nobody holds any more makes
    room for the next. T is ``steps_per_env`` and N the number of environments.

    Args:
        vec_env: the environments; closed by :meth:`close`.
        agent: chooses the actions; see :class:`~xuance_envs.rollout.agents.Agent`.
        steps_per_env: steps of each environment in a rollout.
        device: where the tensors are; None for the agent's own device, else CUDA where there is
            one, else the CPU.
        state_dtype: of the states. ``torch.uint8`` keeps images as they are, at a quarter of the
            memory; for a Dict space, an integer one goes to the parts that fit it.
        channels_first: whether images, (H, W, C), become (C, H, W): True, False, or ``"auto"`` for
            all but those that have their channels first already.
        progress: whether a progress bar is shown during a rollout.
        recorder: records episodes of environment 0; None for no recordings.
        window: how many finished episodes of each environment the statistics are about.
        seed: of the first reset, as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.reset` takes
            it.

    Raises:
        ValueError: an argument is out of its range, observations cannot become tensors, or the
            action space is not Discrete, MultiDiscrete, MultiBinary or Box.
        TypeError: ``vec_env`` is a Gymnasium vector environment.

    Attributes:
        states: ``(T, N, *state_shape)`` of ``state_dtype``, what was acted in. A leaf that requires
            grad, a new one each time, unless its dtype is an integer one. For a Dict space a dict
            of such tensors.
        actions (torch.Tensor): ``(T, N, *action_shape)`` of ``action_dtype``.
        rewards (torch.Tensor): ``(T, N)`` float32.
        values (torch.Tensor): ``(T, N)`` float32, the agent's, of the states.
        log_probs (torch.Tensor): ``(T, N)`` float32, the agent's, of the actions.
        done_flags (torch.Tensor): ``(T, N)`` int32: 1 where terminated.
        trunc_flags (torch.Tensor): ``(T, N)`` int32: 1 where truncated, and at the last step of an
            episode that was not over, whose environment is not reset.
        end_states: ``(E, *state_shape)``, the last state of each segment, environment by
            environment, in time order within each: what values are bootstrapped from. A segment
            is what a rollout has of an episode.
        ep_counts (torch.Tensor): ``(N,)`` int32, segments per environment.
        total_return (numpy.float32): the sum of all rewards.
        t_states: ``(N, *state_shape)``, the states that the next step starts from.
        state_space (gymnasium.Space): of one environment's observations.
        state_shape: of one state; for a Dict space a dict of shapes.
        action_space (gymnasium.Space): of one environment.
        action_dtype (torch.dtype): float32 for Box, else int32.
        device (torch.device): where the tensors are.
        global_steps (int): environment steps so far, but for those of :meth:`test_agent`.
        images (list[list[PIL.Image.Image]]): by environment, from :meth:`test_agent`.

    Example:
        >>> import torch
        >>> from xuance_envs import DummyVecEnv_Gym, Gym_Env, RolloutCollector
        >>> class Coin:
        ...     def get_actions_and_values(self, states, actions=None):
        ...         if actions is None:
        ...             actions = torch.randint(2, (len(states),))
        ...         half = torch.full((len(states),), 0.5)
        ...         return actions, half.log(), torch.zeros(len(states)), half
        >>> envs = DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v1")] * 3)
        >>> collector = RolloutCollector(envs, Coin(), steps_per_env=50, device="cpu", seed=0)
        >>> collector.rollout()
        >>> collector.states.shape, collector.rewards.shape, collector.total_return
        (torch.Size([50, 3, 4]), torch.Size([50, 3]), np.float32(150.0))
        >>> collector.advantages(gamma=0.99, gae_lambda=0.95).shape
        torch.Size([50, 3])
        >>> collector.close()
    """

    states: Any
    actions: torch.Tensor
    rewards: torch.Tensor
    values: torch.Tensor
    log_probs: torch.Tensor
    done_flags: torch.Tensor
    trunc_flags: torch.Tensor
    end_states: Any
    ep_counts: torch.Tensor
    total_return: np.float32
    images: list[list[Image.Image]]

    def __init__(
        self,
        vec_env: VecEnv,
        agent: Agent,
        steps_per_env: int,
        *,
        device: torch.device | str | None = None,
        state_dtype: torch.dtype = torch.float32,
        channels_first: bool | str = "auto",
        progress: bool = False,
        recorder: GifRecorder | None = None,
        window: int = 10,
        seed: int | Sequence[int | None] | None = None,
    ) -> None:
        if isinstance(vec_env, VectorEnv):
            raise TypeError(
                "expected a VecEnv, got a Gymnasium vector environment: wrap it with "
                "xuance_envs.compat.from_gymnasium, or make the environments with DummyVecEnv_Gym "
                "or SubprocVecEnv_Gym"
            )
        if steps_per_env < 1:
            raise ValueError(f"steps_per_env: expected at least 1, got {steps_per_env}")
        self.vec_env = vec_env
        self.agent = agent
        self.num_envs = vec_env.num_envs
        self.steps_per_env = steps_per_env
        self.device = device_of(agent, device)
        self.progress = progress
        self.recorder = recorder
        self.state_space = vec_env.observation_space
        self.action_space = vec_env.action_space
        self.global_steps = 0

        self._transfer = Transfer(self.device)
        self._layout = StateLayout(self.state_space, state_dtype, channels_first, self._transfer)
        self._action_layout = ActionLayout(self.action_space)
        self._statistics = EpisodeStatistics(self.num_envs, window)
        self._storage = RolloutStorage(
            steps_per_env, self.num_envs, self._layout, self._action_layout, self._transfer
        )
        self._must_reset = False
        self._fresh = np.zeros(self.num_envs, np.bool_)
        self.state_shape: Any = self._layout.shape
        self.action_dtype = self._action_layout.dtype
        self.t_states: Any = None
        self.vec_reset(seed=seed)

    # -- rollouts ---------------------------------------------------------------------

    def rollout(self) -> None:
        """Steps every environment ``steps_per_env`` times; see the attributes for the result.

        Raises:
            ValueError: the agent's answer has a wrong number of outputs, a wrong shape, or NaNs, or
                is on another device.
            TypeError: it is not made of tensors.
            VecEnvError: as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.step` raises them.
        """
        self._settle()
        self._let_go()
        rollout = self._storage.begin()
        self._statistics.forget()
        rows = rollout.state_rows
        rows[0].copy_from(self._layout.parts(self.t_states))
        self.t_states = rows[0].states
        ends = SegmentEnds(self._layout, self.num_envs)
        with torch.no_grad():
            for t in self._progress_bar():
                actions, log_probs, values = self._ask_agent()
                self._start_step(self._transfer.receive(actions))
                # Subprocesses are at work meanwhile.
                rollout.put_answer(t, actions, log_probs, values)
                parts, ended, rewards, terminated, truncated = self._finish_step(rows[t + 1])
                rollout.put_results(t, rewards, terminated, truncated)
                if len(ended):
                    ends.add(ended, parts)
        (unfinished,) = np.nonzero(~self._fresh)
        rollout.host_truncated[-1, unfinished] = 1
        ends.add(unfinished, parts)
        checked_numbers("values", rollout.values)
        checked_numbers("log_probs", rollout.log_probs)
        self._storage.send(rollout)
        self._show(rollout, ends)

    def _let_go(self) -> None:
        """Holds on to nothing of the last rollout, so that its memory can be used again."""
        self.t_states = self._layout.whole([p.clone() for p in self._layout.parts(self.t_states)])
        for name in _RESULTS:
            self.__dict__.pop(name, None)

    def _show(self, rollout: Rollout, ends: SegmentEnds) -> None:
        self.states = self._layout.whole(
            [part[:-1].detach().requires_grad_(part.is_floating_point()) for part in rollout.states]
        )
        self.actions, self.log_probs, self.values = (
            rollout.actions,
            rollout.log_probs,
            rollout.values,
        )
        self.rewards, self.done_flags, self.trunc_flags = (
            rollout.rewards,
            rollout.terminated,
            rollout.truncated,
        )
        self.end_states = ends.states()
        self.ep_counts = torch.from_numpy(ends.counts()).to(self.device)
        self.total_return = np.float32(rollout.host_rewards.sum(dtype=np.float64))

    def advantages(self, gamma: float, gae_lambda: float) -> torch.Tensor:
        """Generalized advantage estimates of the last rollout's actions.

        The agent is asked for the values of ``end_states``, so this comes before it learns.
        An episode that was truncated, or is not over, is bootstrapped from the value of its last
        state; one that was terminated is not, even if it was truncated as well.

        Args:
            gamma: the discount per step.
            gae_lambda: 0 looks one step ahead, 1 to the end of the segment.

        Returns:
            ``(T, N)`` float32. Added to ``values``, they are what values should have been.

        Raises:
            RuntimeError: there has been no rollout yet.
            ValueError: the agent's answer is not in order.
        """
        if "ep_counts" not in self.__dict__:
            raise RuntimeError("advantages are those of a rollout: call rollout first")
        count = int(self.ep_counts.sum())
        with torch.no_grad():
            answer = self.agent.get_actions_and_values(self.end_states, actions=None)
            values = checked_answer(answer, count, self._action_layout.shape, self.device)[2]
            if torch.isnan(values).any():
                raise ValueError("agent.get_actions_and_values: values of end_states: got NaN")
            terminated = self.done_flags.bool()
            return generalized_advantages(
                self.rewards,
                self.values,
                terminated,
                terminated | self.trunc_flags.bool(),
                values.to(self.values.dtype),
                gamma,
                gae_lambda,
            )

    # -- single steps -----------------------------------------------------------------

    def vec_reset(self, *, seed: int | Sequence[int | None] | None = None) -> Any:
        """Starts a new episode in every environment.

        Args:
            seed: as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.reset` takes it.

        Returns:
            The first states, ``(N, *state_shape)``.
        """
        observations, _ = self.vec_env.reset(seed=seed)
        row = self._layout.new_row(self.num_envs)
        row.write(self._layout.parts(observations))
        self._must_reset = False
        self._fresh = np.zeros(self.num_envs, np.bool_)
        self._statistics.restart()
        if self.recorder is not None:
            self.recorder.begin(self.global_steps)
        self.t_states = row.states
        return self.t_states

    def env_reset(self, env_id: int) -> Any:
        """Starts a new episode in one environment, unless one has just been started.

        After a step that ended its episode, an environment has been reset already, and it is not
        reset again.

        Args:
            env_id: which.

        Returns:
            The first state of that environment's episode, ``state_shape``.
        """
        self._settle()
        i = range(self.num_envs)[env_id]
        if not self._fresh[i]:
            observation, _ = self.vec_env.reset(env_ids=[i])
            row = self._layout.new_row(1)
            row.write(self._layout.parts(observation))
            states = [part.clone() for part in self._layout.parts(self.t_states)]
            for state, new in zip(states, self._layout.parts(row.states), strict=True):
                state[i] = new[0]
            self.t_states = self._layout.whole(states)
            self._statistics.restart(i)
            if self.recorder is not None and i == 0:
                self.recorder.begin(self.global_steps)
        return self._layout.whole([part[i].clone() for part in self._layout.parts(self.t_states)])

    def vec_step(self, actions: Any) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Steps every environment once.

        Args:
            actions: ``(N, *action_shape)``, a tensor or an array; for a Discrete space ``(N, 1)``
                as well.

        Returns:
            ``(states, rewards, done_flags, trunc_flags)``: the states ``(N, *state_shape)`` are
            the last ones where an episode ended; then :meth:`env_reset` has the first one of the
            next, and ``t_states`` has it in its place. Float32 and int32 ``(N,)``.

        Raises:
            ValueError: the actions do not fit; nothing has happened then.
        """
        self._settle()
        tensor = squeezed(torch.as_tensor(actions), self._action_layout.shape)
        shape = (self.num_envs, *self._action_layout.shape)
        if tensor.shape != shape:
            raise ValueError(f"actions: expected shape {shape}, got {tuple(tensor.shape)}")
        self._start_step(tensor.detach().cpu().numpy())
        parts, _, rewards, *flags = self._finish_step(self._layout.new_row(self.num_envs))
        last = self._layout.new_row(self.num_envs)
        last.write(parts)
        done, truncated = (torch.from_numpy(f.astype(np.int32)).to(self.device) for f in flags)
        return last.states, torch.from_numpy(rewards.copy()).to(self.device), done, truncated

    def test_agent(self, render_every: int) -> None:
        """Lets the agent play ``steps_per_env`` steps from a reset, and pictures it.

        A progress bar is shown. Afterwards ``images`` has a list of PIL images for each
        environment, and all environments are reset. These steps are in the statistics of episodes,
        but not in ``global_steps``, and never recorded.

        Args:
            render_every: steps from one image to the next.

        Raises:
            ValueError: ``render_every`` is below 1, or the environments do not render pictures.
        """
        if render_every < 1:
            raise ValueError(f"render_every: expected at least 1 step, got {render_every}")
        recorder, global_steps = self.recorder, self.global_steps
        self.recorder = None
        try:
            self.vec_reset()
            self._play_for_images(render_every)
        finally:
            self.recorder, self.global_steps = recorder, global_steps
            self._must_reset = True
        self.vec_reset()

    def _play_for_images(self, render_every: int) -> None:
        self.images = [[] for _ in range(self.num_envs)]
        steps = tqdm(range(self.steps_per_env), desc="Recording", unit=" steps")
        with torch.no_grad():
            for t in steps:
                if t % render_every == 0:
                    frames = self.vec_env.render(RENDER_MODE)
                    for images, frame in zip(self.images, frames, strict=True):
                        images.append(image_of(frame))
                self.vec_step(self._ask_agent()[0])

    def _progress_bar(self) -> Iterable[int]:
        steps = range(self.steps_per_env)
        if not self.progress:
            return steps
        return tqdm(steps, desc="rollout", unit=" steps", unit_scale=self.num_envs, leave=False)

    def _ask_agent(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        answer = self.agent.get_actions_and_values(self.t_states, actions=None)
        return checked_answer(answer, self.num_envs, self._action_layout.shape, self.device)

    def _start_step(self, actions: NDArray[Any]) -> None:
        actions = self._action_layout.for_envs(actions)
        if self.recorder is not None:
            self.recorder.before_step(self._render)
        self.vec_env.step_async(actions)
        self._must_reset = True

    def _render(self) -> Any:
        return self.vec_env.render(RENDER_MODE, env_ids=[0])[0]

    def _finish_step(self, row: StateRow) -> tuple[Any, ...]:
        """Waits for the step, and writes the states that the next one starts from into a row.

        Returns:
            The parts of the last observations, the environments whose episodes ended, rewards,
            terminated, truncated.
        """
        observations, rewards, terminated, truncated, infos = self.vec_env.step_wait()
        parts = self._layout.parts(observations)
        self._statistics.add_step(rewards)
        self._fresh = terminated | truncated
        self.global_steps += self.num_envs
        (ended,) = self._fresh.nonzero()
        envs = ended.tolist()
        firsts = []
        first_finished = False
        for i in envs:
            info = infos[i]
            firsts.append(self._layout.parts(info["reset_obs"]))
            finished = self._statistics.add_end(i, info, bool(truncated[i]))
            first_finished = first_finished or (finished and i == 0)
        row.write(parts, envs, firsts)
        self.t_states = row.states
        self._must_reset = False
        if self.recorder is not None:
            self.recorder.after_step(float(rewards[0]), first_finished, self.global_steps)
        return parts, ended, rewards, terminated, truncated

    def _settle(self) -> None:
        """Gets over what was interrupted in a step or a test, by a reset that throws it away."""
        if self._must_reset or self.vec_env.waiting:
            self.vec_reset()

    # -- what else there is to ask ----------------------------------------------------

    def permute_state(self, state: Any) -> Any:
        """An observation, or a batch, with its axes as the agent sees them.

        Images are turned from (..., H, W, C) to (..., C, H, W), if the collector does so; anything
        else comes back as it is.

        Args:
            state: an array or a tensor, or a dict of them for a Dict space.
        """
        return self._layout.permute(state)

    @property
    def render_folder(self) -> str:
        """Where recordings are saved: see :class:`~xuance_envs.rollout.recorder.GifRecorder`."""
        return render_folder() if self.recorder is None else self.recorder.folder

    @property
    def finished_ep_returns(self) -> list[float]:
        """Returns of the episodes that finished since the last rollout began, in that order."""
        return self._statistics.finished

    @property
    def rolling_ep_returns(self) -> list[list[float]]:
        """By environment, the returns of its last ``window`` finished episodes."""
        return self._statistics.returns

    @property
    def rolling_ep_lengths(self) -> list[list[int]]:
        """By environment, the lengths of its last ``window`` finished episodes."""
        return self._statistics.lengths

    @property
    def mean_ep_return(self) -> float:
        """Mean return of those episodes, of all environments; NaN before the first."""
        return self._statistics.mean_return

    @property
    def lower_ep_return(self) -> float:
        """5th percentile of their returns."""
        return self._statistics.return_percentile(5)

    @property
    def median_ep_return(self) -> float:
        """Median of their returns."""
        return self._statistics.return_percentile(50)

    @property
    def upper_ep_return(self) -> float:
        """95th percentile of their returns."""
        return self._statistics.return_percentile(95)

    @property
    def max_ep_return(self) -> float:
        """The best return of an episode ever; NaN before the first."""
        return self._statistics.max_return

    @property
    def mean_ep_length(self) -> float:
        """Mean of their lengths."""
        return self._statistics.mean_length

    @property
    def median_ep_length(self) -> float:
        """Median of their lengths."""
        return self._statistics.median_length

    def close(self) -> None:
        """Closes the environments; again, it does nothing."""
        self.vec_env.close()

    def __enter__(self) -> RolloutCollector:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
