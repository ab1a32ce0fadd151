"""An actor without a cluster: what goes in and what comes out, as bytes."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from xuance_envs.engine.data.info_columns import INFO_BYTES
from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.outcome import OK, Autoreset
from xuance_envs.engine.group.protocol import OUTCOME_OF_REPLY, ReplyType
from xuance_envs.engine.group.step_clock import TIMES_BYTES, StepTimes, apply_timing_delta
from xuance_envs.engine.pickled_commands import PackedCommand
from xuance_envs.engine.ray.actor import GroupActor
from xuance_envs.engine.ray.hosting import ActorPlan
from xuance_envs.engine.ray.messages import ActorCodec, pack_requests, unpack_replies
from xuance_envs.engine.serialization import dumps_for_worker, loads, unpack_error
from xuance_envs.errors import EnvError

SPACE = spaces.Dict(image=spaces.Box(0, 255, (2, 3), np.uint8), place=spaces.Discrete(9, start=-4))


class CountingEnv(gymnasium.Env[Any, Any]):
    """Shows how many steps it has made, and its last action; its episodes have three steps."""

    observation_space = SPACE
    action_space = spaces.Box(-9, 9, (2,), np.float64)

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observe(0), {"first": self.steps}

    def step(self, action: Any) -> Any:
        if action[1] < 0:
            raise ValueError("less than nothing")
        self.steps += 1
        info = {"steps": self.steps, "half": self.steps / 2}
        return self.observe(int(action[0])), action[1], self.steps % 3 == 0, False, info

    def observe(self, action: int) -> Any:
        return {"image": np.full((2, 3), self.steps, np.uint8), "place": np.int64(action)}


class Caller:
    """The other end: the arrays of five environments, of which two are the actor's."""

    def __init__(self) -> None:
        self.actor = GroupActor(ActorPlan(((2, 4),), threads=1))
        self.tag = 0
        self.all = StepArrays.allocate(StepSpaces(SPACE, CountingEnv.action_space), 5)
        self.arrays = self.all.slice(2, 4)
        self.wire = ActorCodec(self.arrays, [(2, 4)])
        self.times = bytearray(TIMES_BYTES)
        functions = dumps_for_worker([CountingEnv, CountingEnv])
        (index, description) = self.command("build", functions, [{}, {}], 2, Autoreset.SAME_STEP)[0]
        assert (index, description.observation_space) == (2, SPACE)
        self.actor.attach(dumps_for_worker(StepSpaces(SPACE, CountingEnv.action_space)))
        self.command("attach", StepSpaces(SPACE, CountingEnv.action_space), 2, INFO_BYTES, 0, 2)

    def command(self, name: str, *arguments: Any) -> Any:
        self.tag += 1
        packed = PackedCommand(name, pickle.dumps((name, arguments)))
        return self.take(self.actor.answer(self.tag, pack_requests({0: packed}, (), b"")))

    def request(self) -> bytes:
        return pack_requests({0: PackedCommand("step", b"")}, (), self.wire.actions([0]))

    def step(self, actions: Any) -> Any:
        self.tag += 1
        self.arrays.actions.parts[0][...] = actions
        return self.take(self.actor.answer(self.tag, self.request()))

    def take(self, reply: bytes) -> Any:
        (answer,), start = unpack_replies(reply, 1)
        if answer.code == ReplyType.FAILED:
            raise unpack_error(answer.payload)
        if answer.code == ReplyType.VALUE:
            return loads(answer.payload)
        assert answer.is_outcome
        apply_timing_delta(self.times, answer.timing_delta)
        end = self.wire.load_results(reply, start, {0: answer.extents})
        assert end + len(answer.payload) == len(reply)
        return OUTCOME_OF_REPLY.get(answer.code) or loads(answer.payload)


