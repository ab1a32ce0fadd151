from __future__ import annotations

from collections.abc import Sequence

from xuance_envs.remote.server.limits.admission import Quota


class StateStore:
    """Sizes of the states that a worker process keeps; they count towards quotas."""

    def __init__(self, quotas: Sequence[Quota]) -> None:
        self.sizes: dict[int, int] = {}  # in bytes, by number
        self.object_sizes: dict[int, int] = {}  # of the parts of replies without a fixed shape
        self._quotas = quotas

    @property
    def room(self) -> float:
        """Bytes of states that may be added."""
        return min((quota.room("state_bytes") for quota in self._quotas), default=0)

    def check(self, count: int, nbytes: int = 0) -> None:
        for quota in self._quotas:
            quota.check(states=count, state_bytes=nbytes)

    def add(
        self, numbers: Sequence[int], sizes: Sequence[int], object_sizes: Sequence[int]
    ) -> None:
        self.sizes.update(zip(numbers, sizes, strict=True))
        self.object_sizes.update(zip(numbers, object_sizes, strict=True))
        for quota in self._quotas:
            quota.add(states=len(sizes), state_bytes=sum(sizes))

    def drop(self, numbers: Sequence[int]) -> None:
        sizes = [self.sizes.pop(number) for number in numbers if number in self.sizes]
        for number in numbers:
            self.object_sizes.pop(number, None)
        for quota in self._quotas:
            quota.add(states=-len(sizes), state_bytes=-sum(sizes))
