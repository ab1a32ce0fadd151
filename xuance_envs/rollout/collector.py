"""Rollouts: what an agent and many environments do together, as tensors to learn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from xuance_envs.rollout.agent_loop import RENDER_MODE, AgentLoop
from xuance_envs.rollout.agents import Agent, checked_numbers
from xuance_envs.rollout.halves import TURN, Half, HalvesTrial, checked_halves, halves_of
from xuance_envs.rollout.recorder import GifRecorder, image_of
from xuance_envs.rollout.results import RolloutResults
from xuance_envs.rollout.storage import Rollout, RolloutStorage, SegmentEnds
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["RolloutCollector"]


class RolloutCollector(RolloutResults, AgentLoop):
    """Has an agent play in a vector environment, and keeps what happens.

    :meth:`rollout` steps every environment ``steps_per_env`` times; what came of it is in the
    attributes below, beside those of :class:`~xuance_envs.rollout.agent_loop.AgentLoop`, which has
    single steps and statistics. The environments are reset once, by the constructor; each rollout
    goes on where the last one stopped. An interrupted rollout, or one that raised, is lost, so that
    its attributes are missing, and if a step was under way then, the environments are reset before
    the next.

    The tensors are on ``device``, and yours: where you hold anything of a rollout, be it a part of
    a tensor or what autograd has saved, no later rollout writes. What nobody holds any more makes
    room for the next. T is ``steps_per_env`` and N the number of environments.

    Args:
        vec_env: the environments; closed by ``close``.
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
        halves: 2 lets one half of the workers step while the agent thinks about the other half's
            environments, which pays where the two do not need the same cores. The agent is then
            asked about the halves in turn: one that draws draws in that order. ``"auto"`` tries
            both in the first steps, and goes on with what is quicker.

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
        action_masks (torch.Tensor | None): ``(T, N, n)`` bool, those that the agent was given; None
            where it was given none.
        images (list[list[PIL.Image.Image]]): by environment, from :meth:`test_agent`.
        halves: 1 or 2, as is done; ``"auto"`` as long as it is being tried.

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
        halves: int | str = 1,
    ) -> None:
        if steps_per_env < 1:
            raise ValueError(f"steps_per_env: expected at least 1, got {steps_per_env}")
        super().__init__(
            vec_env,
            agent,
            device=device,
            state_dtype=state_dtype,
            channels_first=channels_first,
            recorder=recorder,
            window=window,
            seed=seed,
        )
        self.halves = checked_halves(halves, vec_env, recorder is not None)
        self._bounds = halves_of(vec_env) if self.halves != 1 else []
        self._trial = HalvesTrial()
        self.steps_per_env = steps_per_env
        self._kept_masks: list[torch.Tensor] = []
        self.progress = progress
        self._storage = RolloutStorage(
            steps_per_env, self.num_envs, self._layout, self._action_layout, self._transfer
        )

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
        self.statistics.forget()
        rows = rollout.state_rows
        rows[0].copy_from(self._layout.parts(self.t_states))
        self.t_states = rows[0].states
        ends = SegmentEnds(self._layout, self.num_envs)
        self._kept_masks = []
        with torch.no_grad():
            self._play(rollout, ends)
        checked_numbers("values", rollout.values)
        checked_numbers("log_probs", rollout.log_probs)
        self._storage.send(rollout)
        self._show(rollout, ends)
        self.action_masks = torch.stack(self._kept_masks) if self._kept_masks else None
        self._kept_masks = []

    def _play(self, rollout: Rollout, ends: SegmentEnds) -> None:
        steps = iter(self._progress_bar())
        done = 0
        while (left := self.steps_per_env - done) > 0:
            # Where masks are given, the agent thinks of all at once.
            tried = self.halves == "auto" and not self._gives_masks
            count = min(left, TURN) if tried else left
            start = perf_counter()
            if self._gives_masks or (self._trial.halves if tried else self.halves) == 1:
                self._play_at_once(rollout, islice(steps, count), ends)
            else:
                self._play_in_halves(rollout, islice(steps, count), done, done + count, ends)
            if tried:
                self.halves = self._trial.note(perf_counter() - start, count)
            done += count
        for _ in steps:  # of which there are none: it ends the progress bar
            pass

    def _play_at_once(self, rollout: Rollout, steps: Iterable[int], ends: SegmentEnds) -> None:
        rows = rollout.state_rows
        for t in steps:
            actions, log_probs, values = self._ask_agent(self.t_states, self.num_envs)
            self._start_step(self._transfer.receive(actions))
            # Subprocesses are at work meanwhile.
            if self._masks is not None:
                self._kept_masks.append(self._masks)
            rollout.put_answer(t, actions, log_probs, values)
            parts, ended, *results = self._finish_step(rows[t + 1])
            rollout.put_results(t, *results)
            self._put_ends(rollout, t, 0, ended, parts, ends)

    def _play_in_halves(
        self, rollout: Rollout, steps: Iterable[int], start: int, stop: int, ends: SegmentEnds
    ) -> None:
        """Lets the halves take turns; between two calls nothing is under way.

        Args:
            rollout: what comes of it.
            steps: the numbers of the steps.
            start: the first of them.
            stop: the number after the last one.
            ends: of its segments.
        """
        halves = [Half(lo, hi, self._layout) for lo, hi in self._bounds]
        parts = [self._storage.part(rollout, lo, hi) for lo, hi in self._bounds]
        turns = list(zip(halves, parts, strict=True))
        self._fresh = np.zeros(self.num_envs, np.bool_)
        self._must_reset = True
        for half, part in turns:
            self._send(half, part, start)
        for t in steps:
            for half, part in turns:
                while half.missing:
                    batch = self.vec_env.recv(min_envs=half.missing)
                    for each in halves:
                        each.take(batch)
                self._finish_turn(half, part, t, ends)
                if t + 1 < stop:
                    self._send(half, part, t + 1)
        self.t_states = rollout.state_rows[stop].states
        self._must_reset = False

    def _send(self, half: Half, part: Rollout, t: int) -> None:
        states = part.state_rows[t].states
        actions, log_probs, values = self._ask_agent(states, len(half.env_ids))
        for_envs = self._action_layout.for_envs(self._transfer.receive(actions))
        self.vec_env.send(for_envs, half.env_ids)
        part.put_answer(t, actions, log_probs, values)

    def _finish_turn(self, half: Half, part: Rollout, t: int, ends: SegmentEnds) -> None:
        step = half.step()
        self._fresh[half.lo : half.hi] = step.terminated | step.truncated
        row = part.state_rows[t + 1]
        ended, _ = self._take_in(half.lo, row, step.parts, step.rewards, step.truncated, step.infos)
        part.put_results(t, step.rewards, step.terminated, step.truncated)
        self._put_ends(part, t, half.lo, ended, step.parts, ends)

    def _put_ends(
        self,
        rollout: Rollout,
        t: int,
        first: int,
        ended: NDArray[np.intp],
        parts: Sequence[NDArray[Any]],
        ends: SegmentEnds,
    ) -> None:
        """Keeps the last observations of the segments that end with a step of some environments."""
        if len(ended):
            ends.add(first, ended, parts)
        if t == self.steps_per_env - 1:
            (unfinished,) = np.nonzero(~self._fresh[first : first + len(parts[0])])
            rollout.cut(unfinished)
            ends.add(first, unfinished, parts)

    def _let_go(self) -> None:
        """Holds on to nothing of the last rollout, so that its memory can be used again."""
        self.t_states = self._layout.whole([p.clone() for p in self._layout.parts(self.t_states)])
        self.drop_results()

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
        self.total_return = np.float32(rollout.hosts[0].sum(dtype=np.float64))

    # -- a test ------------------------------------------------------------------------

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
                self.vec_step(self._ask_agent(self.t_states, self.num_envs)[0])

    def _progress_bar(self) -> Iterable[int]:
        steps = range(self.steps_per_env)
        if not self.progress:
            return steps
        return tqdm(steps, desc="rollout", unit=" steps", unit_scale=self.num_envs, leave=False)
