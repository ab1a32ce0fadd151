"""Steppers: vectorized environments for the adapters to other libraries.

A stepper leaves a step's results in arrays and info columns, from which each adapter builds the
results of its library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from xuance_envs.engine.data.info_batch import InfoBatch
from xuance_envs.engine.data.space_layout import BadValueError, SpaceLayout
from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.engine.data.step_infos import EpisodeEnds, StepInfos
from xuance_envs.engine.group.outcome import Autoreset
from xuance_envs.engine.group.single_env import EnvDescription
from xuance_envs.engine.groups import Groups, LocalGroups, WorkerGroups
from xuance_envs.engine.ledger import values_of
from xuance_envs.engine.process.process_backend import ProcessBackend
from xuance_envs.engine.saving import Saver
from xuance_envs.engine.serialization import copy_of
from xuance_envs.engine.system.exclusive import exclusive, exclusive_start, exclusive_wait
from xuance_envs.errors import EnvError
from xuance_envs.state.env_states import EnvStates
from xuance_envs.vector_envs.action_writer import ActionWriter
from xuance_envs.vector_envs.aliases import Uncopyable
from xuance_envs.vector_envs.arguments import checked_env_ids, checked_recipe, checked_states
from xuance_envs.vector_envs.last_results import checked_clones
from xuance_envs.vector_envs.subproc_vec_env import start_processes
from xuance_envs.vector_envs.thread_vec_env import start_threads
from xuance_envs.vector_envs.vector_env import VecEnv
from xuance_envs.vector_envs.worker_settings import ProcessSettings, ThreadSettings
from xuance_envs.vector_envs.wrapper import checked_vec_env

FinishedStep = tuple[InfoBatch, EpisodeEnds | None]

_OPERATION = "an operation on the environments"


class Stepper:
    """Environments whose steps and commands start and finish in separate calls."""

    def __init__(self, groups: Groups, resets_in_step: bool = False) -> None:
        self.num_envs = groups.drivers[-1].hi
        self.arrays = groups.arrays
        self.description = groups.description
        self.groups: Any = groups
        self._groups = groups
        self._ledger = groups.ledger
        groups.info_collector.read_at_once = True
        space = groups.description.action_space
        self._accepts_scalars = isinstance(space, spaces.Box) and not space.shape
        self._action_writer = ActionWriter(groups.arrays.actions, groups.drivers)
        self.final: SpaceRows | None = None  # last observations of the ended episodes
        self._restores_resets = resets_in_step and isinstance(groups, LocalGroups)

    @property
    def waiting(self) -> bool:
        return self._ledger.stepping

    def _start_step(self, actions: Any) -> None:
        """Start a step. Like other libraries, accept numeric actions of an unexpected shape."""
        ledger = self._ledger
        if ledger.pending or self._groups.closed:
            self._groups.check_idle("step or step_async")
        packed: Mapping[int, Any] = {}
        rows = self._unchecked_rows(actions) if self._accepts_scalars else None
        if rows is None:
            try:
                packed = self._action_writer.put(actions)
            except ValueError:
                rows = self._unchecked_rows(actions)
                if rows is None:
                    raise
        if rows is not None:
            packed = {
                k: driver.pack_actions([rows[driver.lo : driver.hi]])
                for k, driver in enumerate(ledger.drivers)
            }
        self.final = None
        ledger.start_step(packed)

    start_step = exclusive_start(_start_step)

    def _unchecked_rows(self, actions: Any) -> list[Any] | None:
        """Return one action per environment if only the shape is unexpected, else None."""
        flat = self.arrays.actions.flat
        if flat is None:
            return None
        try:
            given = np.asarray(actions)
        except ValueError:  # rows of different shapes
            return None
        if given.dtype.kind not in "biuf" or given.shape[:1] != flat.shape[:1]:
            return None
        if given.shape == flat.shape and not self._accepts_scalars:
            return None  # the values are invalid, not the shape
        return list(actions)

    def _collect_step(self) -> FinishedStep:
        arrays = self.arrays
        try:
            outcomes = self._ledger.finish_step(self.fail)
        except EnvError as error:
            if self._restores_resets:
                (ended,) = (arrays.terminated | arrays.truncated).nonzero()
                before = ended[ended < error.env_index]  # the failed environment was not reset
                arrays.observations.assign(before, arrays.reset_observations)
            raise
        infos, ends = self._groups.info_collector.infos(outcomes).parts
        if ends is not None:
            if self.final is None:  # else the call repeats an interrupted one
                self.final = arrays.observations.take(ends.envs)
            arrays.observations.assign(ends.envs, arrays.reset_observations)
        return infos, ends

    collect_step = exclusive_wait(_collect_step)  # the step stays pending until it is settled

    def _finish_step(self) -> FinishedStep:
        step = self._collect_step()
        self._ledger.settle()
        return step

    finish_step = exclusive_wait(_finish_step)

    def discard_interrupted(self) -> None:
        """Finish a step that an interrupt left pending; its results are lost."""
        if self.waiting:
            raise_original(self.finish_step)

    @exclusive
    def start_reset(
        self, ids: Sequence[int], seeds: Sequence[int | None], options: Sequence[Any]
    ) -> None:
        """Finish a pending step and discard its results; then start to reset some environments."""
        self._groups.check_open()
        if self.waiting:
            self._finish_step()
        self._ledger.start(self._groups.pack_resets(ids, seeds, options))

    @exclusive
    def finish_reset(self) -> InfoBatch:
        """Wait for the pending reset; return the latest infos of all environments."""
        infos = self._ledger.finish(self._groups.info_collector.infos, lambda _: self.fail())
        return infos.parts[0]

    @exclusive
    def start_apply(self, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """Start calling ``function(env, *arguments[i])`` for every environment i."""
        self._groups.check_idle(_OPERATION)
        packed = {
            k: d.pack("apply", range(d.hi - d.lo), function, arguments[d.lo : d.hi])
            for k, d in enumerate(self._groups.drivers)
        }
        self._ledger.start(packed)

    @exclusive
    def finish_apply(self) -> tuple[Any, ...]:
        return tuple(self._ledger.finish(values_of))

    @exclusive
    def apply(self, ids: Sequence[int], function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call ``function(env, *args)`` for some environments; return the results in order."""
        results: list[Any] = [None] * len(ids)
        rest = list(enumerate(ids))
        while rest:  # a command takes each environment once
            place_of: dict[int, int] = {}
            for place, env in rest:
                place_of.setdefault(env, place)
            values = self._groups.command(
                "apply", list(place_of), lambda envs: (function, [args] * len(envs)), _OPERATION
            )
            for place, value in zip(place_of.values(), values, strict=True):
                results[place] = value
            rest = [(place, env) for place, env in rest if place != place_of[env]]
        return results

    def final_observations(self) -> list[Any]:
        """Return the last observations of the episodes that ended in the step."""
        last = self.final
        assert last is not None
        # Single Discrete observations are ints, as the environments return them.
        columns = [
            part.tolist() if isinstance(leaf.space, spaces.Discrete) else list(part)
            for part, leaf in zip(last.parts, last.layout.leaves, strict=True)
        ]
        if last.layout.flat:
            return columns[0]
        return [last.layout.unflatten([each[row] for each in columns]) for row in range(len(last))]

    @property
    def processes(self) -> list[Any]:
        backend = self.groups.backend
        is_of_processes = isinstance(backend, ProcessBackend)
        return [driver.worker.process for driver in backend.workers] if is_of_processes else []

    def close(self) -> None:
        self._groups.close()

    def fail(self) -> None:
        """Close after an error in a step or reset, unless the environments are in this process."""
        if not isinstance(self._groups, LocalGroups):
            self.close()


