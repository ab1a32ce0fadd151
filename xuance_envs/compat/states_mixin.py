"""States of environments behind other libraries' interfaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.compat.stepping import Stepper
from xuance_envs.engine.data.info_batch import InfoBatch
from xuance_envs.errors import StateError
from xuance_envs.state.env_states import EnvStates
from xuance_envs.state.faults import FaultError
from xuance_envs.vector_envs.arguments import checked_env_ids, checked_states
from xuance_envs.vector_envs.last_results import checked_clones

__all__ = ["StatesMixin"]


class StatesMixin:
    """Saves and loads the environments of a :class:`~xuance_envs.compat.stepping.Stepper`.

    The methods mean what those of :class:`~xuance_envs.vector_envs.vector_env.VecEnv` mean; what
    they return has the form that the library's ``reset`` gives it.
    """

    num_envs: int

    def save_state(self, env_ids: Sequence[int] | None = None) -> EnvStates:
        stepper = self._idle_stepper("save_state")
        ids = checked_env_ids(env_ids, self.num_envs)
        state = stepper.save_state(ids)
        return state.adding(self._name, [self._interface_state(env) for env in ids])

    def load_state(self, state: EnvStates, env_ids: Sequence[int] | None = None) -> tuple[Any, Any]:
        """See :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.load_state`.

        Returns:
            All environments' observations, and the infos of those that were loaded.
        """
        stepper = self._idle_stepper("load_state")
        ids = checked_env_ids(env_ids, self.num_envs)
        checked_states(state, len(ids))
        try:
            own = state.extra(self._name)
        except FaultError as fault:
            raise StateError(-1, "load_state", str(fault)) from None
        return self._loaded(stepper.load_state(state, ids), ids, own)

    def clone_state(
        self,
        src_ids: int | Sequence[int],
        dst_ids: int | Sequence[int],
        *,
        fork_rng: bool = False,
    ) -> tuple[Any, Any]:
        """See :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.clone_state`.

        Returns:
            As :meth:`load_state`.
        """
        stepper = self._idle_stepper("clone_state")
        sources, targets = checked_clones(src_ids, dst_ids, self.num_envs)
        own = [self._interface_state(env) for env in sources]
        return self._loaded(stepper.clone_state(sources, targets, fork_rng), targets, own)

    def _loaded(
        self, infos: InfoBatch, ids: Sequence[int], own: Sequence[Any] | None
    ) -> tuple[Any, Any]:
        for env, value in zip(ids, own or (), strict=False):
            self._set_interface_state(env, value)
        return self._reset_result(infos, np.array(ids, dtype=np.intp))

    _name = "compat"
    """Under which an interface's own state is kept."""

    def _idle_stepper(self, what: str) -> Stepper:
        """The stepper, if it can be asked now."""
        raise NotImplementedError

    def _reset_result(self, infos: InfoBatch, envs: NDArray[np.intp]) -> tuple[Any, Any]:
        """What is returned when some environments were loaded."""
        raise NotImplementedError

    def _interface_state(self, env: int) -> Any:
        """What the interface itself keeps of an environment."""
        return None

    def _set_interface_state(self, env: int, state: Any) -> None:
        """Puts it back."""
