"""Time limits of replies."""

from __future__ import annotations

from time import monotonic

CHECK_INTERVAL = 0.25  # longest time in seconds between two checks of a deadline

# A check that takes a second too long shows that this process and its workers were suspended, for
# example by Ctrl-Z. Neither such a check nor one that begins after the deadline proves a hang.
SUSPENSION_THRESHOLD = 1.0
LATE_TOLERANCE = 0.05


class Deadline:
    """Time limit of a reply; it does not run out while this process is suspended."""

    _suspended = 0.0  # total seconds for which this process was suspended
    _was_late = False
    _progress = 0

    def __init__(self, limit: float, began: float | None = None) -> None:
        self.limit = limit
        self._at = (monotonic() if began is None else began) + limit - Deadline._suspended

    @property
    def at(self) -> float:
        return self._at + Deadline._suspended

    def has_passed(self, began: float, progress: int = 0) -> bool:
        """Return whether the deadline has passed in a wait since ``began``; may extend it."""
        now = monotonic()
        if now > began + CHECK_INTERVAL + SUSPENSION_THRESHOLD:
            Deadline._suspended += now - began
            return False
        if now < self.at:
            return False
        # A worker with a long reply blocks until the reply is read; ``progress`` is the bytes read.
        before, self._progress = self._progress, progress
        if began > self.at + LATE_TOLERANCE and not self._was_late:
            self._was_late = True  # extend once: both processes may have been suspended
        elif progress == before:
            return True
        self._at = now + self.limit - Deadline._suspended
        return False
