"""mo-gymnasium's environments in Ray actors, bitwise as in its ``MOSyncVectorEnv``."""

from __future__ import annotations

from functools import partial

import pytest
from backends import RAY, made
from mo_envs import IDS, N, assert_like_theirs, make_env

pytest.importorskip("mo_gymnasium")

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
]


@pytest.mark.parametrize("env_id", IDS)
def test_it_is_as_theirs(actors: None, env_id: str) -> None:
    for make in made(RAY):
        assert_like_theirs(make([partial(make_env, env_id)] * N), env_id)