def make_stepper(
    env_fns: Iterable[Callable[..., Any]],
    autoreset: Autoreset,
    settings: ProcessSettings | ThreadSettings | None = None,
) -> Stepper:
    """Make a stepper of environments in workers, or in this process if ``settings`` is None."""
    recipe = checked_recipe(env_fns, None, autoreset)
    groups: LocalGroups | WorkerGroups
    if settings is None:
        groups = LocalGroups(recipe, _first_description)
    elif isinstance(settings, ThreadSettings):
        groups = start_threads(recipe, settings, describe=_first_description)
    else:
        groups = start_processes(recipe, settings, describe=_first_description)
    return Stepper(groups, autoreset is Autoreset.SAME_STEP)


class StatesMixin(Uncopyable):
    """Mixin that saves and loads the states of a stepper's environments, like a ``VecEnv``."""

    num_envs: int
    _stepper: Any
    _name = "compat"  # key of the adapter's own data in the saved states

    _reset_result: Callable[[InfoBatch, NDArray[np.intp]], tuple[Any, Any]]
    """Method that returns observations and infos in the form of the library's ``reset``."""

    def save_state(self, env_ids: Sequence[int] | None = None) -> EnvStates:
        """Save the states of all environments, or of those in ``env_ids``."""
        saver = self._saver("save_state")
        ids = checked_env_ids(env_ids, self.num_envs)
        return saver.save(ids).adding(self._name, self._own_values(ids))

    def load_state(self, state: EnvStates, env_ids: Sequence[int] | None = None) -> tuple[Any, Any]:
        """Load ``state``, one saved state per environment in ``env_ids``; None means all.

        Returns:
            ``(observations, infos)`` in the library's form: the observations of all environments,
            and the infos of the loaded environments.
        """
        saver = self._saver("load_state")
        ids = checked_env_ids(env_ids, self.num_envs)
        checked_states(state, len(ids))
        own = state.extra(self._name)
        return self._loaded(saver.load(state, ids, of_all=True), ids, own)

    def clone_state(
        self, src_ids: int | Sequence[int], dst_ids: int | Sequence[int], *, fork_rng: bool = False
    ) -> tuple[Any, Any]:
        """Copy states, as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.clone_state` does.

        The results are those of :meth:`load_state`.
        """
        saver = self._saver("clone_state")
        sources, targets = checked_clones(src_ids, dst_ids, self.num_envs)
        own = list(map(copy_of, self._own_values(sources)))
        return self._loaded(saver.clone(sources, targets, fork_rng, of_all=True), targets, own)

    def _saver(self, what: str) -> Saver:
        self._make_idle(what)
        self._stepper.groups.check_idle(what)
        saver: Saver = self._stepper.groups.saver
        return saver

    def _make_idle(self, what: str) -> None:
        """Finish what can be discarded; raise the library's error if a call is pending."""

    def _own_lists(self) -> tuple[list[Any], ...]:
        """Return the adapter's own data: lists with one value per environment."""
        return ()

    def _own_values(self, ids: Sequence[int]) -> list[tuple[Any, ...]]:
        return [tuple(values[env] for values in self._own_lists()) for env in ids]

    def _loaded(
        self, infos: StepInfos, ids: Sequence[int], own: Sequence[Any] | None
    ) -> tuple[Any, Any]:
        for env, saved in zip(ids, own or (), strict=False):
            for values, value in zip(self._own_lists(), saved or (), strict=False):
                values[env] = value
        return self._reset_result(infos.parts[0], np.array(ids, dtype=np.intp))


