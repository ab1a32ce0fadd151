"""GIF files written frame by frame."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops
from PIL.GifImagePlugin import getdata, getheader

COLORS = 128
TICK = 10
"""Milliseconds; the time unit of GIF files."""

MIN_TICKS = 2
"""Shortest duration of a frame; viewers slow down GIFs with shorter frames."""

MAX_IN_MEMORY = 1 << 25
"""Bytes; a larger GIF is buffered in a temporary file."""

TRAILER = b";"


class GifWriter:
    """A GIF writer whose memory does not grow with the frames, unlike that of Pillow's ``save``."""

    def __init__(self, fps: float) -> None:
        self.count = 0
        self._duration = TICK * max(MIN_TICKS, round(1000 / fps / TICK))
        self._last: Image.Image | None = None
        self._file = tempfile.SpooledTemporaryFile(MAX_IN_MEMORY)  # noqa: SIM115  # see close
        self.close = weakref.finalize(self, self._file.close)

    def state(self) -> tuple[Any, ...]:
        place = self._file.tell()
        self._file.seek(0)
        written = self._file.read(place)
        last = None if self._last is None else (self._last.size, self._last.tobytes())
        return self.count, self._duration, last, written

    @classmethod
    def restored(cls, state: tuple[Any, ...]) -> GifWriter:
        """Restore a writer from :meth:`state`."""
        writer = cls(1)
        writer.count, writer._duration, last, written = state
        writer._last = None if last is None else Image.frombytes("RGB", *last)
        writer._file.write(written)
        return writer

    def add(self, image: Image.Image) -> None:
        """Append a frame of the same size as the first."""
        changed, header = (0, 0, *image.size), list[bytes]()
        if self._last is not None:
            # Frames must not be empty.
            changed = ImageChops.difference(image, self._last).getbbox() or (0, 0, 1, 1)
        frame = image.crop(changed).quantize(COLORS)
        if self._last is None:
            header, _ = getheader(frame, info={"loop": 0})
        data = getdata(frame, changed[:2], duration=self._duration, include_color_table=True)
        self._file.write(b"".join([*header, *data]))
        self._last = image
        self.count += 1

    def save(self, path: Path) -> None:
        self._file.seek(0)
        with path.open("wb") as file:
            shutil.copyfileobj(self._file, file)
            file.write(TRAILER)
        self.close()
