"""What other parts of the package do over Ray's actors: states, agents, lost connections."""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

import numpy as np
import pytest
from agents_envs import MIXED, Herd, Squad
from backends import DUMMY, RAY
from bare_agents import assert_like_bare_loops
from cluster_envs import PlacedEnv
from comparing import assert_same
from relay import relayed
from saving_matrix import goes_on, makers
from stateful_envs import Collector, Heavy

from xuance_envs import DummyVecEnv, EnvStates, MultiAgentVecEnv, RayVecEnv_Gym

N = 4


@pytest.mark.usefixtures("cluster")  # with actors of its own: it comes first
@pytest.mark.parametrize("way", ["FIN", "RST", "SHUT_RD"])
def test_actors_learn_that_the_main_process_has_lost_its_connection(way: str) -> None:
    with (
        relayed() as relays,
        RayVecEnv_Gym([PlacedEnv] * 3, 2, actors="core", num_cpus_per_worker=0.01) as envs,
    ):
        connections = [actor.connection for actor in envs._groups.backend.actors]
        lose = {
            "FIN": partial(relays[0].fin, "main"),
            "RST": partial(relays[0].rst, "main"),
            "SHUT_RD": partial(connections[0]._socket.shutdown, socket.SHUT_RD),
        }
        envs.reset()
        for t in range(1, 6):
            if t == 2:
                relays[0].break_at("before", lose[way])
            assert (envs.step([0] * 3)[0] == [1, t]).all()
        lost = [actor.connection is None for actor in envs._groups.backend.actors]
        assert lost == [True, False]


# --- states ---------------------------------------------------------------------------------------


def test_actors_and_processes_go_on_from_each_others_states(actors: None) -> None:
    rng = np.random.default_rng(1)
    actions = rng.integers(4, size=(30, N))
    with (
        RayVecEnv_Gym([Collector] * N, in_series=2, num_cpus_per_worker=0.01) as envs,
        DummyVecEnv([Collector] * N) as others,
    ):

        def played(those: object) -> list[object]:
            found = []
            for each in actions[9:]:
                *arrays, infos = those.step(each)
                found.append((arrays, list(infos)))
            return found

        envs.reset(seed=1)
        others.reset(seed=5)
        for each in actions[:9]:
            envs.step(each)
        state = EnvStates.from_bytes(envs.save_state().to_bytes(), trusted=True)
        expected = played(envs)
        others.load_state(state)
        assert_same(played(others), expected)
        envs.load_state(state)
        assert_same(played(envs), expected)
        obs, _ = envs.clone_state(3, range(N))
        assert_same(list(obs), [obs[3]] * N)
        obs, *_ = envs.step([2] * N)
        assert_same(list(obs), [obs[3]] * N)


def test_clones_of_a_large_state_refer_to_one_object(
    actors: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RayVecEnv_Gym([Heavy] * 6, in_series=2, num_cpus_per_worker=0.01) as envs:
        envs.reset(seed=1)
        put: list[int] = []
        sent: list[int] = []
        cluster = type(envs._groups.backend._cluster)
        put_before, call_before = cluster.put, cluster.call

        def counting_put(self: Any, value: bytes) -> Any:
            put.append(len(value))
            return put_before(self, value)

        def counting_call(self: Any, method: Any, *arguments: Any) -> Any:
            sent.extend(len(each) for each in arguments if isinstance(each, bytes))
            return call_before(self, method, *arguments)

        monkeypatch.setattr(cluster, "put", counting_put)
        monkeypatch.setattr(cluster, "call", counting_call)
        obs, _ = envs.clone_state(3, range(6))
        assert_same(list(obs), [obs[3]] * 6)
        assert len(put) == 1
        assert put[0] > 1 << 19
        assert sum(sent) < 1 << 16
        state = envs.save_state([0])
        envs.load_state(state[[0] * 6])
        assert len(put) == 2
        assert sum(sent) < 1 << 16
        obs, *_ = envs.step([2] * 6)
        assert_same(list(obs), [obs[3]] * 6)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", makers())
def test_the_whole(actors: None, name: str) -> None:
    assert goes_on(makers()[name], RAY, DUMMY) >= 3
    assert goes_on(makers()[name], DUMMY, RAY) >= 3


# --- multi-agent ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"kinds": 3}, id="", marks=pytest.mark.long),
        pytest.param({"kinds": 2, "masks": "info"}, id="masks"),
    ],
)
def test_steps_of_many_agents_are_those_of_bare_loops(actors: None, options: Any) -> None:
    env_fns = [partial(Herd, plays=MIXED, length=length, **options) for length in (7, 5, 6, 7)]
    given: Any = {"backend": "ray", "in_series": 2, "num_cpus_per_worker": 0.01}
    with MultiAgentVecEnv(env_fns, **given) as envs:
        assert_like_bare_loops(envs, env_fns, steps=15)


def test_xuances_environments(actors: None) -> None:
    with MultiAgentVecEnv([Squad] * 2, 1, backend="ray", num_cpus_per_worker=0.01) as envs:
        assert envs.reset().alive.all()
        assert envs.step([dict.fromkeys(envs.agents, 1)] * 2).state.shape == (2, 3)
