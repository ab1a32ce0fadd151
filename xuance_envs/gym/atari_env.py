"""Single Atari games in XuanCe's form: ``Atari_Env``."""

from __future__ import annotations

import math
import operator
from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from xuance_envs.gym.atari_fast_reset import FastReset
from xuance_envs.gym.atari_games import (
    at_least,
    make_game,
    parse_frame_skip,
    parse_image_size,
    rom_path,
    single_action,
)
from xuance_envs.gym.atari_screen import RamView, Screen, resize
from xuance_envs.gym.lazy_frames import LazyFrames
from xuance_envs.gym.wrapper import EnvWrapper

__all__ = ["Atari_Env"]

StepResult = tuple[LazyFrames, float, bool, bool, dict[str, Any]]

_MAX_START_ATTEMPTS = 100
_MAX_ACTION_REQUESTS = 512


class Atari_Env(EnvWrapper):
    """An Atari game on ale-py's emulator with the usual preprocessing.

    A step repeats its action for several frames, max-pools the last two, resizes the result and
    stacks it on the previous frames. By default, a lost life ends the episode but not the game;
    the next :meth:`reset` continues the game. The preprocessing and most defaults follow
    Mnih et al., "Human-level control through deep reinforcement learning" (2015), but images keep
    the screen's size. Sticky actions with probability 0.25 follow Machado et al., "Revisiting the
    Arcade Learning Environment" (2018). Images are bitwise identical to those of Gymnasium's
    ``AtariPreprocessing``.

    ============= ================================
    ``obs_type``  observation shape (uint8)
    ============= ================================
    ``grayscale`` ``(height, width, num_stack)``
    ``rgb``       ``(height, width, 3*num_stack)``
    ``ram``       ``(128*num_stack,)``
    ============= ================================

    Observations are :class:`~xuance_envs.gym.lazy_frames.LazyFrames`, oldest frame first.
    Consecutive observations share their common frames. Every info, even the info of a reset, has
    these keys:

    - ``episode_step`` (int) and ``episode_score`` (float): number of steps and sum of unclipped
      rewards in the current game, over all lives;
    - ``lives`` (int): remaining lives;
    - ``game_over`` (bool): True at the end of a game, not at a lost life;
    - ``frame_number`` (int): frames emulated since the game was loaded or seeded.

    Args:
        env_id: id of a game, such as ``ALE/Breakout-v5``, ``Breakout-v5`` or ``Breakout``.
        seed: seed of the action space, and of the first :meth:`reset` unless that call has its own
            seed. Later resets continue the random stream.
        render_mode: ``"rgb_array"``, ``"human"`` (a window with sound), or None.
        obs_type: ``"grayscale"``, ``"rgb"`` or ``"ram"``; see above.
        frame_skip: frames per action: an int, or a pair ``(low, high)`` from which each step draws
            a number, ``high`` excluded.
        num_stack: frames per observation.
        image_size: ``(height, width)``, or one int for a square; None keeps the screen size, for
            most games 210 by 160. Images are resized by area. Ignored for ``"ram"``.
        noop_max: maximum number of no-ops at the start of a game, one frame each. The number is
            drawn from the environment's random generator.
        max_pool: True to take the pixel-wise maximum of a step's last two frames, because many
            games draw some objects only in every second frame; False to take the last frame.
        fire_on_reset: True to press FIRE for ``frame_skip`` frames after the no-ops, in games that
            have this action. Some games do not start without it.
        terminal_on_life_loss: True to end the episode at a lost life.
        clip_reward: True to replace rewards by their sign.
        truncate_on_game_over: True to set ``truncated`` as well as ``terminated`` at the end of a
            game, as XuanCe's agents expect.
        full_action_space: True for all 18 actions, False for the game's minimal set.
        repeat_action_probability: probability per frame that the emulator repeats the previous
            action (sticky actions). The default applies to every id, also to those of version 4,
            such as ``PongNoFrameskip-v4``, which themselves have none.
        **kwargs: passed to ``gymnasium.make``, for example ``mode``, ``difficulty``,
            ``max_num_frames_per_episode`` or ``max_episode_steps``.

    Attributes:
        max_episode_steps: steps after which a game is truncated; None for no limit. It is the
            smaller of two limits: the argument ``max_episode_steps``, and the emulator's frame
            limit divided by ``frame_skip`` (or by ``low``), rounded up.
        reward_range: minimum and maximum reward.
        was_real_done: True if the last step ended the game or reached the step limit. Also True
            before the first reset.
        lifes: remaining lives.
        num_stack: frames per observation.
        grayscale: True if ``obs_type`` is ``"grayscale"``.
        rgb: True if ``obs_type`` is ``"rgb"``.
        frames: frames of the latest observation, oldest first.

    Raises:
        UnknownGameError: ale-py does not have this game. A subclass of :class:`ValueError` and of
            Gymnasium's ``NameNotFound``.
        ValueError: an argument is out of range.
        ImportError: ale-py or OpenCV cannot be imported.

    Examples:
        >>> env = Atari_Env("Breakout", seed=1, image_size=84)
        >>> observation, info = env.reset()
        >>> observation
        LazyFrames(shape=(84, 84, 4), dtype=uint8)
        >>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        >>> info["episode_step"], info["lives"], info["game_over"]
        (1, 5, False)
        >>> env.close()
    """

    def __init__(
        self,
        env_id: str,
        seed: int | None = None,
        render_mode: str | None = "rgb_array",
        obs_type: str = "grayscale",
        frame_skip: int | tuple[int, int] = 4,
        num_stack: int = 4,
        image_size: int | tuple[int, int] | None = None,
        noop_max: int = 30,
        *,
        max_pool: bool = True,
        fire_on_reset: bool = True,
        terminal_on_life_loss: bool = True,
        clip_reward: bool = True,
        truncate_on_game_over: bool = True,
        full_action_space: bool = False,
        repeat_action_probability: float = 0.25,
        **kwargs: Any,
    ) -> None:
        skips = parse_frame_skip(frame_skip)
        self.num_stack = at_least(1, num_stack, "num_stack")
        self.noop_max = at_least(0, noop_max, "noop_max")
        size = None if image_size is None else parse_image_size(image_size)
        self._pending_seed = None if seed is None else operator.index(seed)
        made: Any = make_game(
            env_id,
            render_mode=render_mode,
            obs_type=obs_type,
            frameskip=skips if len(skips) == 2 else skips[0],
            repeat_action_probability=repeat_action_probability,
            full_action_space=full_action_space,
            **kwargs,
        )
        # Wrappers are removed: steps go to the emulator frame by frame.
        super().__init__(made.unwrapped)
        self._game: Any = self.env
        if self._pending_seed is not None:
            self.action_space.seed(self._pending_seed)

        self.obs_type = obs_type
        self.grayscale, self.rgb = obs_type == "grayscale", obs_type == "rgb"
        self.frame_skip = frame_skip
        self.terminal_on_life_loss = terminal_on_life_loss
        self.clip_reward = clip_reward
        self.truncate_on_game_over = truncate_on_game_over
        # Recent actions with their frame counts; the oldest was certainly executed.
        # `xuance_envs.state.ale` saves them with the state.
        self._requested_actions: deque[tuple[Any, float, int]] = deque(maxlen=_MAX_ACTION_REQUESTS)
        made.unwrapped._requested_actions = self._requested_actions

        ale = self._ale = made.unwrapped.ale
        actions = ale.getLegalActionSet() if full_action_space else ale.getMinimalActionSet()
        self._actions: list[Any] = list(actions)
        self._noop, fire = single_action("NOOP"), single_action("FIRE")
        self._fire = fire if fire_on_reset and fire in ale.getMinimalActionSet() else None
        self._skips = skips
        loaded = made.unwrapped.spec.kwargs
        self._fresh_start = FastReset(
            ale, rom_path(loaded["game"]), loaded.get("mode"), loaded.get("difficulty")
        )
        frames = ale.getInt("max_num_frames_per_episode")
        limits = [math.ceil(frames / skips[0])] if frames > 0 else []
        self._step_limit: float = math.inf
        if made.has_wrapper_attr("_max_episode_steps"):  # a TimeLimit's
            self._step_limit = made.get_wrapper_attr("_max_episode_steps")
            limits.append(int(self._step_limit))
        self.max_episode_steps = min(limits, default=None)
        self._set_up_observations(size, max_pool)
        self.reward_range = (-1.0, 1.0) if clip_reward else (-math.inf, math.inf)

        self.was_real_done = True
        self.lifes: int = self._ale.lives()
        self._lost_life = False
        self._episode_step, self._episode_score = 0, 0.0

    def _set_up_observations(self, size: tuple[int, int] | None, max_pool: bool) -> None:
        if self.obs_type == "ram":
            self._view: RamView | Screen = RamView(self._ale)
            self.image_size = None
        else:
            self._view = Screen(self._ale, rgb=self.rgb, pools=max_pool, size=size)
            self.image_size = size
        # An overridden `observation` is called for every image. Otherwise the view resizes only
        # the rows that changed.
        self._has_own_observation = type(self).observation is not Atari_Env.observation
        self._view.take_last(alone=True)
        *leading, width = self._view.frame().shape
        self.observation_space = Box(0, 255, (*leading, width * self.num_stack), dtype=np.uint8)
        self.frames: deque[NDArray[Any]] = deque(maxlen=self.num_stack)

    # -- reset ------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[LazyFrames, dict[str, Any]]:
        """Start a new episode.

        A call without arguments right after a lost life continues the game with one no-op.
        ``episode_step`` and ``episode_score`` continue, too, without this no-op and its reward.
        Any other call starts a new game with no-ops and FIRE. If these actions, or the no-op after
        a lost life, end the game, another game starts. The first observation always repeats one
        frame, so no observation spans two episodes.

        Args:
            seed: new seed of the game's random stream. None continues the stream; in the first
                reset, None uses the seed given at construction.
            options: passed to ale-py, which has no options yet.

        Returns:
            The first observation, and an info with the same keys as after a step.
        """
        if self._lost_life and seed is None and options is None:
            self._emulate(self._noop, self._draw_skip())
            if not self._ale.game_over():
                return self._begin()
        self._lost_life = False
        self._start_game(seed, options)
        self._view.take_last(alone=True)
        self._episode_step, self._episode_score = 0, 0.0
        return self._begin()

    def _begin(self) -> tuple[LazyFrames, dict[str, Any]]:
        """Start an episode from the current screen."""
        self._lost_life = self.was_real_done = False
        self.lifes = self._ale.lives()
        self.frames.extend([self._frame()] * self.num_stack)
        return self._get_obs(), self._info(False)

    def _start_game(self, seed: int | None, options: dict[str, Any] | None) -> None:
        """Reset the game, play its initial no-ops and press FIRE."""
        if seed is None:
            seed = self._pending_seed
        ale, game = self._ale, self._game
        for _ in range(_MAX_START_ATTEMPTS):
            if seed is not None:
                game.reset(seed=seed, options=options)
            waits = int(game.np_random.integers(self.noop_max + 1)) if self.noop_max else 0
            if seed is None:
                # A restored state draws its screen only with the next frame.
                draws = waits > 0 or self._fire is not None
                if not (draws and self._fresh_start.restore()):
                    game.reset(options=options)
            seed = self._pending_seed = None
            self._requested_actions.clear()
            self._requested_actions.append((self._noop, 1.0, 0))
            self._repeat(self._noop, waits)
            if self._fire is not None:
                self._repeat(self._fire, self._draw_skip())
            if not ale.game_over():
                return
        raise RuntimeError(
            f"the game ended {_MAX_START_ATTEMPTS} times during its initial no-ops and FIRE: "
            f"reduce noop_max ({self.noop_max}), set fire_on_reset=False, or raise the limit of "
            f"{ale.getInt('max_num_frames_per_episode')} frames (max_num_frames_per_episode)"
        )

    def _repeat(self, action: Any, frames: int) -> None:
        for _ in range(frames):
            self._ale.act(action)
        self._requested_actions.append((action, 1.0, frames))

    # -- step -------------------------------------------------------------------------

    def step(self, action: Any = None, *, actions: Any = None) -> StepResult:
        """Step the environment once.

        Args:
            action: an action, in the form of ``action_space.sample()``.
            actions: XuanCe's name for ``action``.

        Returns:
            Observation, reward, terminated, truncated and info. The last observation of a game
            shows its final screen.

        Raises:
            gymnasium.error.ResetNeeded: :meth:`reset` has not been called.
        """
        if not self.frames:
            raise gymnasium.error.ResetNeeded("call reset() before step()")
        lives = self.lifes
        action = self._actions[actions if action is None else action]
        reward = self._emulate(action, self._draw_skip())
        self.frames.append(self._frame())
        self._episode_step = step = self._episode_step + 1
        self._episode_score += reward
        self.lifes = self._ale.lives()
        self.was_real_done = self._ale.game_over() or step >= self._step_limit
        self._lost_life = terminated = truncated = game_over = False
        if self.was_real_done:
            game_over = terminated = self._ale.game_over(with_truncation=False)
            at_limit = bool(self._ale.game_truncated() or step >= self._step_limit)
            truncated = at_limit or (game_over and self.truncate_on_game_over)
        if self.lifes < lives and self.terminal_on_life_loss:
            terminated = True
            self._lost_life = not self.was_real_done
        info = self._info(game_over)
        return self._get_obs(), self.reward(reward), terminated, truncated, info

    def _emulate(self, action: Any, frames: int) -> int:
        """Repeat an action, capture the screen, and return the sum of rewards."""
        act, is_over, view = self._ale.act, self._ale.game_over, self._view
        reward: int = 0
        for left in range(frames - 1, 0, -1):
            reward += act(action)
            if is_over():
                self._requested_actions.append((action, 1.0, frames - left))
                view.take_end(alone=left == frames - 1)
                return reward
            if left > 1:
                view.note()
            else:
                view.take_first()
        reward += act(action)
        self._requested_actions.append((action, 1.0, frames))
        view.take_last(alone=frames == 1)
        return reward

    def _draw_skip(self) -> int:
        if len(self._skips) == 1:
            return self._skips[0]
        return int(self._game.np_random.integers(*self._skips))

    def _info(self, game_over: bool) -> dict[str, Any]:
        return {
            "episode_step": self._episode_step,
            "episode_score": self._episode_score,
            "lives": self.lifes,
            "game_over": game_over,
            "frame_number": self._ale.getFrameNumber(),
        }

    def _get_obs(self) -> LazyFrames:
        return LazyFrames(self.frames)

    # -- hooks ------------------------------------------------------------------------

    def observation(self, frame: NDArray[np.uint8]) -> NDArray[Any]:
        """Convert a screen to one frame of an observation. Subclasses may override this.

        Args:
            frame: shape ``(height, width)`` for grayscale, ``(height, width, 3)`` for RGB,
                ``(128,)`` for RAM.

        Returns:
            The frame. An observation concatenates ``num_stack`` frames along the last axis. A
            subclass that returns a different shape or dtype must set ``observation_space``
            accordingly.
        """
        if self.image_size is not None:
            return resize(frame, self.image_size)
        return frame[..., np.newaxis] if frame.ndim == 2 else frame

    def reward(self, reward: float) -> float:
        """Convert the game's reward to the step's reward. Subclasses may override this.

        Args:
            reward: sum of the game's rewards during the step.

        Returns:
            With ``clip_reward``, the reward's sign: -1.0, 0.0 or 1.0. Otherwise, the reward as a
            float.
        """
        return float((reward > 0) - (reward < 0) if self.clip_reward else reward)

    def _frame(self) -> NDArray[Any]:
        """Return the current screen as a frame that later steps do not overwrite."""
        if self._has_own_observation:
            return np.array(self.observation(self._view.image.copy()))
        return self._view.frame()
