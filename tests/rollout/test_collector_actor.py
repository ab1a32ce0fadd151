"""A collector as it is in its actor, without the actor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from collected_envs import SPACES, TWO, Thinker, Weighing, env_fns
from interrupts import Instant
from masked_envs import MaskedEnv

from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.ray.cluster import ActorLostError, ActorOptions
from xuance_envs.engine.serialization import dumps_for_worker, unpack_error
from xuance_envs.errors import WorkerDiedError
from xuance_envs.rollout import collector_pool
from xuance_envs.rollout.collector_actor import CollectorActor, CollectorPlan
from xuance_envs.rollout.collector_pool import CollectorActorPool
from xuance_envs.rollout.results import join_results
from xuance_envs.rollout.state_layout import StateLayout
from xuance_envs.rollout.transfer import Transfer

PLAN = CollectorPlan(
    number=1,
    envs=range(3, 4),
    env_fns=dumps_for_worker(env_fns(SPACES["vector"])[:1]),
    keywords=[{}],
    seeds=None,
    processes=1,
    step_timeout=None,
    start_timeout=None,
    agent=dumps_for_worker(Thinker(TWO)),
    random_state=torch.get_rng_state().numpy().tobytes(),
    options={"steps_per_env": 2},
)


@pytest.fixture(autouse=True)
def own_noise() -> Iterator[None]:
    """Leaves this process's generator as it was, which a collector seeds."""
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.mark.parametrize(
    ("part", "packed", "said"),
    [
        ("agent", b"celsewhere\nThing\n.", "No module named 'elsewhere'. The agent could"),
        ("env_fns", b"celsewhere\nThing\n.", "No module named 'elsewhere'. The environment fun"),
        ("env_fns", b"cgymnasium\nno_thing\n.", "attribute 'no_thing'.*The environment fun"),
    ],
)
def test_code_that_is_not_there_is_told_with_what_to_do(
    part: str, packed: bytes, said: str
) -> None:
    actor = CollectorActor(replace(PLAN, **{part: packed}))
    well, error = actor.call("build")
    assert not well
    place = re.escape("in collector 1 on this machine: the code must be available there, installed")
    with pytest.raises(ImportError, match=f"{said}.*{place}"):
        raise unpack_error(error)
    actor.close()


class Nan(Thinker):
    def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
        actions, log_probs, values, _ = super().get_actions_and_values(states, actions)
        return actions, log_probs, values * torch.nan, None


class Requiring(Thinker):
    def get_actions_and_values(self, states: Any, actions: Any = None, *, masks: Any) -> Any:
        return super().get_actions_and_values(states, actions)


@pytest.mark.parametrize(
    ("agent", "kind", "said"),
    [
        (Nan, ValueError, "got NaN, first at step 0 of the rollout in environment 0"),
        (Requiring, AttributeError, "environment 0 provided no action mask"),
    ],
)
def test_an_error_that_names_an_environment_says_where_it_is(
    agent: Any, kind: Any, said: str
) -> None:
    actor = CollectorActor(replace(PLAN, agent=dumps_for_worker(agent(TWO))))
    assert actor.call("build")[0]
    well, error = actor.call("rollout", 0)
    actor.close()
    assert not well
    place = r"\(in collector 1 on this machine, whose first environment is 3\)"
    with pytest.raises(kind, match=f"{said}.*{place}"):
        raise unpack_error(error)


class Planning(Thinker):
    def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
        raise WorkerDiedError([5, 6], 1234, -9, "step")


def test_an_error_of_a_larger_vec_env_that_an_agent_has_is_told() -> None:
    actor = CollectorActor(replace(PLAN, agent=dumps_for_worker(Planning(TWO))))
    assert actor.call("build")[0]
    well, error = actor.call("rollout", 0)
    actor.close()
    assert not well
    with pytest.raises(WorkerDiedError, match=r"(?s)SIGKILL.*It ran in collector 1"):
        raise unpack_error(error)


def test_results_have_the_version_of_the_weights_that_played() -> None:
    actor = CollectorActor(replace(PLAN, agent=dumps_for_worker(Weighing()), version=3))
    assert actor.call("build")[0]
    found = [actor.call("rollout", 0)]
    actor.call("update", dumps_for_worker({"weight": torch.ones(2)}), 4)
    # The first one again, after an interrupt.
    found += [actor.call("rollout", turn) for turn in (0, 1)]
    actor.close()
    assert [results["version"] for _, results in found] == [3, 3, 4]
    assert [results["values"].max() for _, results in found] == [0, 0, 1]


LOST = ActorLostError("lost")


def pool_of_one(replies: list[Any]) -> CollectorActorPool:
    """Return a pool of one collector, whose cluster has these replies."""

    def get(*_: Any) -> Any:
        reply = replies.pop(0) if replies else (True, None)
        if reply is LOST:
            raise LOST
        return reply

    actor = SimpleNamespace(call="call")
    cluster: Any = SimpleNamespace(
        **{"alive": True, "start": lambda *_: actor, "kill": lambda _: None},
        **{"call": lambda *_: "ref", "get": get, "put": lambda value: value},
    )
    pool = CollectorActorPool(cluster, ActorOptions(), [PLAN], None)
    pool.start()
    return pool


def test_a_collector_that_is_lost_again_is_asked_again() -> None:
    built = True, (StepSpaces(None, None), [])
    pool = pool_of_one([built, LOST, built, LOST, built, (True, "saved")])
    assert pool.call_all("save", "state_dict") == ["saved"]
    assert pool._plans[0].restarts == 2


def test_an_interrupt_leaves_all_weights_old_or_all_new() -> None:
    found = set()
    for number in count():
        pool = pool_of_one([(True, (StepSpaces(None, None), []))])
        with Instant(number, [collector_pool.__file__]) as instant:
            pool.update(b"new")
        found.add((pool._plans[0].weights, pool._weights, pool.version))
        if not instant.came:
            break
    assert found == {(None, None, 0), (b"new", b"new", 1)}


class Accepting(Thinker):
    """Takes masks if there are any."""

    def get_actions_and_values(self, states: Any, actions: Any = None, masks: Any = None) -> Any:
        return super().get_actions_and_values(states, actions)


def test_masks_in_some_collectors_only_are_refused() -> None:
    played = []
    for where in (("method",), ()):
        env_fns, agent = [partial(MaskedEnv, where=where)], Accepting(TWO)
        packed = {"env_fns": dumps_for_worker(env_fns), "agent": dumps_for_worker(agent)}
        actor = CollectorActor(replace(PLAN, **packed))
        assert actor.call("build")[0]
        played.append(actor.call("rollout", 0)[1])
        actor.close()
    cpu = torch.device("cpu")
    layout = StateLayout(MaskedEnv.observation_space, torch.float32, "auto", Transfer(cpu))
    assert join_results(played[1:], layout, (), cpu)["action_masks"] is None
    with pytest.raises(ValueError, match="got none from those of collector 1"):
        join_results(played, layout, (), cpu)


def test_the_same_turn_again_is_told_again() -> None:
    actor = CollectorActor(PLAN)
    assert actor.call("build")[0]
    try:
        first, again, next_one = (actor.call("rollout", turn)[1] for turn in (0, 0, 1))
        assert (first["states"][0] == again["states"][0]).all()
        assert not (first["states"][0] == next_one["states"][0]).all()
    finally:
        actor.close()
