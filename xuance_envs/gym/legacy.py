"""Adapters from legacy ``gym`` 0.26 environments to Gymnasium.

gym is imported only when an environment is made.
"""

from __future__ import annotations

import importlib
import inspect
from collections import OrderedDict
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from xuance_envs.extras import missing_extra


def make(env_id: Any, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Create a legacy gym environment and adapt it to Gymnasium."""
    if kwargs.pop("autoreset", False):
        raise ValueError("autoreset=True is not supported: call reset() at the end of an episode")
    gym = _import_gym()
    kwargs["disable_env_checker"] = True  # gym's passive checker fails under NumPy 2
    render_mode = kwargs.get("render_mode")
    try:
        env = gym.make(env_id, **kwargs)
    except TypeError as error:
        if "unexpected keyword argument 'render_mode'" not in str(error):
            raise
        del kwargs["render_mode"]
        env = gym.make(env_id, **kwargs)

    # Gymnasium's wrappers replace gym's, which do not support a four-value `step`.
    display, env = _unwrap_layer(env, gym.wrappers.HumanRendering, gym.wrappers.RenderCollection)
    time_limit, env = _unwrap_layer(env, gym.wrappers.TimeLimit)
    order_enforcing, env = _unwrap_layer(env, gym.wrappers.OrderEnforcing)
    if display is not None:
        display.env = env
        env = display

    adapted: gymnasium.Env[Any, Any] = LegacyEnv(env, render_mode)
    if order_enforcing is not None:
        adapted = OrderEnforcing(adapted)
    if time_limit is not None:
        # The spec does not contain a `max_episode_steps` given to `make`.
        adapted = TimeLimit(adapted, time_limit._max_episode_steps)
    return adapted


def _import_gym() -> Any:
    try:
        return importlib.import_module("gym")
    except ImportError as error:
        raise missing_extra("a legacy gym environment", "gym", error) from error


def _unwrap_layer(env: Any, *kinds: type) -> tuple[Any, Any]:
    """Split off the outermost wrapper if its type is exactly one of ``kinds``."""
    return (env, env.env) if type(env) in kinds else (None, env)


class LegacyEnv(gymnasium.Env[Any, Any]):
    """A legacy gym environment, with old or new forms of its methods, as one of Gymnasium."""

    def __init__(self, env: Any, render_mode: str | None = None) -> None:
        self.legacy_env = env
        self.observation_space = convert_space(env.observation_space)
        self.action_space = convert_space(env.action_space)
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.metadata.setdefault("render_modes", list(self.metadata.get("render.modes", [])))
        if "video.frames_per_second" in self.metadata:
            self.metadata.setdefault("render_fps", self.metadata["video.frames_per_second"])
        self.reward_range = getattr(env, "reward_range", None)
        reward_space = getattr(env, "reward_space", None)  # gym's wrappers forward attributes
        if type(reward_space).__name__ == "Box":
            self.reward_space = convert_space(reward_space)
        self.spec = _spec(env)
        own_render_mode = getattr(env, "render_mode", None)
        self.render_mode = render_mode if own_render_mode is None else own_render_mode

        self._reset_takes_seed = _takes_parameter(env, "reset", "seed")
        self._render_takes_mode = _takes_parameter(env, "render", "mode")
        # Environments whose `render` takes a mode do not display themselves in human mode.
        self._show = self._render_takes_mode and self.render_mode == "human"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        arguments: dict[str, Any] = {} if options is None else {"options": options}
        if seed is not None:
            self._np_random_seed = seed
            if self._reset_takes_seed:
                arguments["seed"] = seed
            elif callable(own_seed := getattr(self.legacy_env, "seed", None)):
                own_seed(seed)
            else:
                self.legacy_env.unwrapped.np_random = np.random.default_rng(seed)
        result = self.legacy_env.reset(**arguments)
        if self._show:
            self.render()
        observation, info = result if self._has_info(result) else (result, {})
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment; convert a result of four values to five."""
        result = self.legacy_env.step(action)
        if len(result) == 5:
            observation, reward, terminated, truncated, info = result
        elif len(result) == 4:
            observation, reward, done, info = result
            truncated = bool(done and info.get("TimeLimit.truncated", False))
            terminated = bool(done and not truncated)
        else:
            raise ValueError(
                f"expected four or five values from step() of {self.legacy_env}, got {len(result)}"
            )
        if self._show:
            self.render()
        return observation, reward, terminated, truncated, info

    def render(self) -> Any:
        if self._render_takes_mode and self.render_mode is not None:
            return self.legacy_env.render(mode=self.render_mode)
        return self.legacy_env.render()

    def close(self) -> None:
        self.legacy_env.close()

    @property
    def np_random(self) -> np.random.Generator:
        """Random generator of the legacy environment."""
        generator: np.random.Generator = self.legacy_env.unwrapped.np_random
        return generator

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self.legacy_env.unwrapped.np_random = value
        self._np_random_seed = -1

    @property
    def np_random_seed(self) -> int:
        """Seed of the current generator, or -1 if it is not known."""
        return -1 if self._np_random_seed is None else self._np_random_seed

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute on the layer that has it."""
        layer: Any = self
        while layer is not None:
            if name in vars(layer) or hasattr(type(layer), name):
                setattr(layer, name, value)
                return True
            layer = self.legacy_env if layer is self else vars(layer).get("env")
        if force:
            setattr(self, name, value)
        return force

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "legacy_env":
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )
        return getattr(self.legacy_env, name)

    def _has_info(self, result: Any) -> bool:
        """Distinguish ``(observation, info)`` from a tuple observation."""
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            return False
        space = self.observation_space
        return not (isinstance(space, spaces.Tuple) and space.contains(result))


def _takes_parameter(env: Any, method: str, parameter: str) -> bool:
    """Return whether an environment's method takes a keyword argument."""
    parameters = inspect.signature(getattr(env, method)).parameters
    if parameter in parameters:
        return True
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return False
    # A wrapper that accepts any keyword passes it to the inner environment.
    inner = vars(env).get("env")
    return inner is None or _takes_parameter(inner, method, parameter)


def _spec(env: Any) -> EnvSpec | None:
    """Return a legacy environment's spec, with the fields that Gymnasium has."""
    spec = getattr(env, "spec", None)
    if spec is None:
        return None
    same = ("id", "entry_point", "reward_threshold", "nondeterministic", "kwargs")
    fields = {name: getattr(spec, name) for name in same}
    return EnvSpec(**fields, order_enforce=False, disable_env_checker=True)


def convert_space(space: Any) -> spaces.Space[Any]:
    """Convert a legacy space to a Gymnasium space, recursively."""
    if isinstance(space, spaces.Space):
        return space
    old = _import_gym().spaces
    if isinstance(space, old.Box):
        return spaces.Box(space.low, space.high, space.shape, space.dtype)
    if isinstance(space, old.Discrete):
        return spaces.Discrete(space.n, start=space.start)
    if isinstance(space, old.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec, dtype=space.dtype)
    if isinstance(space, old.MultiBinary):
        return spaces.MultiBinary(space.n)
    if isinstance(space, old.Text):
        return spaces.Text(
            space.max_length, min_length=space.min_length, charset="".join(space.character_list)
        )
    if isinstance(space, old.Dict):
        # Gymnasium sorts a plain dict.
        return spaces.Dict(
            OrderedDict((key, convert_space(part)) for key, part in space.spaces.items())
        )
    if isinstance(space, old.Tuple):
        return spaces.Tuple([convert_space(part) for part in space.spaces])
    if isinstance(space, old.Sequence):
        return spaces.Sequence(convert_space(space.feature_space))
    if isinstance(space, old.Graph):
        edge_space = None if space.edge_space is None else convert_space(space.edge_space)
        return spaces.Graph(convert_space(space.node_space), edge_space)
    raise TypeError(
        f"expected a Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict, Tuple, Sequence or "
        f"Graph space of gym or gymnasium, got {space!r} of type {type(space)}"
    )
