"""Stacked observations that share their common frames."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LazyFrames"]

Array = npt.NDArray[Any]

# Up to this number of channels, copying an image into a wider one is several times faster channel
# by channel than pixel by pixel.
_FEW_CHANNELS = 4

_MAX_MERGED = 64  # well below OpenCV's limit of channels in every version


class LazyFrames:
    """Frames that are concatenated along the last axis on demand.

    Consecutive stacked observations have all frames but one in common. A ``LazyFrames`` holds
    references to its frames, so a replay buffer keeps each frame in memory once. Each conversion
    returns a new, writable array; the concatenated array is never cached.

    The frames are not copied and must not be modified afterwards. If an environment reuses its
    observation buffer, pass copies, or use :meth:`from_stack`, which copies frames.

    Args:
        frames: the frames, oldest first: at least one, with equal dtypes and equal shapes except
            for the length of the last axis. Scalars are not allowed.

    Raises:
        ValueError: there are no frames, or they cannot be concatenated along the last axis.

    Examples:
        >>> import numpy as np
        >>> older, newer = np.zeros((2, 2, 1), np.uint8), np.ones((2, 2, 1), np.uint8)
        >>> stacked = LazyFrames([older, newer])
        >>> stacked
        LazyFrames(shape=(2, 2, 2), dtype=uint8)
        >>> np.asarray(stacked)[0, 0]
        array([0, 1], dtype=uint8)
        >>> bool((stacked[-1] == newer[..., 0]).all())  # an index counts along the last axis
        True
    """

    __slots__ = ("_frames", "_shape")

    def __init__(self, frames: Iterable[npt.ArrayLike]) -> None:
        self._frames: tuple[Array, ...] = tuple(map(np.asarray, frames))
        if not self._frames:
            raise ValueError("frames: expected at least one frame, got none")
        first = self._frames[0]
        if first.ndim == 0:
            raise ValueError("frames: expected arrays with at least one axis, got a scalar")
        leading, ndim, dtype = first.shape[:-1], first.ndim, first.dtype
        width = 0
        for index, frame in enumerate(self._frames):
            shape = frame.shape
            if frame.dtype != dtype or len(shape) != ndim or shape[:-1] != leading:
                raise ValueError(
                    "frames: expected equal dtypes, and equal shapes except for the last axis: "
                    f"frame 0 has shape {first.shape} and dtype {dtype}, "
                    f"frame {index} has shape {shape} and dtype {frame.dtype}"
                )
            width += shape[-1]
        self._shape = (*leading, width)

    @classmethod
    def from_stack(
        cls, stack: npt.ArrayLike, num_stack: int, previous: LazyFrames | None = None
    ) -> LazyFrames:
        """Build a ``LazyFrames`` from a stacked array, sharing frames with ``previous``.

        Bitwise identical frames are shared, even within one stack. With the preceding observation
        as ``previous``, only the newest frame takes new memory.

        Args:
            stack: frames concatenated along the last axis, oldest first. Frames that are not shared
                are copied.
            num_stack: number of frames.
            previous: an earlier observation of the same environment.

        Returns:
            The observation as ``num_stack`` frames of equal width along the last axis.

        Raises:
            ValueError: ``num_stack`` is below 1, or the last axis cannot be divided into that many
                frames.

        Examples:
            >>> import numpy as np
            >>> first = LazyFrames.from_stack(np.array([1.0, 2.0, 3.0]), 3)
            >>> second = LazyFrames.from_stack(np.array([2.0, 3.0, 4.0]), 3, previous=first)
            >>> np.asarray(second)
            array([2., 3., 4.])
        """
        stack = np.asarray(stack)
        if num_stack < 1:
            raise ValueError(f"num_stack: expected at least 1, got {num_stack}")
        if stack.ndim == 0 or stack.shape[-1] % num_stack:
            raise ValueError(
                f"stack: expected a last axis whose length is a multiple of num_stack={num_stack}, "
                f"got shape {stack.shape}"
            )
        width = stack.shape[-1] // num_stack
        known = [
            (frame.tobytes(), frame)
            for frame in (() if previous is None else previous._frames)
            if frame.dtype == stack.dtype and frame.shape == (*stack.shape[:-1], width)
        ]
        frames = []
        for index in range(num_stack):
            frame = stack[..., index * width : (index + 1) * width].copy()
            known.append((frame.tobytes(), frame))
            frames.append(next(same for content, same in known if content == known[-1][0]))
        return cls(frames)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the concatenated array."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the frames and of the concatenated array."""
        return self._frames[0].dtype

    @property
    def ndim(self) -> int:
        """Number of axes of each frame and of the concatenated array."""
        return self._frames[0].ndim

    def copy_to(self, out: Array) -> None:
        """Write the concatenated frames into ``out`` without a temporary array.

        Args:
            out: a writable array of this object's shape. Values are cast with NumPy's
                ``"same_kind"`` rule, for example float64 to float32.

        Raises:
            ValueError: ``out`` has a different shape or is read-only.
            TypeError: the cast would change the kind, for example float to int.

        Examples:
            >>> import numpy as np
            >>> batch = np.empty((2, 4), np.float32)
            >>> LazyFrames([np.zeros(2), np.ones(2)]).copy_to(batch[1])
            >>> batch[1]
            array([0., 0., 1., 1.], dtype=float32)
        """
        if out.shape != self.shape:
            raise ValueError(f"out: expected an array of shape {self.shape}, got {out.shape}")
        self._write(out, "same_kind")

    def _write(self, out: Array, casting: Any) -> None:
        if self._merge(out):
            return
        if self.ndim > 2 and all(1 < frame.shape[-1] <= _FEW_CHANNELS for frame in self._frames):
            channels = [frame[..., k] for frame in self._frames for k in range(frame.shape[-1])]
            for place, channel in enumerate(channels):
                np.copyto(out[..., place], channel, casting=casting)
        else:
            np.concatenate(self._frames, axis=-1, out=out, casting=casting)

    def _merge(self, out: Array) -> bool:
        """Interleave image channels, with OpenCV if it is loaded, because it is faster."""
        merge = getattr(sys.modules.get("cv2"), "merge", None)
        return (
            merge is not None
            and len(self._shape) == 3
            and 1 < self._shape[-1] <= _MAX_MERGED
            and out.dtype == self._frames[0].dtype == np.uint8
            and out.flags.c_contiguous
            and out.flags.writeable
            and out.size > 0
            and all([frame.shape[-1] for frame in self._frames])
            and merge(self._frames, out) is out
        )

    def _force(self) -> Array:
        return self.__array__()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Concatenate the frames into a new array.

        Args:
            dtype: dtype of the result; None keeps the frames' dtype.
            copy: NumPy 2's argument. False is not supported: the result is always a new array.

        Raises:
            ValueError: ``copy`` is False.
        """
        if copy is False:
            raise ValueError(
                "unable to avoid copy: LazyFrames concatenates its frames into a new array; use "
                "copy=None"
            )
        out = np.empty(self.shape, self.dtype if dtype is None else dtype)
        self._write(out, "unsafe")
        return out

    def __len__(self) -> int:
        """Length of the concatenated array's first axis."""
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the first axis of the concatenated array."""
        return iter(self._force())

    def __getitem__(self, index: Any) -> Any:
        """Index the LAST axis of the concatenated array."""
        return self._force()[..., index]

    def __eq__(self, other: object) -> Any:
        """Compare element-wise, as arrays do."""
        return self._force() == np.asarray(other)

    def __ne__(self, other: object) -> Any:
        """Compare element-wise, as arrays do."""
        return self._force() != np.asarray(other)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the frames; frames shared within one pickle stay shared."""
        return type(self), (self._frames,)

    def __repr__(self) -> str:
        return f"LazyFrames(shape={self.shape}, dtype={self.dtype})"
