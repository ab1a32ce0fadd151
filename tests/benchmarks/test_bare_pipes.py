"""The bare loop that Tianshou's interface is compared with does what it is taken for."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from tianshou_envs import Corridor

from benchmarks.peers.bare_pipes import BarePipes


@pytest.mark.parametrize(("processes", "spins"), [(4, False), (2, True)])
def test_each_step_is_of_its_environment_and_goes_on_after_a_reset(
    processes: int, spins: bool
) -> None:
    pipes = BarePipes([partial(Corridor, 3)] * 4, 2, processes, spins)
    try:
        pipes.reset()
        places = np.zeros(4, int)
        ids = np.arange(4)
        for _ in range(20):
            observations, rewards, terminated, truncated, infos = pipes.step(ids * 0 + 1, ids)
            ids = np.array([info["env_id"] for info in infos])
            assert len(set(ids.tolist())) == len(ids) >= 2
            places[ids] += 1
            assert observations.tolist() == [[place] * 2 for place in places[ids].tolist()]
            assert terminated.tolist() == (places[ids] == 3).tolist()
            assert not truncated.any()
            assert len(rewards) == len(ids)
            if terminated.any():
                pipes.reset(ids[terminated])
                places[ids[terminated]] = 0
    finally:
        pipes.close()