def _first_description(described: Sequence[tuple[int, EnvDescription]]) -> EnvDescription:
    """Return environment 0's description; each adapter checks the others itself."""
    for index, each in described:
        check_number_rewards(
            f"environment {index}",
            each.spaces.reward_space,
            "wrap the environment, for example in mo_gymnasium.wrappers.LinearReward, or use "
            "to_gymnasium or to_sb3 from xuance_envs.compat with ScalarizeRewards(SubprocVecEnv("
            "env_fns), weights)",
        )
    return described[0][1]


def as_rows(space: Space[Any], actions: Any) -> Any:
    """Convert a tuple or array of single actions to a list, for Dict and Tuple spaces."""
    is_composite = isinstance(space, spaces.Dict | spaces.Tuple)
    return list(actions) if is_composite and isinstance(actions, tuple | np.ndarray) else actions


def exchange_ended(
    vec_env: VecEnv, layout: SpaceLayout, obs: Any, envs: Sequence[int], first: Sequence[Any]
) -> list[Any]:
    """Return copies of final observations; write the next episodes' first ones to ``buf_obs``."""
    parts, held = layout.flatten(obs), layout.flatten(vec_env.buf_obs)
    last = [copy_of(layout.unflatten([part[env] for part in parts])) for env in envs]
    for env, observation in zip(envs, first, strict=True):
        for target, part in zip(held, layout.flatten(observation), strict=True):
            target[env] = part
    return last


def check_number_rewards(name: str, reward_space: spaces.Box | None, way_out: str) -> None:
    """Raise if rewards are vectors."""
    if reward_space is not None:
        raise ValueError(
            f"{name}: expected environments whose rewards are numbers, got the reward_space "
            f"{reward_space}; combine the components: {way_out}"
        )


def checked_number_rewards(name: str, vec_env: VecEnv) -> VecEnv:
    """Return the vectorized environment, or raise if its rewards are vectors."""
    check_number_rewards(
        name,
        checked_vec_env(name, vec_env).reward_space,
        f"{name}(ScalarizeRewards(vec_env, weights)), with "
        "ScalarizeRewards from xuance_envs.transforms",
    )
    return vec_env


def raise_original(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function; raise an environment's own exception instead of an EnvError."""
    try:
        return function(*args)
    except EnvError as error:
        failure = error
    raise original_error(failure)


def original_error(error: EnvError) -> BaseException:
    """Return the exception that the environment itself raised, if it is known."""
    if isinstance(error.__cause__, BadValueError):
        return ValueError(str(error))
    return error if error.__cause__ is None else error.__cause__
