"""Saving and loading states through other libraries' interfaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.compat.stepping import Stepper
from xuance_envs.engine.data.info_batch import InfoBatch
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.saving import Saver
from xuance_envs.engine.serialization import copy_of
from xuance_envs.state.env_states import EnvStates
from xuance_envs.vector_envs.aliases import Uncopyable
from xuance_envs.vector_envs.arguments import checked_env_ids, checked_states
from xuance_envs.vector_envs.last_results import checked_clones


class StatesMixin(Uncopyable):
    """Mixin that saves and loads the states of a stepper's environments, like a ``VecEnv``."""

    num_envs: int
    _stepper: Any

    def save_state(self, env_ids: Sequence[int] | None = None) -> EnvStates:
        """Save the states of all environments, or of those in ``env_ids``."""
        saver = self._saver("save_state")
        ids = checked_env_ids(env_ids, self.num_envs)
        state = saver.save(ids)
        return state.adding(self._name, [self._interface_state(env) for env in ids])

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
        own = [copy_of(self._interface_state(env)) for env in sources]
        return self._loaded(saver.clone(sources, targets, fork_rng, of_all=True), targets, own)

    def _saver(self, what: str) -> Saver:
        groups = self._idle_stepper(what).groups
        groups.check_idle(what)
        return groups.saver

    def _loaded(
        self, infos: StepInfos, ids: Sequence[int], own: Sequence[Any] | None
    ) -> tuple[Any, Any]:
        for env, value in zip(ids, own or (), strict=False):
            self._set_interface_state(env, value)
        return self._reset_result(infos.parts[0], np.array(ids, dtype=np.intp))

    _name = "compat"  # key of the adapter's own data in the saved states

    _idle_stepper: Callable[[str], Stepper]
    """Method that returns the stepper if no call is pending, else raises the library's error."""

    _reset_result: Callable[[InfoBatch, NDArray[np.intp]], tuple[Any, Any]]
    """Method that returns observations and infos in the form of the library's ``reset``."""

    def _interface_state(self, env: int) -> Any:
        """Return the adapter's own data of an environment."""
        return None

    def _set_interface_state(self, env: int, state: Any) -> None:
        """Restore the adapter's own data of an environment."""
