"""Action masks of all sub-environments, from infos or from a method of the environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from xuance_envs.engine.data.mask_layout import (
    MASK_KEYS,
    MASK_METHOD,
    mask_layout,
    mask_rows,
    store_mask,
)
from xuance_envs.engine.data.space_layout import BadValueError, SpaceLayout
from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.info_collector import InfoCollector
from xuance_envs.errors import EnvError

# Signature of Groups.command.
RunCommand = Callable[[str, Sequence[int], Callable[[Sequence[int]], Any]], list[Any]]


class ActionMasks:
    def __init__(self, space: Space[Any], arrays: StepArrays, collector: InfoCollector) -> None:
        self.wanted = False
        self._space = space
        self._layout = mask_layout(space)
        self._actions = arrays.actions
        self._method_masks = arrays.masks
        self._info_collector = collector
        self._all_envs = np.arange(len(arrays.rewards))
        # Environments whose groups call the mask method and write its result to the arrays.
        self._watched = np.zeros(len(arrays.rewards), np.bool_)
        self._all_watched = self._any_watched = False

    def current(self, run_command: RunCommand) -> Any:
        """Return the masks of all environments, in new arrays."""
        if (fast := self._fast_path()) is not None:
            return fast
        rows, known = self._known()
        if not known.all():
            self._query_masks(rows, (~known).nonzero()[0].tolist(), run_command)
        self.wanted = True
        return rows.as_batch()

    def _fast_path(self) -> NDArray[np.bool_] | None:
        """Return all masks if one array already contains them, else None."""
        infos = self._info_collector.latest_of_all
        if infos is None or self._layout is None or not self._layout.flat or not self.wanted:
            return None
        batch, ends = infos.parts
        if ends is None and (given := batch.uniform_column(MASK_KEYS[0])) is not None:
            if given.dtype.kind not in "biuf" or given.shape[1:] != self._layout.leaves[0].shape:
                return None
            return given if given.dtype == np.bool_ else given != 0
        sources = [batch] if ends is None else [batch, ends.resets()[1]]
        if not self._all_watched or any([s.may_have(key) for s in sources for key in MASK_KEYS]):
            return None
        assert self._method_masks is not None
        return self._method_masks.copy()  # type: ignore[no-any-return]  # flat, so an array

    def deferred(self, envs: NDArray[np.intp]) -> Callable[[StepInfos], Any]:
        """Return a function that takes infos and returns the current masks of ``envs``."""
        layout, space, count = self._layout, self._space, len(self._all_envs)
        watched = self._watched[envs]
        from_method = None
        if self._method_masks is not None and watched.any():
            from_method = self._method_masks.take(envs)

        def masks(infos: StepInfos) -> Any:
            rows = mask_rows(_require_layout(layout, space), len(envs))
            places = np.full(count, -1)
            places[envs] = np.arange(len(envs))
            known = _masks_from_infos(rows, places, infos)
            if from_method is not None:
                rows.assign((watched & ~known).nonzero()[0], from_method)
                known |= watched
            if not known.all():
                raise _missing_mask_error(int(envs[known.argmin()]))
            return rows.as_batch()

        return masks

    def from_method(self) -> list[Any] | None:
        """Return the masks from mask methods; None unless all environments are watched."""
        if self._method_masks is None or not self._all_watched:
            return None
        rows = self._method_masks.take(self._all_envs)
        return [rows.value(env) for env in self._all_envs.tolist()]

    def watch(self, envs: Sequence[int], run_command: RunCommand) -> list[Any]:
        """Make groups call the mask method of these environments, now and after each command."""
        assert self._method_masks is not None
        answers = run_command("watch_masks", envs, lambda _: ())
        for env, parts in zip(envs, answers, strict=True):
            self._watched[env] = parts is not None
            for stored, part in zip(self._method_masks.parts, parts or (), strict=False):
                stored[env] = part
        self._all_watched, self._any_watched = bool(self._watched.all()), bool(self._watched.any())
        return answers

    @property
    def watched_rows(self) -> SpaceRows | None:
        """Masks from watched methods, valid until the next step; None if no method is watched."""
        return self._method_masks if self._any_watched else None

    def invalidate(self, envs: Sequence[int]) -> None:
        """Discard the masks of environments whose state may have changed."""
        self._watched[list(envs)] = self._all_watched = False
        self._any_watched = bool(self._watched.any())

    def check(self, envs: NDArray[np.intp] | None = None) -> None:
        """Raise if a known mask forbids its environment's action."""
        rows, known = self._known()
        allowed = ~known
        allowed[known] = _allowed(self._actions, rows)[known]
        for env in self._all_envs if envs is None else envs:
            if not allowed[env]:
                raise ValueError(
                    f"the action mask of environment {env} forbids its action "
                    f"{self._actions.value(int(env))!r}; the mask is {rows.value(int(env))!r}"
                )

    def _known(self) -> tuple[SpaceRows, NDArray[np.bool_]]:
        """Return masks from infos and watched methods, and whether each environment has one."""
        rows = mask_rows(_require_layout(self._layout, self._space), len(self._all_envs))
        known = np.zeros(len(self._all_envs), np.bool_)
        for infos, envs in self._info_collector.latest():
            places = self._all_envs
            if envs is not None:
                places = np.full(len(self._all_envs), -1)
                places[envs] = envs
            known |= _masks_from_infos(rows, places, infos)
        if self._method_masks is not None and not known.all():
            rows.assign((self._watched & ~known).nonzero()[0], self._method_masks)
            known |= self._watched
        return rows, known

    def _query_masks(self, rows: SpaceRows, envs: list[int], run_command: RunCommand) -> None:
        """Call the environments' mask methods; from now on, groups call them after each command."""
        try:
            if self._method_masks is not None:
                answers = self.watch(envs, run_command)
                if None in answers:
                    raise _missing_mask_error(envs[answers.index(None)])
                rows.assign(np.array(envs), self._method_masks)
                return
            answers = run_command("call", envs, lambda _: (MASK_METHOD, (), {}))
        except NotImplementedError as error:  # the backend cannot call a method of one environment
            raise _missing_mask_error(envs[0]) from error
        for env, mask in zip(envs, answers, strict=True):
            _store(rows, env, env, mask)


