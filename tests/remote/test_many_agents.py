"""Multi-agent environments on a server; the contract suite tests the common behavior."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from agents_envs import ALL_END, MIXED, Herd
from bare_agents import assert_like_bare_loops
from gymnasium import spaces
from serving import ServedProcess, ServerMaker

from xuance_envs import (
    DummyVecEnv,
    MultiAgentVecEnv,
    create_student_gym_env_vectorized,
    errors,
    make_multi_agent_vec,
)
from xuance_envs.multi_agent.adapters import agents_env
from xuance_envs.multi_agent.record_layout import RecordLayout
from xuance_envs.multi_agent.team import build_team
from xuance_envs.remote.remote_vec_env import RemoteVecEnv
from xuance_envs.remote.server import Server
from xuance_envs.remote.server.access import Permissions
from xuance_envs.remote.settings import Catalogue
from xuance_envs.remote.wire.constants import PROTOCOL_VERSION
from xuance_envs.remote.wire.formats import WireFormat, dumps, loads
from xuance_envs.remote.wire.nodes import WireError
from xuance_envs.remote.wire.spaces import space_from_wire, space_to_wire

HERDS: dict[str, Callable[..., Any]] = {
    "Herd": partial(agents_env, partial(Herd, plays=MIXED, kinds=3)),
    "Ending": partial(agents_env, partial(Herd, plays=ALL_END)),
    "Told": partial(agents_env, partial(Herd, masks="info")),
}


@pytest.fixture(scope="module")
def herds() -> Iterator[Server]:
    from serving import assert_nothing_is_left, make_server

    server = make_server(HERDS)
    yield server
    server.close()
    assert_nothing_is_left()


def test_the_environments_are_those_of_bare_loops(herds: Server) -> None:
    with MultiAgentVecEnv.of(RemoteVecEnv(herds.url, "Herd", 3)) as envs:
        assert_like_bare_loops(envs, [partial(Herd, plays=MIXED, kinds=3)] * 3, steps=15)


def test_an_action_that_is_not_in_its_space_names_its_agent_and_is_not_sent(herds: Server) -> None:
    with MultiAgentVecEnv.of(RemoteVecEnv(herds.url, "Ending", 2)) as envs:
        envs.reset(seed=0)
        with pytest.raises(ValueError, match=r"environment 1, agent 'sheep_1'.*Discrete\(3\), got"):
            envs.step([[0, 0], [0, 3]])
        assert envs.step([[0, 0], [0, 2]]).acted.all()


def test_those_of_the_dead_are_ignored_all_the_same(herds: Server) -> None:
    with MultiAgentVecEnv.of(RemoteVecEnv(herds.url, "Ending", 2)) as envs:
        envs.reset(seed=0)
        envs.step([[0, 0]] * 2), envs.step([[0, 0]] * 2)
        step = envs.step([[77, 0]] * 2)
        assert step.acted.tolist() == [[False, True]] * 2


def test_a_client_that_does_not_check_is_refused_by_the_server(herds: Server) -> None:
    with RemoteVecEnv(herds.url, "Ending", 1) as envs:
        envs.reset(seed=0)
        envs._action_writer._check = False
        with pytest.raises(ValueError, match="the action for environment 0"):
            envs.step(np.full((1, envs.action_space.shape[0]), 255, np.uint8))


def test_whatever_does_not_check_gets_what_was_given(serve: ServerMaker) -> None:
    server = serve(HERDS, allow=Permissions(any_action=True))
    with MultiAgentVecEnv.of(RemoteVecEnv(server.url, "Ending", 1)) as envs:
        envs.reset(seed=0)
        assert envs.step([[0, 9]]).rewards[0, 1] > 9


def test_infos_have_what_clients_are_told(serve: ServerMaker) -> None:
    server = serve(HERDS, allow=Permissions(infos=frozenset({"t"})))
    with MultiAgentVecEnv.of(RemoteVecEnv(server.url, "Told", 1)) as envs:
        assert envs.reset(seed=0).infos[0] == {agent: {"t": 0} for agent in envs.agents}
        step = envs.step([[0, 0, 0]])
        assert step.infos[0] == {agent: {"t": 1} for agent in envs.agents}
        assert step.action_masks.shape == (1, 3, 3)


def test_what_repeats_actions_is_for_one_agent(herds: Server) -> None:
    with pytest.raises(errors.RemoteConflictError, match="multi-agent"):
        create_student_gym_env_vectorized(1, 1, "nobody", base_url=herds.url, env_id="Herd")


def test_a_module_is_served_by_its_name(serve: ServerMaker) -> None:
    name = "mpe2:simple_tag_v3"
    pytest.importorskip("mpe2")
    catalogue = Catalogue.of_ids(["CartPole-v1"], ["max_cycles", "groups"], [name])
    assert catalogue.ids == ["CartPole-v1", name]
    served = {name: partial(catalogue.functions(name, 1, {})[0])}
    server = serve(served, kwargs=["max_cycles", "groups"])
    options: dict[str, Any] = {"max_cycles": 4}
    remote = RemoteVecEnv(server.url, name, 2, seed=3, env_kwargs=options)
    here = make_multi_agent_vec(name, 2, backend="dummy", seed=3, **options)
    with MultiAgentVecEnv.of(remote) as envs, here:
        assert envs.groups == here.groups
        np.testing.assert_equal(envs.reset().obs, here.reset().obs)
        actions = [dict.fromkeys(envs.agents, 2)] * 2
        for _ in range(6):
            one, other = envs.step(actions), here.step(actions)
            np.testing.assert_equal(one.obs, other.obs)
            np.testing.assert_equal(one.state, other.state)
            assert (one.first is None) == (other.first is None)
    with pytest.raises(errors.RemoteForbiddenError, match="'state'"):
        RemoteVecEnv(server.url, name, 1, env_kwargs={"state": False})
    groups = {"all": ["agent_0"], "them": ["adversary_0", "adversary_1", "adversary_2"]}
    with MultiAgentVecEnv.of(
        RemoteVecEnv(server.url, name, 1, env_kwargs={"groups": groups})
    ) as envs:
        assert list(envs.groups) == ["all", "them"]


def test_the_command_line_serves_a_module() -> None:
    pytest.importorskip("mpe2")
    served = ServedProcess("--multi-agent", "mpe2:simple_spread_v3", "--env", "CartPole-v1")
    assert served.said.startswith("serving CartPole-v1, mpe2:simple_spread_v3 at ")
    with MultiAgentVecEnv.of(RemoteVecEnv(served.url, "mpe2:simple_spread_v3", 2)) as envs:
        assert envs.reset(seed=0).obs.shape == (2, 3, 18)
    served.close()


def test_environments_of_one_agent_are_no_records(server: Server) -> None:
    with RemoteVecEnv(server.url, "CartPole", 1) as envs:
        with pytest.raises(TypeError, match="records"):
            MultiAgentVecEnv.of(envs)
        assert envs.reset()[0].shape == (1, 4)


def test_a_record_space_contains_what_it_draws_and_nothing_else() -> None:
    with DummyVecEnv([HERDS["Herd"]]) as envs:
        space = envs.action_space
        space.seed(1)
        assert all(space.contains(space.sample()) for _ in range(20))
        assert not space.contains(np.full(space.shape, 255, np.uint8))
        assert not space.contains(np.zeros(3, np.uint8))
        assert not space.contains([0] * space.shape[0])


@pytest.mark.parametrize("form", WireFormat, ids=lambda form: form.name)
@pytest.mark.parametrize("name", HERDS)
def test_spaces_of_records_travel(form: WireFormat, name: str) -> None:
    env = HERDS[name]()
    for space in (env.observation_space, env.action_space):
        arrived = space_from_wire(loads(dumps(space_to_wire(space), form), form))
        assert type(arrived) is type(space)
        assert arrived == space
        assert arrived.shape == space.shape


@pytest.mark.parametrize(
    "wrong",
    [
        {"agents": 3},
        {"agents": ["wolf_0", "wolf_0", "sheep_1", "sheep_2"]},
        {"agents": [["wolf_0"], ["x"], ["y"], ["z"]]},
        {"observation_spaces": []},
        {"action_spaces": [{"type": "Text", "min_length": 0, "max_length": 3, "charset": "a"}] * 4},
        {"state_space": 1},
        {"groups": [["all", [0, 1, 2, 3]]]},
        {"groups": [["one", [0, 9]]]},
        {"groups": [["one"]]},
    ],
    ids=str,
)
def test_a_space_of_records_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    message = dumps(space_to_wire(HERDS["Herd"]().observation_space), WireFormat.MSGPACK)
    with pytest.raises(WireError, match=r"ObservationRecord|expected one of the space types"):
        space_from_wire(loads(message, WireFormat.MSGPACK) | wrong)


def test_who_lays_records_out_otherwise_counts_the_protocol_up() -> None:
    agents = ["a", "b"]
    box, action = spaces.Box(-1, 1, (5,), np.float64), spaces.Discrete(4)
    state = spaces.Box(0, 1, (3,), np.float32)
    observed, acting = dict.fromkeys(agents, box), dict.fromkeys(agents, action)
    record = RecordLayout(build_team(agents, observed, acting, state, None, True, True)).dtype
    # Observations, masks, state, rewards, and then the flags.
    offsets = [offset for _, offset, *_ in (record.fields or {}).values()]
    assert offsets == [0, 108, 96, 80, 116, 118, 120, 122, 124]
    assert (record.itemsize, PROTOCOL_VERSION) == (128, 4)
