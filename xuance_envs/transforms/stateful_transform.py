"""What transforms learn, and how one gets to know it from another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["StatefulTransform"]


class StatefulTransform:
    """What learns from what it sees, or has others within it that do.

    Attributes:
        training (bool): whether it learns from what it sees; :meth:`freeze` ends that.
    """

    training: bool

    @property
    def transforms(self) -> Sequence[StatefulTransform]:
        """This one and those within it, from the outside to the inside."""
        return [self]

    def learned(self) -> dict[str, Any]:
        """What it has learned, by name, as numbers, text and lists of numbers; often nothing."""
        return {}

    def prepare_learned(self, learned: Mapping[str, Any]) -> Callable[[], None]:
        """Checks what another one has learned; what is returned makes it this one's.

        Args:
            learned: as :meth:`learned` gives it, or the same as arrays.

        Raises:
            ValueError: it is of another shape or environment.
        """
        raise NotImplementedError(f"{type(self).__name__} learns nothing")

    def freeze(self) -> None:
        """Has this transform, and those within it, learn nothing more."""
        for transform in self.transforms:
            transform.training = False

    def state_dict(self) -> dict[str, Any]:
        """What this transform and those within it have learned.

        Returns:
            One flat dict by name, of numbers, text and lists of numbers, which ``torch.save`` and
            ``numpy.savez`` take.
        """
        return {
            f"{name}.{key}": value
            for name, transform in _stateful_transforms(self).items()
            for key, value in transform.learned().items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Has this transform and those within it know what others had learned.

        Args:
            state: as :meth:`state_dict` gave it, or as ``numpy.load`` gives it back.

        Raises:
            ValueError: it is of other transforms, of another shape or environment; then nothing
                has changed.
        """
        given: dict[str, dict[str, Any]] = {}
        for name, value in state.items():
            transform, _, key = name.partition(".")
            given.setdefault(transform, {})[key] = value
        self._load_learned(given, exactly=True)

    def sync_from(self, other: object) -> None:
        """Has this transform and those within it know what those of another one have learned.

        Args:
            other: the environments that are trained on, say, for this one to be tested on. It may
                have more transforms than this one.

        Raises:
            TypeError: it is no transform.
            ValueError: it lacks a transform that this one has, or has one of another shape or
                environment; then nothing has changed.
        """
        if not isinstance(other, StatefulTransform):
            raise TypeError(f"sync_from: expected a transform, got {other!r}")
        self._load_learned(
            {name: its.learned() for name, its in _stateful_transforms(other).items()}
        )

    def _load_learned(self, given: Mapping[str, Mapping[str, Any]], exactly: bool = False) -> None:
        mine = _stateful_transforms(self)
        if not mine.keys() <= given.keys() or (exactly and mine.keys() != given.keys()):
            raise ValueError(
                f"expected what {_listed(mine)} learned, got what {_listed(given)} learned"
            )
        learn = [transform.prepare_learned(given[name]) for name, transform in mine.items()]
        for each in learn:
            each()


def _stateful_transforms(outermost: StatefulTransform) -> dict[str, StatefulTransform]:
    """The transforms that learn, by names under which their counterparts are found."""
    found: dict[str, StatefulTransform] = {}
    for transform in outermost.transforms:
        if transform.learned():
            name = type(transform).__name__
            alike = sum(key.partition("-")[0] == name for key in found)
            found[f"{name}-{alike + 1}" if alike else name] = transform
    return found


def _listed(names: Mapping[str, Any]) -> str:
    return " and ".join(names) or "no transform"
