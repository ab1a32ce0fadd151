"""The step loop of an agent in a vectorized environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xuance_envs.errors import StateError, counted
from xuance_envs.rollout.agents import AgentOutputs, squeezed
from xuance_envs.rollout.env_adapters import LoopStep, MultiAgentEnvs, SingleAgentEnvs
from xuance_envs.rollout.loop_state import LoopState, generators, set_generators
from xuance_envs.rollout.recorder import GifRecorder, render_folder
from xuance_envs.rollout.results import RolloutResults
from xuance_envs.rollout.state_layout import StateSlot

RENDER_MODE = "rgb_array"
"""Render mode of recordings and test images."""


class AgentLoop(RolloutResults):
    """A loop that steps a vectorized environment with an agent's actions.

    :class:`~xuance_envs.rollout.collector.RolloutCollector` describes the arguments.

    Attributes:
        t_states: ``(N, *state_shape)``, the states before the next step.
        state_space (gymnasium.Space): observation space of one environment.
        state_shape: shape of one state; a dict of shapes for a Dict space.
        action_space (gymnasium.Space): action space of one agent.
        reward_space (gymnasium.spaces.Box | None): space ``(k,)`` of vector rewards; None if
            rewards are numbers or scalarized.
        action_dtype (torch.dtype): float32 for Box, otherwise int32.
        device (torch.device): device of the tensors.
        statistics (EpisodeHistory): statistics of finished episodes.
        global_steps (int): environment steps so far, without the steps of ``test_agent``.
    """

    _envs_class: type[SingleAgentEnvs] | type[MultiAgentEnvs] = SingleAgentEnvs

    vec_env: Any
    recorder: GifRecorder | None
    global_steps: int
    _envs: SingleAgentEnvs | MultiAgentEnvs
    _masks: torch.Tensor | None = None

    # -- single steps -----------------------------------------------------------------

    def vec_reset(self, *, seed: int | Sequence[int | None] | None = None) -> Any:
        """Start a new episode in every environment.

        Args:
            seed: as in :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.reset`.

        Returns:
            The first states, ``(N, *state_shape)``.
        """
        row = self._reset_states(self.num_envs, seed=seed)
        self._just_reset = np.zeros(self.num_envs, np.bool_)
        self.statistics.restart()
        if self.recorder is not None:
            self.recorder.begin(self.global_steps)
        self.t_states = row.states
        self._must_reset = False
        return self.t_states

    def env_reset(self, env_id: int) -> Any:
        """Start a new episode in one environment, unless its last step already started one.

        Args:
            env_id: index of the environment.

        Returns:
            The first state of its episode, of shape ``state_shape``.

        Raises:
            IndexError: ``env_id`` is out of range.
        """
        if not -self.num_envs <= env_id < self.num_envs:
            expected = f"an index into {counted(self.num_envs, 'environment')}"
            raise IndexError(f"env_id: expected {expected}, got {env_id}")
        self._reset_if_interrupted()
        i = range(self.num_envs)[env_id]
        if not self._just_reset[i]:
            row = self._reset_states(1, env_ids=[i])
            states = [part.clone() for part in self._layout.parts(self.t_states)]
            for state, new in zip(states, self._layout.parts(row.states), strict=True):
                state[i] = new[0]
            self.t_states = self._layout.whole(states)
            self.statistics.restart(i)
            if self.recorder is not None and i == 0:
                self.recorder.begin(self.global_steps)
            self._must_reset = False
        return self._layout.whole([part[i].clone() for part in self._layout.parts(self.t_states)])

    def _reset_states(self, count: int, **given: Any) -> StateSlot:
        """Reset some environments and return their first states, which the caller must store."""
        self._must_reset = True  # also if the reset is interrupted, or the observations are refused
        observations = self._envs.reset(**given)
        row = self._layout.new_row(count)
        row.write(self._layout.observed(observations))
        return row

    def vec_step(self, actions: Any) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Step every environment once.

        Args:
            actions: ``(N, *action_shape)``, a tensor or an array; for a Discrete space also
                ``(N, 1)``.

        Returns:
            ``(states, rewards, done_flags, trunc_flags)``: states ``(N, *state_shape)``, float32
            rewards ``(N,)`` or ``(N, k)``, and int32 flags ``(N,)``: ``done_flags`` is 1 where the
            environment terminated, ``trunc_flags`` where it was truncated. In these rows,
            ``states`` has the episode's last state; ``t_states`` and :meth:`env_reset` have the
            first state of the next episode.

        Raises:
            ValueError: the actions have the wrong shape or values; no environment was stepped.
            VecEnvError: as for :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.step`.
        """
        self._reset_if_interrupted()
        if np.ma.is_masked(actions):
            raise ValueError("actions: expected no masked values")
        shape = (self.num_envs, *self._team, *self._action_layout.shape)
        tensor = squeezed(torch.as_tensor(actions, device="cpu"), shape, self._action_layout.shape)
        if tensor.shape != shape:
            raise ValueError(f"actions: expected shape {shape}, got {tuple(tensor.shape)}")
        self._start_step(self._transfer.receive(tensor))
        parts, step = self._finish_step(self._layout.new_row(self.num_envs))
        last = self._layout.new_row(self.num_envs)
        last.write(parts)
        rewards, *flags = step.results
        done, truncated = (torch.from_numpy(f.astype(np.int32)).to(self.device) for f in flags[:2])
        return last.states, torch.from_numpy(rewards.copy()).to(self.device), done, truncated

    def _query_agent(self, states: Any, count: int) -> AgentOutputs:
        masks = self._envs.masks()
        self._masks = None if masks is None else torch.from_numpy(masks).to(self.device)
        return self._agent_outputs(states, self._masks, count)

    def _start_step(self, actions: NDArray[Any]) -> None:
        actions = self._action_layout.for_envs(actions)
        if self.recorder is not None:
            self.recorder.before_step(lambda: self.vec_env.render(RENDER_MODE, env_ids=[0])[0])
        self.vec_env.step_async(actions)
        self._must_reset = True

    def _finish_step(self, row: StateSlot) -> tuple[list[Any], LoopStep]:
        """Wait for the step; write the states for the next step into ``row``."""
        step = self._envs.step_wait()
        parts, finished = self._record_step(0, row, step)
        self._just_reset = step.ended
        self.t_states = row.states
        if self.recorder is not None:
            reward = np.asarray(self._scores_of(step)[0], np.float64)[()]
            self.recorder.after_step(reward, 0 in finished, self.global_steps)
        self._must_reset = False
        return parts, step

    def _record_step(
        self, first: int, row: StateSlot, step: LoopStep
    ) -> tuple[list[Any], list[int]]:
        """Add a step to the statistics; write the states for the next step into ``row``."""
        scores = self._scores_of(step)
        self.statistics.add_step(scores, first)
        self.global_steps += len(scores)
        firsts, finished = [], []
        for place, first_obs, info, truncated in step.ends:
            firsts.append((place, self._layout.observed(first_obs)))
            if self.statistics.add_end(first + place, info, truncated):
                finished.append(place)
        parts = self._layout.observed(step.obs)
        row.write(parts, firsts)
        return parts, finished

    def _scores_of(self, step: LoopStep) -> NDArray[Any]:
        """Return each environment's reward, averaged over its agents if there are several."""
        rewards = step.results[0]
        return rewards.mean(axis=1) if self._team else rewards

    def _reset_if_interrupted(self) -> None:
        """Reset all environments if a step, reset, load or test was interrupted."""
        if self._must_reset or self.vec_env.waiting:
            self.vec_reset()

    # -- states -------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Save everything the collector needs to continue, except the agent and its optimizer.

        The dict has the environments' saved states, the observations before the next step,
        statistics, the current recording, and torch's random generators. Call this method between
        two rollouts.

        Returns:
            A dict of bytes and numbers, for ``torch.save`` and ``torch.load(weights_only=True)``.

        Raises:
            StateError: an environment's state cannot be saved.
        """
        return self.loop_state().to_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, trusted: bool = False) -> None:
        """Continue from a state saved by :meth:`state_dict`, with any backend.

        Args:
            state: the result of :meth:`state_dict`.
            trusted: True to allow environment states to contain classes of any module; see
                :meth:`~xuance_envs.state.env_states.EnvStates.from_bytes`.

        Raises:
            ValueError: the state has a different version or number of environments.
            StateError: the state cannot be read; nothing has changed.
            StateMismatchError: the state is from different environments; nothing has changed.
        """
        self.restore_loop(self._read_state(state, trusted))

    def loop_state(self) -> LoopState:
        """Return the content of :meth:`state_dict`, unserialized."""
        self._reset_if_interrupted()
        return LoopState(
            self.vec_env.save_state(),
            # Copies, because the tensors are parts of the rollout's memory, which would be saved.
            [part.detach().cpu().numpy().copy() for part in self._layout.parts(self.t_states)],
            self._just_reset,
            self.statistics.state(),
            None if self.recorder is None else self.recorder.state(),
            self.global_steps,
            generators(self.device),
        )

    def restore_loop(self, loop_state: LoopState) -> None:
        """Continue from the result of :meth:`loop_state`.

        Raises:
            StateMismatchError: the state is from different environments; nothing has changed.
        """
        if self.vec_env.waiting:
            self.vec_env.step_wait()
        before, self._must_reset = self._must_reset, True
        try:
            self._envs.load_state(loop_state.envs)
        except (StateError, ValueError):  # nothing has changed
            self._must_reset = before
            raise
        row = self._layout.new_row(self.num_envs)
        row.copy_from([torch.from_numpy(array) for array in loop_state.states])
        self.t_states = row.states
        self._just_reset = loop_state.fresh
        self.global_steps = loop_state.global_steps
        self.statistics.set_state(loop_state.statistics)
        if self.recorder is not None:
            self.recorder.set_state(loop_state.recorder)
        set_generators(loop_state.generators, self.device)
        self._must_reset = False

    @property
    def render_folder(self) -> str:
        """Folder of recordings: see :class:`~xuance_envs.rollout.recorder.GifRecorder`."""
        return render_folder() if self.recorder is None else self.recorder.folder

    def close(self) -> None:
        """Close the environments. Calling ``close`` again does nothing."""
        self.vec_env.close()
