from __future__ import annotations

from collections.abc import Iterable, Sequence

from xuance_envs.remote.serving.admission import Quota


class StateStore:
    """Sizes of the states that a worker process keeps; they count towards quotas."""

    def __init__(self, quotas: Sequence[Quota]) -> None:
        self.sizes: dict[int, int] = {}  # in bytes, by number
        self._quotas = quotas

    @property
    def room(self) -> float:
        """Bytes of states that may be added."""
        return min((quota.room("state_bytes") for quota in self._quotas), default=0)

    def check(self, count: int, nbytes: int = 0) -> None:
        for quota in self._quotas:
            quota.check(states=count, state_bytes=nbytes)

    def add(self, numbers: Sequence[int], sizes: Sequence[int]) -> None:
        self.sizes.update(zip(numbers, sizes, strict=True))
        for quota in self._quotas:
            quota.add(states=len(sizes), state_bytes=sum(sizes))

    def drop(self, numbers: Iterable[int]) -> None:
        sizes = [self.sizes.pop(number) for number in numbers if number in self.sizes]
        for quota in self._quotas:
            quota.add(states=-len(sizes), state_bytes=-sum(sizes))
