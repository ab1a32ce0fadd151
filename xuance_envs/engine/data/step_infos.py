"""Infos that a step returns: a sequence whose dicts are built on access."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_batch import InfoBatch, Snapshot, as_batch
from xuance_envs.errors import counted


@dataclass(slots=True, eq=False)
class EpisodeEnds:
    """The reset observations and infos of the environments whose episode ended in a step."""

    _ended: NDArray[np.bool_]
    _observation: Callable[[int], Any]
    infos: InfoBatch  # of these environments, and possibly of others
    _envs: NDArray[np.intp] | None

    def resets(self) -> tuple[NDArray[np.intp], InfoBatch]:
        """Return the environments whose episode ended, and their reset infos."""
        envs = self.envs
        if self._envs is not None and len(self._envs) == len(envs):
            return envs, self.infos
        batch = self.infos
        arrays = batch.arrays.take(self._rows(envs)) if len(batch.arrays.kinds) else batch.arrays
        return envs, InfoBatch(arrays, batch.layouts, batch.group_of, batch.rest)

    def observations(self, envs: NDArray[np.intp]) -> list[Any]:
        return [self._observation(row) for row in self._rows(envs).tolist()]

    @property
    def envs(self) -> NDArray[np.intp]:
        return self._ended.nonzero()[0]

    def with_observations(self, observations: Sequence[Any]) -> EpisodeEnds:
        by_row = dict(zip(self._rows(self.envs).tolist(), observations, strict=True))
        return EpisodeEnds(self._ended, by_row.__getitem__, self.infos, self._envs)

    def _rows(self, envs: NDArray[np.intp]) -> NDArray[np.intp]:
        return envs if self._envs is None else self._envs.searchsorted(envs)

    def add_to(self, info: dict[Any, Any], env: int) -> None:
        """Add ``reset_obs`` and ``reset_info`` to an info if its environment's episode ended."""
        if self._ended[env]:
            row = env if self._envs is None else int(self._envs.searchsorted(env))
            info["reset_obs"] = self._observation(row)
            info["reset_info"] = self.infos.build(row, env)


class LazyInfos(Sequence[dict[Any, Any]]):
    """Sequence of dicts that :meth:`_build` builds on first access; ``infos[i] = ...`` sets one."""

    __slots__ = ("_built",)
    _built: dict[int, dict[Any, Any]]

    def _build(self, position: int) -> dict[Any, Any]:
        raise NotImplementedError

    @property
    def are_unread(self) -> bool:
        """True if no dict has been built or set, so that none can differ from the source."""
        return not self._built

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> dict[Any, Any]: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[dict[Any, Any]]: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> dict[Any, Any] | list[dict[Any, Any]]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        position = self._position(index)
        info = self._built.get(position)
        if info is None:
            info = self._built.setdefault(position, self._build(position))
        return info

    def __setitem__(self, index: SupportsIndex, info: dict[Any, Any], /) -> None:
        self._built[self._position(index)] = info

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LazyInfos | list | tuple):
            return list(self) == list(other)
        return NotImplemented

    def __add__(self, other: object) -> list[Any]:
        if isinstance(other, LazyInfos | list):
            return [*self, *other]
        return NotImplemented

    def __radd__(self, other: object) -> list[Any]:
        return [*other, *self] if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # mutable, so not hashable, like a list

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[dict[Any, Any]]]]:
        return list, (list(self),)

    def copy(self) -> list[dict[Any, Any]]:
        return list(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            hint = "; infos[i] is the dict of environment i" if hasattr(dict, name) else ""
            text = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
            raise AttributeError(text, name=name, obj=self)

    def _position(self, index: SupportsIndex) -> int:
        if isinstance(index, str):
            raise TypeError(
                f"infos: expected the index of an environment, got {index!r}; infos[i] is a dict, "
                f"and infos.column({index!r}) returns one key's values of all environments"
            )
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            expected = f"an index into {counted(len(self), 'info')}"
            raise IndexError(f"infos: expected {expected}, got {position}")
        return position % len(self)


class StepInfos(LazyInfos):
    """Infos of one step: a sequence of dicts that are built on first access and then kept."""

    masks: Callable[[StepInfos], Any]
    __slots__ = ("_source", "ends", "envs", "masks")

    def __init__(
        self, source: Snapshot | InfoBatch, envs: Any, ends: EpisodeEnds | None = None
    ) -> None:
        self._source = source
        self.envs = envs
        self.ends = ends
        self._built = {}

    @property
    def _batch(self) -> InfoBatch:
        source = self._source
        if not isinstance(source, InfoBatch):
            source = self._source = as_batch(source)
        return source

    @property
    def parts(self) -> tuple[InfoBatch, EpisodeEnds | None]:
        return self._batch, self.ends

    def with_reset_observations(self, observations: Sequence[Any]) -> StepInfos:
        assert self.ends is not None
        by_env = dict(zip(self.ends.envs.tolist(), observations, strict=True))
        changed = {env: {"reset_obs": value} for env, value in by_env.items()}
        ends = self.ends.with_observations(observations)
        return self._with(self._batch, ends, changed)

    def with_values(self, key: str, values: Mapping[int, Callable[[], Any]]) -> StepInfos:
        """Return the same infos with one key's values added or replaced."""
        built = {int(self.envs[position]) for position in self._built}
        made = {env: {key: values[env]()} for env in built & values.keys()}
        return self._with(self._batch.with_values(key, values), self.ends, made)

    def _with(
        self, batch: InfoBatch, ends: EpisodeEnds | None, changed: Mapping[int, Mapping[Any, Any]]
    ) -> StepInfos:
        """Return infos of a new batch, with changed copies of the dicts that are already built."""
        infos = StepInfos(batch, self.envs, ends)
        masks = getattr(self, "masks", None)  # only the infos of `recv` have them
        if masks is not None:
            infos.masks = masks
        for position, info in self._built.items():
            infos._built[position] = {**info, **changed.get(int(self.envs[position]), {})}
        return infos

    def column(self, key: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return one key's values and a mask of the infos that have it, without building dicts."""
        return self._batch.column(key, self.envs)

    def __len__(self) -> int:
        return len(self.envs)

    def __iter__(self) -> Iterator[dict[Any, Any]]:
        """Build all missing dicts together, because this is faster, and iterate over all dicts."""
        if len(self._built) < len(self):
            for position, info in enumerate(self._batch.dicts(self.envs)):
                if position not in self._built:
                    if self.ends is not None:
                        self.ends.add_to(info, int(self.envs[position]))
                    self._built[position] = info
        return iter([self._built[position] for position in range(len(self))])

    def _build(self, position: int) -> dict[Any, Any]:
        env = int(self.envs[position])
        info = self._batch.build(position, env)
        if self.ends is not None:
            self.ends.add_to(info, env)
        return info