def _require_layout(layout: SpaceLayout | None, space: Space[Any]) -> SpaceLayout:
    if layout is None:
        raise AttributeError(
            f"action masks are not supported for {space}: expected a Discrete, MultiDiscrete or "
            "MultiBinary action space, or a Dict or Tuple of them"
        )
    return layout


def _missing_mask_error(env: int) -> AttributeError:
    keys = " or ".join(map(repr, MASK_KEYS))
    return AttributeError(
        f"environment {env} provided no action mask: expected one under {keys} in its info, or "
        f"from its method {MASK_METHOD}(). The method is used only after the first call of "
        f"{MASK_METHOD}() on the vectorized environment"
    )


def _masks_from_infos(
    rows: SpaceRows, places: NDArray[np.intp], infos: StepInfos
) -> NDArray[np.bool_]:
    """Copy masks from infos, or reset infos if an episode ended; return True for copied rows."""
    given = np.zeros(len(rows), np.bool_)
    batch, ends = infos.parts
    sources = [(batch, infos.envs)]
    ended = None
    if ends is not None:
        ended, resets = ends.resets()
        sources.append((resets, ended))
    for key in MASK_KEYS:
        for source, envs in sources:
            values, present = source.column(key, envs)
            if ended is not None and source is batch:
                present[np.isin(envs, ended)] = False
            at = places[envs]
            present &= (at >= 0) & ~given[at]
            if present.all():
                _store_all(rows, at, values, envs)
            elif present.any():
                _store_all(rows, at[present], values[present], envs[present])
            given[at[present]] = True
        if given.all():
            break
    return given


def _store_all(
    rows: SpaceRows, at: NDArray[np.intp], values: NDArray[Any], envs: NDArray[np.intp]
) -> None:
    flat = rows.flat
    if flat is not None and values.dtype.kind in "biuf" and values[0].size == flat.shape[1]:
        flat[at] = values.reshape(len(values), -1)
        return
    for place, env, mask in zip(at.tolist(), envs.tolist(), values, strict=True):
        _store(rows, place, env, mask)


def _store(rows: SpaceRows, place: int, env: int, mask: Any) -> None:
    try:
        store_mask(rows, place, mask)
    except BadValueError as error:
        raise EnvError(env, MASK_METHOD, str(error)) from None


def _allowed(actions: SpaceRows, masks: SpaceRows) -> NDArray[np.bool_]:
    """Return for each environment whether its mask allows its action."""
    allowed = np.ones(len(masks), np.bool_)
    every = np.arange(len(masks))[:, np.newaxis]
    leaves = zip(actions.layout.leaves, actions.parts, masks.parts, strict=True)
    for leaf, taken, mask in leaves:
        chosen = taken.reshape(len(masks), -1).astype(np.int64)
        if isinstance(leaf.space, spaces.MultiBinary):
            chosen += 2 * np.arange(chosen.shape[1])
        else:
            chosen -= np.ravel(leaf.space.start)  # type: ignore[attr-defined]  # Discrete and MultiDiscrete have it
        if isinstance(leaf.space, spaces.MultiDiscrete):
            sizes = leaf.space.nvec.ravel()
            chosen += np.cumsum(sizes) - sizes
        # A separate check rejects actions outside the space.
        inside = np.clip(chosen, 0, mask.shape[1] - 1)
        allowed &= mask[every, inside].all(axis=1)
    return allowed
