"""Drop-in replacements for Stable-Baselines3's vectorized environments: only the import changes.

Both classes derive from Stable-Baselines3's classes of the same name. The documentation lists the
differences under "Migrating".
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs._override import Unpack
from xuance_envs.extras import missing_extra

try:
    from stable_baselines3.common import vec_env as sb3
except ImportError as error:
    raise missing_extra("xuance_envs.compat.sb3", "sb3", error) from error

from xuance_envs.compat import env_functions
from xuance_envs.compat.stepping import (
    FinishedStep,
    StatesMixin,
    Stepper,
    as_rows,
    make_stepper,
    raise_original,
)
from xuance_envs.engine.data.info_batch import InfoBatch
from xuance_envs.engine.data.mask_layout import MASK_METHOD
from xuance_envs.engine.data.space_rows import identity
from xuance_envs.engine.data.step_arrays import as_float32
from xuance_envs.engine.group.base_env_group import AttributeSetter
from xuance_envs.engine.group.outcome import Autoreset
from xuance_envs.errors import caller_stacklevel
from xuance_envs.vector_envs import subproc_vec_env
from xuance_envs.vector_envs.arguments import checked_functions
from xuance_envs.vector_envs.options import InSeries, ProcessOptions, StartMethod
from xuance_envs.vector_envs.signatures import with_options
from xuance_envs.vector_envs.worker_settings import ProcessSettings

__all__ = ["DummyVecEnv", "SubprocVecEnv"]

Indices = int | Iterable[int] | None
TRUNCATED_KEY = "TimeLimit.truncated"
BaseSB3VecEnv = sb3.VecEnv


class _StepperVecEnv(StatesMixin, sb3.VecEnv):
    """Stable-Baselines3 ``VecEnv`` over a stepper, with resets and saved states."""

    _name = "sb3"
    _stepper: Stepper

    def reset(self) -> Any:
        """Reset all environments with the seeds and options set earlier.

        Returns:
            The first observations, ``(num_envs, *obs_shape)``; a dict or tuple of arrays for Dict
            and Tuple spaces. The infos are in ``reset_infos``.
        """
        stepper, options = self._stepper, [each or None for each in self._options]
        raise_original(stepper.start_reset, range(self.num_envs), self._seeds, options)
        infos: InfoBatch = raise_original(stepper.finish_reset)
        self.reset_infos = infos.dicts(np.arange(self.num_envs))
        self._reset_seeds()
        self._reset_options()
        return self._batch()

    def close(self) -> None:
        """Close the environments and end their workers, if they have any."""
        self.closed = True
        self._stepper.close()

    def _batch(self) -> Any:
        return self._stepper.arrays.observations.copy()

    def _ends_and_infos(self, step: FinishedStep) -> tuple[NDArray[np.bool_], list[dict[str, Any]]]:
        """Return dones and infos; replace final observations with the next episodes' first ones."""
        arrays, (batch, ends) = self._stepper.arrays, step
        only_truncated = (arrays.truncated & ~arrays.terminated).tolist()
        infos = batch.dicts(np.arange(self.num_envs), TRUNCATED_KEY, only_truncated)
        if ends is not None:
            envs, reset_batch = ends.resets()
            final = self._stepper.final_observations()
            for row, env in enumerate(envs.tolist()):
                infos[env]["terminal_observation"] = final[row]
                self.reset_infos[env] = reset_batch.build(row, env)
        return arrays.terminated | arrays.truncated, infos

    def _own_lists(self) -> tuple[list[Any], ...]:
        return self.reset_infos, self._seeds, self._options

    def _reset_result(
        self, infos: InfoBatch, envs: NDArray[np.intp]
    ) -> tuple[Any, list[dict[str, Any]]]:
        return self._batch(), [infos.build(env, env) for env in envs.tolist()]


