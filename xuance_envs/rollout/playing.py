"""The rollout loop that the collectors derive from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from time import perf_counter

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.rollout.agent_loop import RENDER_MODE, AgentLoop
from xuance_envs.rollout.agents import Agent, MultiAgent, checked_numbers, device_of
from xuance_envs.rollout.env_adapters import Scalarize
from xuance_envs.rollout.halves import STEPS_PER_TURN, Half, Halves, HalvesTrial, validate_halves
from xuance_envs.rollout.recorder import GifRecorder, image_of
from xuance_envs.rollout.results import total_return_of
from xuance_envs.rollout.storage import Rollout, RolloutStorage
from xuance_envs.vector_envs.arguments import checked_count
from xuance_envs.vector_envs.options import AutoBool
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["RolloutLoop"]


class RolloutLoop(AgentLoop):
    """The rollout loop of the collectors.

    :class:`~xuance_envs.rollout.collector.RolloutCollector` describes arguments and attributes.
    """

    images: list[list[Image.Image]]

    def __init__(
        self,
        vec_env: VecEnv | MultiAgentVecEnv,
        agent: Agent | MultiAgent,
        steps_per_env: int,
        *,
        device: torch.device | str | None = None,
        state_dtype: torch.dtype = torch.float32,
        channels_first: AutoBool = "auto",
        progress: bool = False,
        recorder: GifRecorder | None = None,
        window: int = 10,
        seed: int | Sequence[int | None] | None = None,
        halves: Halves = 1,
        scalarize: Scalarize | None = None,
    ) -> None:
        self._envs = envs = self._envs_class(vec_env, agent, scalarize)
        self._team = envs.team
        self.vec_env = vec_env
        self.agent = agent  # type: ignore[assignment]  # MultiAgent in one subclass
        self.num_envs = vec_env.num_envs
        self.device = device_of(agent, device)
        self.recorder = recorder
        self.global_steps = 0
        self._set_spaces(envs.spaces, state_dtype, channels_first, window, envs.leading_axes)
        self.vec_reset(seed=seed)
        steps_per_env = checked_count("steps_per_env", steps_per_env)
        self.halves, self._bounds = validate_halves(halves, vec_env, recorder is not None)
        self._trial = HalvesTrial()
        self.steps_per_env = steps_per_env
        self.progress = progress
        shape = steps_per_env, self.num_envs, *self._team
        self._storage = RolloutStorage(
            shape, self._layout, self._action_layout, self._transfer, self._reward_shape
        )

    # -- rollouts ---------------------------------------------------------------------

    def rollout(self) -> None:
        """Step every environment ``steps_per_env`` times and store the results in attributes.

        Raises:
            ValueError: the agent returned the wrong number of outputs, a wrong shape, NaNs, or
                tensors on a different device.
            TypeError: an output of the agent is not a tensor.
            VecEnvError: as in :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.step`.
        """
        self._reset_if_interrupted()
        # Drop all references to the last rollout, so that its memory can be reused.
        self.t_states = self._layout.whole([p.clone() for p in self._layout.parts(self.t_states)])
        self.drop_results()
        rollout = self._storage.begin()
        self.statistics.ends = []
        rows = rollout.state_rows
        rows[0].copy_from(self._layout.parts(self.t_states))
        self.t_states = rows[0].states
        with torch.no_grad():
            self._play(rollout)
        self._storage.send(rollout)
        self._check_numbers(rollout)
        self._set_results(rollout)

    def _play(self, rollout: Rollout) -> None:
        bar: Iterable[int] = range(self.steps_per_env)
        if self.progress:
            bar = tqdm(bar, desc="rollout", unit=" steps", unit_scale=self.num_envs, leave=False)
        steps, done = iter(bar), 0
        while (left := self.steps_per_env - done) > 0:
            # With action masks, the agent acts for all environments in one call.
            masks = self._envs.gives_masks
            tried = self.halves == "auto" and not masks
            count = min(left, STEPS_PER_TURN) if tried else left
            start = perf_counter()
            if masks or (self._trial.halves if tried else self.halves) == 1:
                self._play_whole(rollout, islice(steps, count))
            else:
                self._play_in_halves(rollout, islice(steps, count), done, done + count)
            if tried:
                self.halves = self._trial.record(perf_counter() - start, count)
            done += count
        for _ in steps:  # none are left; this closes the progress bar
            pass

    def _play_whole(self, rollout: Rollout, steps: Iterable[int]) -> None:
        rows = rollout.state_rows
        for t in steps:
            outputs = self._query_agent(self.t_states, self.num_envs)
            self._start_step(self._transfer.receive(outputs[0]))
            # Meanwhile, the worker processes step.
            if self._masks is not None:
                rollout.masks.append(self._masks)
            rollout.store_outputs(t, outputs)
            parts, step = self._finish_step(rows[t + 1])
            rollout.store_step(t, step, parts)

    def _play_in_halves(
        self, rollout: Rollout, steps: Iterable[int], start: int, stop: int
    ) -> None:
        """Step the halves in turn; no step is pending before or after this call."""
        halves = [Half(lo, hi, self._layout) for lo, hi in self._bounds]
        parts = [self._storage.part(rollout, lo, hi) for lo, hi in self._bounds]
        turns = list(zip(halves, parts, strict=True))
        self._just_reset = np.zeros(self.num_envs, np.bool_)
        self._must_reset = True
        for half, part in turns:
            self._send(half, part, start)
        for t in steps:
            for half, part in turns:
                while half.outstanding:
                    batch = self._envs.recv(half.outstanding)
                    for each in halves:
                        each.add(*batch)
                step = half.step()
                self._just_reset[half.lo : half.hi] = step.ended
                observed, _ = self._record_step(half.lo, part.state_rows[t + 1], step)
                part.store_step(t, step, observed)
                if t + 1 < stop:
                    self._send(half, part, t + 1)
        self.t_states = rollout.state_rows[stop].states
        self._must_reset = False

    def _send(self, half: Half, part: Rollout, t: int) -> None:
        states = part.state_rows[t].states
        outputs = self._query_agent(states, len(half.env_ids))
        for_envs = self._action_layout.for_envs(self._transfer.receive(outputs[0]))
        self.vec_env.send(for_envs, half.env_ids)
        part.store_outputs(t, outputs)

    def _check_numbers(self, rollout: Rollout) -> None:
        _, log_probs, values = rollout.outputs
        idle = [~acted for acted in rollout.results[3:]]
        for name, outputs in (("values", values), ("log_probs", log_probs)):
            checked_numbers(name, outputs.masked_fill(idle[0], 0.0) if idle else outputs)

    def _set_results(self, rollout: Rollout) -> None:
        states = [part[:-1].detach() for part in rollout.states]
        for part in states:
            part.requires_grad_(part.is_floating_point() and not self._team)
        self.states = self._layout.whole(states)
        self.actions, self.log_probs, self.values = rollout.outputs
        self.rewards, self.done_flags, self.trunc_flags = rollout.results[:3]
        envs, *parts = map(np.concatenate, zip(*rollout.ends, strict=True))
        order = np.argsort(envs, kind="stable")
        last = self._layout.new_row(len(order))
        last.write([part[order] for part in parts])
        self.end_states = last.states
        counts = np.bincount(envs, minlength=self.num_envs).astype(np.int32)
        self.ep_counts = torch.from_numpy(counts).to(self.device)
        self.action_masks = torch.stack(rollout.masks) if rollout.masks else None
        self.total_return = total_return_of(rollout.hosts[0], self._reward_shape)

    def test_agent(self, render_every: int) -> None:
        """Reset, play ``steps_per_env`` steps while rendering, and reset again.

        A progress bar is shown. ``images`` then has a list of PIL images for each environment. The
        steps count in the episode statistics, but not in ``global_steps``. The ``recorder`` does
        not record these episodes.

        Args:
            render_every: number of steps between two images.

        Raises:
            ValueError: ``render_every`` is below 1, ``render`` did not return an image, or an
                output of the agent is invalid.
            TypeError: an output of the agent is not a tensor.
            VecEnvError: as for :meth:`rollout`, or ``render`` raised.
        """
        render_every = checked_count("render_every", render_every)
        recorder, global_steps = self.recorder, self.global_steps
        self.recorder = None
        try:
            self.vec_reset()
            self.images = [[] for _ in range(self.num_envs)]
            with torch.no_grad():
                for t in tqdm(range(self.steps_per_env), desc="Recording", unit=" steps"):
                    if t % render_every == 0:
                        frames = self.vec_env.render(RENDER_MODE)
                        for images, frame in zip(self.images, frames, strict=True):
                            images.append(image_of(frame))
                    self.vec_step(self._query_agent(self.t_states, self.num_envs)[0])
        finally:
            self.recorder, self.global_steps = recorder, global_steps
            self._must_reset = True
        self.vec_reset()
