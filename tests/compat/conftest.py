"""What the tests of other libraries' interfaces share."""

from __future__ import annotations

import multiprocessing

import pytest
from example_envs import NamedEnv
from gymnasium import Env
from gymnasium.envs.classic_control import CartPoleEnv


@pytest.fixture(autouse=True)
def own_metadata(monkeypatch):
    """Keeps within a test what Gymnasium before 1.4 notes in metadata for all of a class."""
    for kind in (Env, CartPoleEnv, NamedEnv):
        monkeypatch.setattr(kind, "metadata", dict(kind.metadata))


@pytest.fixture
def closing():
    """Registers vector environments, and closes them when the test is over."""
    made = []

    def register(vector_env):
        made.append(vector_env)
        return vector_env

    yield register
    while made:
        made.pop().close()
    assert multiprocessing.active_children() == [], "processes were left behind"