class DummyVecEnv(_StepperVecEnv, sb3.DummyVecEnv):
    """Environments in this process, in place of Stable-Baselines3's ``DummyVecEnv``.

    Args:
        env_fns: callables that make one environment each.

    Raises:
        ValueError: ``env_fns`` is empty, two callables returned the same environment, or rewards
            are vectors.

    Example:
        >>> import gymnasium
        >>> from xuance_envs.compat.sb3 import DummyVecEnv
        >>> envs = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
        >>> observations = envs.reset()
        >>> observations, rewards, dones, infos = envs.step([0, 1, 0])
        >>> infos[0]
        {'TimeLimit.truncated': False}
        >>> envs.close()
    """

    def __init__(self, env_fns: Iterable[Callable[[], Any]]) -> None:
        functions = _making_envs(env_fns)
        self._stepper = raise_original(make_stepper, functions, Autoreset.SAME_STEP)
        try:
            super().__init__([partial(identity, env) for env in self._stepper.groups.envs])
        except BaseException:
            self._stepper.close()
            raise
        # Expose the stepper's observation arrays, as Stable-Baselines3 exposes its buffers.
        self.buf_obs = OrderedDict(
            zip(self.keys, self._stepper.arrays.observations.parts, strict=True)
        )

    def step_wait(self) -> Any:
        """Step all environments with the actions of ``step_async``.

        Returns:
            Observations, rewards ``(num_envs,)`` float32, dones ``(num_envs,)`` bool, and a list of
            info dicts. Where an episode ended, the observation is the next episode's first; the
            ended episode's last is ``infos[i]["terminal_observation"]``.
        """
        actions: Any = self.actions
        if isinstance(actions, list | tuple | np.ndarray) and len(actions) > self.num_envs:
            actions = actions[: self.num_envs]  # Stable-Baselines3 ignores surplus actions
        self._stepper.discard_interrupted()
        self._stepper.start_step(as_rows(self.action_space, actions))
        dones, infos = self._ends_and_infos(raise_original(self._stepper.finish_step))
        self.buf_rews[:] = as_float32(self._stepper.arrays.rewards)
        self.buf_dones[:], self.buf_infos = dones, infos
        return self._batch(), self.buf_rews.copy(), dones, infos

    def _make_idle(self, what: str) -> None:
        self._stepper.discard_interrupted()

    def _batch(self) -> Any:
        batch = self._stepper.arrays.observations.copy()
        return OrderedDict(batch) if isinstance(batch, dict) else batch