def test_a_step_is_carried_there_and_back() -> None:
    caller = Caller()
    outcome = caller.command("reset", [(0, None, None), (1, None, None)])
    assert outcome.rest.layout.keys == ("first",)
    outcome = caller.step([[1, 0.25], [-2, 0.5]])
    assert outcome.rest.layout.keys == ("first", "steps", "half")
    image, place = caller.all.observations.parts
    assert image[:, 0, 0].tolist() == [0, 0, 1, 1, 0]
    assert place.tolist() == [0, 0, 1, -2, 0]
    assert caller.all.rewards.tolist() == [0, 0, 0.25, 0.5, 0]
    assert not caller.all.terminated.any()
    steps = caller.all.infos.cells.view(np.int64)[1]
    assert steps.tolist() == [0, 0, 1, 1, 0]
    assert caller.all.infos.cells[2].tolist() == [0, 0, 0.5, 0.5, 0]
    assert (caller.all.infos.kinds[1:3] != 0).tolist() == [[False, False, True, True, False]] * 2


def test_an_end_brings_the_first_observation_of_the_next_episode() -> None:
    caller = Caller()
    caller.command("reset", [(0, None, None), (1, None, None)])
    caller.command("set_attr", [1], "steps", [2])
    assert caller.step([[1, 0], [1, 0]]).ended
    assert caller.all.terminated.tolist() == [False, False, False, True, False]
    assert caller.all.reset_observations.parts[0][:, 0, 0].tolist() == [0, 0, 0, 3, 0]
    assert caller.all.reset_infos.cells.view(np.int64)[0].tolist() == [0, 0, 0, 3, 0]
    assert not caller.step([[2, 0], [2, 0]]).ended
    assert caller.step([[3, 0], [3, 0]]).ended
    assert caller.all.terminated.tolist() == [False, False, True, False, False]
    assert caller.all.observations.parts[1].tolist() == [0, 0, 3, 3, 0]
    assert caller.all.reset_observations.parts[0][:, 0, 0].tolist() == [0, 0, 3, 3, 0]
    assert caller.all.reset_infos.cells.view(np.int64)[0].tolist() == [0, 0, 3, 3, 0]


def test_an_ordinary_step_has_nothing_pickled() -> None:
    caller = Caller()
    caller.command("reset", [(0, None, None), (1, None, None)])
    for _ in range(4):
        caller.step([[1, 0], [1, 0]])
    request = caller.request()
    reply = caller.actor.answer(77, request)
    # Per environment: an action of 16; an observation of 6 + 8, a reward of 8, two flags, and a
    # value of 8 with its kind in each of three columns.
    assert len(request) == 2 + 9 + 2 * 16 + len("step")
    assert reply[0] == ReplyType.OK
    assert len(reply) == 16 + 56 + 2 * (6 + 8 + 8 + 2 + 3 * 9)
    assert caller.take(reply) is OK


def test_the_same_request_again_or_an_earlier_one_is_answered_and_not_executed() -> None:
    caller = Caller()
    caller.command("reset", [(0, None, None), (1, None, None)])
    caller.tag += 1
    number, request = caller.tag, caller.request()
    assert caller.actor.answer(number, request) == caller.actor.answer(number, request)
    assert caller.command("get_attr", [0, 1], "steps") == [1, 1]
    caller.step([[1, 0], [1, 0]])
    caller.actor.answer(number, request)
    assert caller.command("get_attr", [0, 1], "steps") == [2, 2]


def test_an_error_names_the_environment_and_leaves_the_actor_usable() -> None:
    caller = Caller()
    caller.command("reset", [(0, None, None), (1, None, None)])
    with pytest.raises(EnvError, match="environment 3 failed in 'step': ValueError") as caught:
        caller.step([[1, 0], [1, -1]])
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(AttributeError, match=r"environment 2 .* 'nothing'"):
        caller.command("get_attr", [0], "nothing")
    assert caller.command("get_attr", [1], "steps") == [0]


def test_the_times_of_steps_come_along() -> None:
    caller = Caller()
    caller.command("reset", [(0, None, None), (1, None, None)])
    assert StepTimes.read(caller.times).steps == 0
    for _ in range(5):
        caller.step([[1, 0], [1, 0]])
    there = StepTimes.read(caller.actor._hosting._host.group.clock.memory)
    assert StepTimes.read(caller.times) == there
    assert there.steps == 5
    assert 0 < there.p50 <= there.p99
