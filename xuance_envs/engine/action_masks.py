"""The masks of actions that the caller is given, from wherever environments have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from xuance_envs.engine.data.masks import (
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
from xuance_envs.engine.results import Results
from xuance_envs.errors import EnvError

__all__ = ["ActionMasks"]

Ask = Callable[[str, Sequence[int], Callable[[Sequence[int]], Any]], list[Any]]
"""Asks some environments for a command, as :meth:`~xuance_envs.engine.groups.Groups.each` does."""


class ActionMasks:
    """Masks of the actions in the states that the next ones are chosen in.

    An info has its environment's mask, or the environment is asked by its method: by its group,
    from the first time on that somebody wants to know, after each step and reset.

    Args:
        action_space: of one environment.
        arrays: of all groups.
        results: has the infos.

    Attributes:
        wanted (bool): whether somebody has been given masks.
    """

    def __init__(self, action_space: Space[Any], arrays: StepArrays, results: Results) -> None:
        self.wanted = False
        self._space = action_space
        self._layout = mask_layout(action_space)
        self._actions = arrays.actions
        self._by_method = arrays.masks
        self._results = results
        self._every = np.arange(len(arrays.rewards))
        # Environments whose groups ask them, and have what they said in the arrays.
        self._watched = np.zeros(len(arrays.rewards), np.bool_)
        self._all_watched = self._any_watched = False

    def now(self, ask: Ask) -> Any:
        """The masks of all environments, in arrays of their own.

        Args:
            ask: asks those whose masks are not known.

        Raises:
            AttributeError: an environment has none; says what was looked for.
            EnvError: an environment raised, or gave something else.
        """
        if (quick := self._quick()) is not None:
            return quick
        rows, known = self._known()
        if not known.all():
            self._ask_for(rows, (~known).nonzero()[0].tolist(), ask)
        self.wanted = True
        return rows.as_batch()

    def _quick(self) -> NDArray[np.bool_] | None:
        """The masks of all environments, if they lie together in one array."""
        infos = self._results.of_all
        if infos is None or self._layout is None or not self._layout.flat or not self.wanted:
            return None
        batch, ends = infos.parts
        if ends is None and (given := batch.whole_column(MASK_KEYS[0])) is not None:
            if given.dtype.kind not in "biuf" or given.shape[1:] != self._layout.leaves[0].shape:
                return None
            return given if given.dtype == np.bool_ else given != 0
        sources = [batch] if ends is None else [batch, ends.taken()[1]]
        if not self._all_watched or any([s.may_have(key) for s in sources for key in MASK_KEYS]):
            return None
        assert self._by_method is not None
        return self._by_method.copy()  # type: ignore[no-any-return]  # flat, so an array

    def later(self, envs: NDArray[np.intp]) -> Callable[[StepInfos], Any]:
        """What gives the masks of environments that have just answered, also after later steps.

        Args:
            envs: the environments.

        Returns:
            A function of their infos.
        """
        layout, space, count = self._layout, self._space, len(self._every)
        watched = self._watched[envs]
        said = None
        if self._by_method is not None and watched.any():
            said = self._by_method.take(envs)

        def masks(infos: StepInfos) -> Any:
            rows = mask_rows(_checked(layout, space), len(envs))
            places = np.full(count, -1)
            places[envs] = np.arange(len(envs))
            known = _take_given(rows, places, infos)
            if said is not None:
                rows.assign((watched & ~known).nonzero()[0], said)
                known |= watched
            if not known.all():
                raise _none(int(envs[known.argmin()]))
            return rows.as_batch()

        return masks

    def said(self) -> list[Any] | None:
        """By environment, the mask that its method gave; None unless all are being asked."""
        if self._by_method is None or not self._all_watched:
            return None
        rows = self._by_method.take(self._every)
        return [rows.value(env) for env in self._every.tolist()]

    def watch(self, envs: Sequence[int], ask: Ask) -> list[Any]:
        """Has groups ask some environments by their method, now and from now on.

        Args:
            envs: the environments.
            ask: asks them.

        Returns:
            The parts of each one's mask; None for one that has no such method.

        Raises:
            EnvError: one raised, or returned something else.
        """
        assert self._by_method is not None
        answers = ask("watch_masks", envs, lambda _: ())
        for env, parts in zip(envs, answers, strict=True):
            self._watched[env] = parts is not None
            for mine, part in zip(self._by_method.parts, parts or (), strict=False):
                mine[env] = part
        self._all_watched, self._any_watched = bool(self._watched.all()), bool(self._watched.any())
        return answers

    @property
    def watched_rows(self) -> SpaceRows | None:
        """What environments said by their method, if any is asked; valid until the next step."""
        return self._by_method if self._any_watched else None

    def forget(self, envs: Sequence[int]) -> None:
        """Takes note that something was done to environments that may change what they say."""
        self._watched[list(envs)] = self._all_watched = False
        self._any_watched = bool(self._watched.any())

    def check(self, envs: NDArray[np.intp] | None = None) -> None:
        """Checks the actions of some environments, or of all, as far as their masks are known.

        Raises:
            ValueError: a mask forbids one.
        """
        rows, known = self._known()
        allowed = ~known
        allowed[known] = _allowed(self._actions, rows)[known]
        for env in self._every if envs is None else envs:
            if not allowed[env]:
                raise ValueError(
                    f"the action for environment {env}: its mask forbids "
                    f"{self._actions.value(int(env))!r}; it is {rows.value(int(env))!r}"
                )

    def _known(self) -> tuple[SpaceRows, NDArray[np.bool_]]:
        """The masks there are without asking anybody, and whose."""
        rows = mask_rows(_checked(self._layout, self._space), len(self._every))
        known = np.zeros(len(self._every), np.bool_)
        for infos, envs in self._results.latest():
            places = self._every
            if envs is not None:
                places = np.full(len(self._every), -1)
                places[envs] = envs
            known |= _take_given(rows, places, infos)
        if self._by_method is not None and not known.all():
            rows.assign((self._watched & ~known).nonzero()[0], self._by_method)
            known |= self._watched
        return rows, known

    def _ask_for(self, rows: SpaceRows, envs: list[int], ask: Ask) -> None:
        """Asks environments by their method, which their groups do from now on."""
        try:
            if self._by_method is not None:
                answers = self.watch(envs, ask)
                if None in answers:
                    raise _none(envs[answers.index(None)])
                rows.assign(np.array(envs), self._by_method)
                return
            answers = ask("call", envs, lambda _: (MASK_METHOD, (), {}))
        except NotImplementedError as error:  # there are no single environments
            raise _none(envs[0]) from error
        for env, mask in zip(envs, answers, strict=True):
            _store(rows, env, env, mask)


def _checked(layout: SpaceLayout | None, space: Space[Any]) -> SpaceLayout:
    """The layout of masks of a space's actions.

    Raises:
        AttributeError: such actions have none.
    """
    if layout is None:
        raise AttributeError(
            f"actions of {space} have no masks: those of Discrete, MultiDiscrete and MultiBinary "
            "spaces have, and those of a Dict or Tuple of such"
        )
    return layout


def _none(env: int) -> AttributeError:
    keys = " and ".join(map(repr, MASK_KEYS))
    return AttributeError(
        f"environment {env} has given no mask of its actions: it was looked for under {keys} in "
        f"its info, and in what its method {MASK_METHOD}() returns, which is asked from the first "
        f"time on that {MASK_METHOD}() of all environments is called"
    )


def _take_given(rows: SpaceRows, places: NDArray[np.intp], infos: StepInfos) -> NDArray[np.bool_]:
    """Takes masks out of infos; those of resets, where episodes ended.

    Args:
        rows: where they go.
        places: by environment, its row; -1 for one whose mask is not wanted.
        infos: of some environments.

    Returns:
        Which rows have been given one.
    """
    given = np.zeros(len(rows), np.bool_)
    batch, ends = infos.parts
    sources = [(batch, infos.envs)]
    ended = None
    if ends is not None:
        ended, resets = ends.taken()
        sources.append((resets, ended))
    for key in MASK_KEYS:
        for source, envs in sources:
            values, there = source.column(key, envs)
            if ended is not None and source is batch:
                there[np.isin(envs, ended)] = False
            at = places[envs]
            there &= (at >= 0) & ~given[at]
            if there.all():
                _store_all(rows, at, values, envs)
            elif there.any():
                _store_all(rows, at[there], values[there], envs[there])
            given[at[there]] = True
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
    """Where masks allow actions."""
    allowed = np.ones(len(masks), np.bool_)
    every = np.arange(len(masks))[:, np.newaxis]
    leaves = zip(actions.layout.leaves, actions.parts, masks.parts, strict=True)
    for leaf, taken, mask in leaves:
        chosen = taken.reshape(len(masks), -1).astype(np.int64)
        if isinstance(leaf.space, spaces.MultiBinary):
            chosen += 2 * np.arange(chosen.shape[1])
        else:
            chosen -= np.ravel(leaf.space.start)  # type: ignore[attr-defined]  # both others have it
        if isinstance(leaf.space, spaces.MultiDiscrete):
            sizes = leaf.space.nvec.ravel()
            chosen += np.cumsum(sizes) - sizes
        # What is not in the space at all is for another check.
        inside = np.clip(chosen, 0, mask.shape[1] - 1)
        allowed &= mask[every, inside].all(axis=1)
    return allowed