@with_options(ProcessOptions, subproc_vec_env.SubprocVecEnv)
class SubprocVecEnv(_StepperVecEnv, sb3.SubprocVecEnv):
    """Environments in worker processes, in place of Stable-Baselines3's ``SubprocVecEnv``.

    Stable-Baselines3 starts one process per environment. Here each worker steps several
    environments, and there is one worker per CPU by default.

    Args:
        env_fns: callables that make one environment each.
        start_method: ``"forkserver"``, ``"spawn"`` or ``"fork"``. None selects ``"forkserver"`` if
            the system supports it, else ``"spawn"``.
        **options: further arguments of
            :class:`~xuance_envs.vector_envs.subproc_vec_env.SubprocVecEnv`.

    Raises:
        ValueError: the start method is unknown, ``env_fns`` is empty, two callables returned the
            same environment, rewards are vectors, or an option is out of range.
        TypeError: an option is unknown, or a callable cannot be pickled.

    Example:
        >>> import gymnasium
        >>> from xuance_envs.compat.sb3 import SubprocVecEnv
        >>> envs = SubprocVecEnv([lambda: gymnasium.make("CartPole-v1")] * 3, in_series=2)
        >>> observations = envs.reset()
        >>> observations, rewards, dones, infos = envs.step([0, 1, 0])
        >>> observations.shape, dones
        ((3, 4), array([False, False, False]))
        >>> envs.close()
    """

    # Converts bool arrays to the form that the environments' action_masks() returned.
    _convert_masks: Callable[[NDArray[np.bool_]], Any]

    def __init__(
        self,
        env_fns: Iterable[Callable[[], Any]],
        start_method: StartMethod | None = None,
        *,
        in_series: InSeries = "auto",
        **options: Unpack[ProcessOptions],
    ) -> None:
        self.closed = False
        if start_method is None:
            methods = multiprocessing.get_all_start_methods()
            start_method = "forkserver" if "forkserver" in methods else "spawn"
        if isinstance(start_method, int):
            raise ValueError(
                f"start_method: expected 'forkserver', 'spawn' or 'fork', got {start_method}; did "
                f"you mean num_workers={start_method}?"
            )
        multiprocessing.get_context(start_method)  # raises for an unknown method
        functions = env_functions.registering(_making_envs(env_fns))
        settings = ProcessSettings(context=start_method, in_series=in_series, **options)
        self._stepper = raise_original(make_stepper, functions, Autoreset.SAME_STEP, settings)
        try:
            spaces = self._stepper.description.spaces[:2]
            sb3.VecEnv.__init__(self, self._stepper.num_envs, *spaces)
        except BaseException:
            self._stepper.close()
            raise

    @property
    def waiting(self) -> bool:  # type: ignore[override]  # an attribute in Stable-Baselines3
        """True from :meth:`step_async` to :meth:`step_wait`."""
        return self._stepper.waiting

    @property
    def processes(self) -> list[Any]:  # type: ignore[override]  # as above
        """The worker processes, by default one per CPU; empty once closed."""
        return self._stepper.processes

    def step_async(self, actions: Any) -> None:
        """Start a step of all environments.

        Args:
            actions: one action per environment, ``(num_envs, *action_shape)`` or a list.

        Raises:
            ValueError: the actions do not match the action space.
            AlreadySteppingError: a step is pending.
        """
        self._stepper.start_step(as_rows(self.action_space, actions))

    def step_wait(self) -> Any:
        """Wait for the step.

        Returns:
            Observations, rewards ``(num_envs,)`` float64, dones ``(num_envs,)`` bool, and a tuple
            of info dicts. Where an episode ended, the observation is the next episode's first; the
            ended episode's last is ``infos[i]["terminal_observation"]``.

        Raises:
            NotSteppingError: no step is pending.
        """
        stepper = self._stepper
        stepper.groups.check_stepping()
        dones, infos = self._ends_and_infos(raise_original(stepper.collect_step))
        result = stepper.arrays.observations.copy(), stepper.arrays.rewards.copy(), dones, (*infos,)
        stepper.groups.ledger.settle()  # an interrupted call can be repeated until here
        return result

    def get_images(self) -> Sequence[Any]:
        """Return a list with a frame of each environment.

        If the render mode is not ``"rgb_array"``, warn and return ``[None] * num_envs``.
        """
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"The render mode is {self.render_mode}, but this method assumes it is "
                "`rgb_array` to obtain images.",
                stacklevel=caller_stacklevel(),
            )
            return [None] * self.num_envs
        groups = self._stepper.groups
        return list(groups.command("render", range(self.num_envs), lambda _: (None,)))

    def has_attr(self, attr_name: str) -> bool:
        """Return whether all environments have an attribute."""
        return all(self._apply(None, env_functions.has_wrapper_attr, attr_name))

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return a list with an attribute of each environment in ``indices``, or of all if None."""
        return self._apply(indices, methodcaller("get_wrapper_attr", attr_name))

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of each environment in ``indices``, or of all if None, to one value."""
        self._apply(indices, AttributeSetter(setattr), attr_name, value)  # on the outermost wrapper

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of each environment in ``indices``, or of all if None; return a list."""
        masks_of_all = (
            method_name == MASK_METHOD and indices is None and not (method_args or method_kwargs)
        )
        groups = self._stepper.groups
        if masks_of_all:
            groups.check_idle("env_method")
            if (masks := groups.masks.from_method()) is not None:
                return [self._convert_masks(mask) for mask in masks]
        results = self._apply(
            indices, env_functions.call_method, method_name, method_args, method_kwargs
        )
        rows = self._stepper.arrays.masks
        if masks_of_all and rows is not None and rows.flat is not None:
            converter = mask_converter(results, rows.flat.shape[1])
            if converter is not None:
                self._convert_masks = converter
                # From now on, workers return the masks with each step.
                groups.masks.watch(range(self.num_envs), groups.command)
        return results

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """Return a list of bools: whether each environment has a wrapper of this class."""
        wrapper = wrapper_class.__module__, wrapper_class.__qualname__
        return self._apply(indices, env_functions.is_wrapped, wrapper)

    def _apply(self, indices: Indices, function: Callable[..., Any], *args: Any) -> list[Any]:
        ids = [range(self.num_envs)[index] for index in self._get_indices(indices)]
        return list(raise_original(self._stepper.apply, ids, function, *args))


def _making_envs(env_fns: Iterable[Callable[[], Any]]) -> list[Callable[[], Any]]:
    return [partial(env_functions.make_sb3_env, each) for each in checked_functions(env_fns)]


def mask_converter(masks: Sequence[Any], width: int) -> Callable[[NDArray[np.bool_]], Any] | None:
    """Return a function that converts bool arrays to the type of ``masks``; None if impossible."""
    first = masks[0]
    if type(first) is list:
        of_bools = [type(m) is list and {*map(type, m)} == {bool} for m in masks]
        return np.ndarray.tolist if all(of_bools) and {*map(len, masks)} == {width} else None
    for mask in masks:
        if type(mask) is not np.ndarray or (mask.dtype, mask.shape) != (first.dtype, (width,)):
            return None
        if not np.array_equal(mask.astype(np.bool_), mask):
            return None
    return partial(np.ndarray.astype, dtype=first.dtype)
