"""Objects that keep the memory of an array alive."""

from __future__ import annotations

from functools import partial

import pytest


def tensor(copy, function="from_numpy"):
    return getattr(pytest.importorskip("torch"), function)(copy)


HOLDERS = {
    "itself": lambda copy: copy,
    "a row": lambda copy: copy[1],
    "a view of a view": lambda copy: copy[1:].T[0],
    "a memoryview": memoryview,
    "a tensor": tensor,
    "a part of a tensor": lambda copy: tensor(copy)[1:],
    "DLPack": partial(tensor, function="from_dlpack"),
    "in a tuple": lambda copy: (copy,),
    "its base": lambda copy: copy if copy.base is None else copy.base,
}
