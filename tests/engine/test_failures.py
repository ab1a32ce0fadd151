"""What is told of an environment's error."""

from __future__ import annotations

import traceback

import pytest

from xuance_envs import EnvError
from xuance_envs.engine.group.base_env_group import make_env_error
from xuance_envs.engine.serialization import pack_error, unpack_error


class SilentError(BaseException):
    def __str__(self):
        raise SystemError("no memory is left")


@pytest.fixture
def no_traceback(monkeypatch):
    """As in Python 3.13, where making one compiles code, when no memory is left."""

    def fail(error):
        raise SystemError("compile returned NULL")

    monkeypatch.setattr(traceback, "format_exception", fail)


def test_without_a_traceback_the_rest_is_told(no_traceback):
    error = make_env_error(3, "step", MemoryError("all gone"))
    assert isinstance(error, EnvError)
    assert (error.env_index, error.command) == (3, "step")
    assert "MemoryError: all gone" in str(error)
    assert "compile returned NULL" in error.env_traceback


def test_what_cannot_say_anything_is_told_by_its_type(no_traceback):
    error = unpack_error(pack_error(SilentError()))
    assert "SilentError (message unavailable)" in str(error)
