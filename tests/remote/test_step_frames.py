"""Steps as frames: the same data as in other messages, and malformed frames are refused."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same
from gymnasium import spaces
from interrupts import Instant
from serving import SETTINGS, ServerMaker

import xuance_envs
from xuance_envs import DummyVecEnv, RemoteVecEnv
from xuance_envs.engine.data.info_batch import InfoBatch
from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.errors import RemoteError
from xuance_envs.remote.server.hosting import commands
from xuance_envs.remote.server.hosting.hosted_vec_env import HostedVecEnv
from xuance_envs.remote.wire.bounds import TooLargeError
from xuance_envs.remote.wire.formats import WireFormat, dumps, loads
from xuance_envs.remote.wire.nodes import WireError
from xuance_envs.remote.wire.step_frames import StepFrameReader
from xuance_envs.remote.wire.values import infos_from_wire


class Various(gymnasium.Env[Any, Any]):
    """Environment whose info keys, info types and episode lengths vary.

    Args:
        space: observation space.
        number: start of the variation.
        says: whether infos are not empty.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space[Any], number: int, says: bool = True) -> None:
        self.observation_space = copy.deepcopy(space)
        self.number = number
        self.says = says
        self.observation_space.seed(number)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        info = {"begun": self.number, "half": self.number % 2 / 2} if self.says else {}
        return self.observation_space.sample(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        self.number += 1
        kind = self.number // 8 % 6
        info: list[dict[str, Any]] = [
            {"count": self.count, "score": 0.25},
            {"count": float(self.count), "score": self.number % 3 == 0},
            {"count": self.count} if self.count % 2 else {},
            {"count": self.count, "words": "as they are"},
            {"count": np.float32(self.count), "row": np.arange(3.0), "on": np.array([True])},
            {"count": None, "row": np.asfortranarray(np.ones((2, 2), np.int8))},
        ]
        ends = self.number % 5 == 0
        told = info[kind] if self.says else {}
        return self.observation_space.sample(), 1.5, ends, False, told


BOX = spaces.Box(-1, 1, (3,))
SPACES = [
    BOX,
    spaces.Box(0, 255, (4, 4, 3), np.uint8),
    spaces.Dict(b=BOX, a=spaces.Discrete(4), c=spaces.Tuple([BOX, spaces.MultiBinary(2)])),
    spaces.Tuple([BOX] * 5),
    spaces.Box(-1, 1, (3,), np.dtype(">f4")),
    spaces.Dict(a=BOX, b=spaces.Text(4)),
]


CASES = [(space, True) for space in SPACES] + [(BOX, False)]


@pytest.mark.parametrize(("space", "says"), CASES, ids=str)
def test_a_frame_has_what_other_messages_have(space: spaces.Space[Any], says: bool) -> None:
    # In each step, none, one or two of the episodes end.
    functions = [partial(Various, space, number, says) for number in (0, 3, 5)]
    envs = HostedVecEnv(functions, None, SETTINGS)
    framed = described = 0
    try:
        arrays = StepArrays.allocate(StepSpaces(space, envs.action_space, None), 3)
        reader = StepFrameReader(arrays)
        envs.reset(seed=0)
        for _ in range(100):
            envs.step_async([0, 1, 0])
            answer = commands.step(envs, reader.number)
            infos = envs.buf_infos
            message = loads(dumps(answer, WireFormat.MSGPACK, 10**6), WireFormat.MSGPACK)
            if "frame" not in message:
                check_message(message, infos)
                continue
            framed += 1
            described += "columns" in message
            reader.read(message)
            source = envs._arrays
            ended = source.terminated | source.truncated
            for mine, theirs in (
                (arrays.observations.parts, source.observations.parts),
                ([arrays.rewards], [source.rewards]),
                ([arrays.terminated, arrays.truncated], [source.terminated, source.truncated]),
            ):
                assert_same(mine, theirs)
            for mine, theirs in zip(
                arrays.reset_observations.parts, source.reset_observations.parts, strict=True
            ):
                assert_same(mine[ended], theirs[ended])
            for i, info in enumerate(infos):
                assert_same(info_of(arrays.infos, reader.layouts[0], i), without_resets(info))
                if ended[i]:
                    reset_info = info_of(arrays.reset_infos, reader.layouts[1], i)
                    assert_same(reset_info, info["reset_info"])
    finally:
        envs.close()
        envs.end_workers()
    assert bool(framed) == (space not in SPACES[-2:])
    assert described <= 12, "the layout is sent only when it changes"
    assert not framed or framed > 10 * described


def info_of(arrays: Any, layout: Any, env: int) -> dict[str, Any]:
    batch = InfoBatch(arrays.first(*layout.extent), [layout], np.zeros(3, np.intp), {})
    return StepInfos(batch, np.arange(3))[env]


def without_resets(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if not key.startswith("reset_")}


def check_message(message: dict[str, Any], infos: Any) -> None:
    ended = message["resets"]["environments"]
    assert ended == [i for i, info in enumerate(infos) if "reset_info" in info]
    told = infos_from_wire(message["resets"]["infos"], len(ended))
    assert_same(told, [infos[i]["reset_info"] for i in ended])
    assert_same(
        infos_from_wire(message["infos"], len(infos)), [without_resets(info) for info in infos]
    )


def test_a_frame_is_not_larger_than_allowed() -> None:
    envs = HostedVecEnv([partial(Various, BOX, 0)], None, SETTINGS)
    try:
        envs.reset(seed=0)
        for _ in range(4):
            envs.step_async([0])
            answer = commands.step(envs, 0)
            size = len(dumps(answer, WireFormat.MSGPACK))
            assert len(dumps(answer, WireFormat.MSGPACK, size)) == size
            with pytest.raises(TooLargeError):
                dumps(answer, WireFormat.MSGPACK, size - 1)
    finally:
        envs.close()
        envs.end_workers()


# -- malformed frames -------------------------------------------------------------------


class Telling(gymnasium.Env[Any, Any]):
    """Environment whose episodes have three steps; its infos have a number and an array."""

    observation_space = spaces.Box(0, 1, (2,), bool)  # type: ignore[assignment]
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        return np.array([True, False]), {"begun": 1}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        on = np.array([True, False, True])
        return np.array([False, True]), 1.0, self.count == 3, False, {"n": self.count, "on": on}


@pytest.fixture(scope="module")
def reply() -> dict[str, Any]:
    """Reply to a step in which both episodes end."""
    envs = HostedVecEnv([Telling] * 2, None, SETTINGS)
    try:
        envs.reset()
        for _ in range(3):
            envs.step_async([0, 1])
            answer = commands.step(envs, 0)
        return loads(dumps(answer, WireFormat.MSGPACK), WireFormat.MSGPACK)
    finally:
        envs.close()
        envs.end_workers()


def new_reader() -> StepFrameReader:
    space = spaces.Box(0, 1, (2,), bool)  # type: ignore[arg-type]
    return StepFrameReader(StepArrays.allocate(StepSpaces(space, spaces.Discrete(2), None), 2))


def changed(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(reply: dict[str, Any]) -> None:
        node: Any = reply
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = to(node[path[-1]]) if callable(to) else to

    return change


def with_byte(at: int, value: int) -> Callable[[dict[str, Any]], None]:
    return changed("frame", to=lambda data: data[:at] + bytes([value]) + data[at + 1 :])


# The parts of the frame: observations 4, rewards 16, flags 4, and for the columns "begun" (of
# resets, empty here), "n" and "on": cells 48, kinds 6, arrays 6. Resets follow.
AT_FLAGS = 4 + 16
AT_KINDS = AT_FLAGS + 4 + 48
AT_ARRAYS = AT_KINDS + 6
COLUMNS = ("columns", "infos")

MALFORMED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "no bytes": (changed("frame", to="text"), "expected a frame of bytes"),
    "short": (changed("frame", to=lambda data: data[:-1]), "expected a frame of "),
    "long": (changed("frame", to=lambda data: data + b"x"), "expected a frame of "),
    "empty": (changed("frame", to=b""), "expected a frame of "),
    "an end less": (with_byte(AT_FLAGS, 0), "expected a frame of "),
    "observation": (with_byte(0, 2), "bytes 0 and 1"),
    "flag": (with_byte(AT_FLAGS, 7), "bytes 0 and 1"),
    "code": (with_byte(AT_KINDS + 2, 250), "column 'n': expected a valid kind code, got 250"),
    "array in info": (with_byte(AT_ARRAYS, 3), "bytes 0 and 1"),
    "number": (changed("layout", to=0), "layout number of at least 1"),
    "number's type": (changed("layout", to=1.0), "layout number of at least 1"),
    "columns": (changed("columns", to=[]), "expected a layout with the arrays .* got None"),
    "dtypes": (
        changed("columns", "arrays", 1, to=[">f8", [2]]),
        r"expected a layout with the arrays .*<f8.* got .*>f8",
    ),
    "shapes": (changed("columns", "arrays", 0, to=["|b1", [2, 3]]), "layout with the arrays"),
    "codes of numbers": (changed("columns", "numbers", to=["int"]), "layout with the numbers"),
    "masks": (changed("columns", "masks", to=True), "expected a frame of "),
    "keys": (changed(*COLUMNS, "keys", to=["n", "m", "n"]), "all different"),
    "key's type": (changed(*COLUMNS, "keys", to=["m", "n", 1]), "all different"),
    "no key": (changed(*COLUMNS, "keys", to=["n"]), "all different"),
    "many columns": (changed(*COLUMNS, "keys", to=[str(i) for i in range(99)]), "at most 64"),
    "start": (changed(*COLUMNS, "starts", to=[0, 0, 2**20]), "within the 16384 bytes"),
    "negative start": (changed(*COLUMNS, "starts", to=[0, 0, -16]), "within the 16384 bytes"),
    "bytes": (changed(*COLUMNS, "nbytes", to=2**40), "within the 16384 bytes"),
    "start near the end": (
        changed(*COLUMNS, "starts", to=[16, 16, 16]),
        "expected a valid kind code",
    ),
    "dtype": (changed(*COLUMNS, "kinds", to=[["object", [3], False]]), "one of the dtypes"),
    "shape": (changed(*COLUMNS, "kinds", to=[["bool", [-3], False]]), "length 0 to"),
    "large shape": (
        changed(*COLUMNS, "kinds", to=[["bool", [99], False]]),
        "expected a valid kind code",
    ),
    "kind": (changed(*COLUMNS, "kinds", to=[["bool", [3]]]), r"\[dtype, shape, fortran\]"),
    "fewer kinds": (changed(*COLUMNS, "kinds", to=[]), "expected a valid kind code"),
}


def test_the_frame_that_is_changed_is_read(reply: dict[str, Any]) -> None:
    reader = new_reader()
    reader.read(reply)
    assert reader.number == reply["layout"]
    assert_same(info_of_two(reader), [{"n": 3, "on": np.array([True, False, True])}] * 2)


def info_of_two(reader: StepFrameReader) -> list[dict[str, Any]]:
    arrays, layout = reader._arrays.infos, reader.layouts[0]
    batch = InfoBatch(arrays.first(*layout.extent), [layout], np.zeros(2, np.intp), {})
    return list(StepInfos(batch, np.arange(2)))


@pytest.mark.parametrize(("change", "error"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_frame_is_refused(
    reply: dict[str, Any], change: Callable[[dict[str, Any]], None], error: str
) -> None:
    reply = copy.deepcopy(reply)
    change(reply)
    with pytest.raises(WireError, match=error):
        new_reader().read(reply)


def test_a_frame_of_a_layout_that_was_not_sent_is_refused(reply: dict[str, Any]) -> None:
    reader = new_reader()
    reader.read(reply)
    later = {"layout": reply["layout"] + 1, "frame": reply["frame"]}
    with pytest.raises(WireError, match=f"expected layout {reply['layout']}, got "):
        reader.read(later)


# -- through a server -------------------------------------------------------------------


def make_various(**kwargs: Any) -> Various:
    return Various(BOX, 0)


def test_frames_and_other_messages_alternate(serve: ServerMaker) -> None:
    """Resets are no frames; steps with words are none either."""
    server = serve({"Various": make_various})
    with RemoteVecEnv(server.url, "Various", 3) as remote, DummyVecEnv([make_various] * 3) as local:
        for vec_env in (remote, local):
            vec_env.reset(seed=1)
        for number in range(150):
            if number % 11 == 3:
                assert_same(list(remote.reset(seed=number)[1]), list(local.reset(seed=number)[1]))
            if number % 7 == 2:
                some = [number % 3, (number + 1) % 3]
                mine, theirs = [each.reset(seed=2, env_ids=some)[1] for each in (remote, local)]
                assert_same(list(mine), list(theirs))
            mine, theirs = [each.step([0, 1, 0]) for each in (remote, local)]
            assert_same([mine[i] for i in range(4)], [theirs[i] for i in range(4)])
            assert_same(list(mine[4]), list(theirs[4]))


def test_a_reply_that_was_lost_does_not_lose_the_layout(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    with RemoteVecEnv(server.url, "CartPole", 2) as envs:
        envs.reset(seed=0)
        driver = envs._driver
        read = StepFrameReader.read

        def fail(self: StepFrameReader, reply: Any) -> None:
            monkeypatch.setattr(StepFrameReader, "read", read)
            raise WireError("broken on purpose")

        monkeypatch.setattr(StepFrameReader, "read", fail)
        with pytest.raises(RemoteError, match="broken on purpose"):
            envs.step([0, 1])
        assert driver._step_frames.number == 0


def test_a_frame_is_read_again_after_an_interrupt(reply: dict[str, Any]) -> None:
    came, number = True, 0
    while came:
        reader = new_reader()
        with Instant(number, [os.path.dirname(xuance_envs.__file__)]) as instant:
            reader.read(reply)
        assert reader.read(reply) is new_reader().read(reply), instant.place
        came, number = instant.came, number + 1
    assert number > 20


def test_a_frame_of_another_size_is_refused_with_both_sizes(reply: dict[str, Any]) -> None:
    size = len(reply["frame"])
    with pytest.raises(WireError, match=rf"a frame of {size} bytes for .*, got {size + 1}$"):
        new_reader().read({**reply, "frame": reply["frame"] + b"x"})
