"""States as values, as bytes and as files."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from comparing import assert_same
from stateful_envs import Collector

from xuance_envs import DummyVecEnv, EnvStates, Gym_Env, StateError, register_state
from xuance_envs.state import file_format, unpickling
from xuance_envs.state.file_format import SavedEnv

ROOT = Path(__file__).resolve().parents[2]


def cart_poles():
    return DummyVecEnv([lambda: Gym_Env("CartPole-v1")] * 3)


@pytest.fixture(scope="module")
def state() -> EnvStates:
    with cart_poles() as envs:
        envs.reset(seed=1)
        for _ in range(5):
            envs.step([0, 1, 1])
        return envs.save_state()


def test_it_is_a_value(state: EnvStates) -> None:
    assert len(state) == 3
    assert state.nbytes == sum(state[i].nbytes for i in range(3))
    assert [len(one) for one in state] == [1, 1, 1]
    assert state[1:] == state[[1, 2]]
    assert state[1] != state[2]
    assert len({state, pickle.loads(pickle.dumps(state))}) == 1
    with pytest.raises(AttributeError, match="is immutable"):
        state.trusted = False
    with pytest.raises(IndexError):
        state[3]
    assert repr(state) == f"EnvStates(3 environments, {state.nbytes} bytes)"
    assert repr(state[0]) == f"EnvStates(1 environment, {state[0].nbytes} bytes)"


def test_bytes_and_files_hold_all_of_it(state: EnvStates, tmp_path: Path) -> None:
    read = EnvStates.from_bytes(state.to_bytes())
    assert read == state
    assert not read.trusted
    path = tmp_path / "three.xenvs"
    state.save(path)
    assert EnvStates.load(path) == state
    assert os.listdir(tmp_path) == ["three.xenvs"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    state: EnvStates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "three.xenvs"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        state.save(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["three.xenvs"]


def test_the_header_says_what_is_in_it(state: EnvStates) -> None:
    header = file_format.header_of(state.to_bytes())
    assert [env["kind"] for env in header["envs"]] == ["snapshot"] * 3
    (what,) = header["what"].values()
    assert what["is"]["id"] == "CartPole-v1"
    assert header["versions"].keys() == {"xuance_envs", "python", "numpy", "gymnasium"}


def test_a_file_cut_off_anywhere_is_an_error(state: EnvStates) -> None:
    data = state.to_bytes()
    for length in [*range(0, len(data), 97), len(data) - 1]:
        with pytest.raises(StateError, match="expected the output of EnvStates"):
            EnvStates.from_bytes(data[:length])


def test_a_changed_byte_anywhere_is_an_error(state: EnvStates) -> None:
    data = state.to_bytes()
    for place in range(0, len(data), 61):
        changed = bytearray(data)
        changed[place] ^= 0x20
        with pytest.raises(StateError):
            EnvStates.from_bytes(bytes(changed))


def forged(state: EnvStates, **changes: object) -> bytes:
    """Bytes with another header, whose checksum is right."""
    data = state.to_bytes()
    magic, version, length, _ = file_format._START.unpack_from(data)
    rest = data[file_format._START.size :]
    header = {**json.loads(rest[:length]), **changes}
    text = json.dumps(header).encode()
    rest = text + rest[length:]
    start = file_format._START.pack(magic, version, len(text), file_format._checksum(rest))
    return start + rest


@pytest.mark.parametrize(
    "changes",
    [
        {"bytes": 10},
        {"bytes": 2**40},
        {"bytes": -1},
        {"bytes": "many"},
        {"envs": 3},
        {"envs": [{}]},
        {"envs": [{"kind": "snapshot", "what": "00", "bytes": 5, "extras": {}}]},
        {"envs": [{"kind": "snapshot", "what": "zz", "bytes": -5, "extras": {}}]},
        {"shared": {"one": 10**9}},
        {"what": []},
        {"what": {"00": {"is": 1}}},
    ],
)
def test_a_header_that_lies_is_an_error(state: EnvStates, changes: dict[str, object]) -> None:
    with pytest.raises(StateError):
        EnvStates.from_bytes(forged(state, **changes))


def test_another_version_of_the_format_is_an_error(
    state: EnvStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_format, "VERSION", 2)
    data = state.to_bytes()
    monkeypatch.undo()
    with pytest.raises(StateError, match="expected format version 1, got 2"):
        EnvStates.from_bytes(data)


class Calls:
    """Calls a function when it is unpickled."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> object:
        return self.reduced


CALLED: list[str] = []


def call(what: str) -> str:
    CALLED.append(what)
    return what


HOSTILE = {
    "os.system": pickle.dumps(Calls(os.system, "true")),
    "eval": pickle.dumps(Calls(eval, "CALLED.append(1)")),
    "getattr": pickle.dumps(Calls(getattr, 1, "real")),
    "a function of ours": pickle.dumps(Calls(call, "called")),
    "import": b"cxuance_envs.state.pickling\nStatePickler\n.",
    "a dotted name": b"\x80\x05\x8c\x1bxuance_envs.state.rebuild\x8c\x0bnp.fromfile\x93.",
    "what it refers to, called": b"cxuance_envs.state.rebuild\nthere\n((I0\ntt(tR(tR.",
    "what it refers to, changed": b"cxuance_envs.state.rebuild\nthere\n((I0\ntt(tR}S'a'\nI1\nsb.",
    "a method": b"cxuance_envs.state.rebuild\nmethod\n(I1\nS'real'\ntR(tR.",
    "a persistent id": b"S'1'\nQ.",
    "an extension": b"\x80\x02\x82\x01.",
    "not a pickle": b"hello",
    "nothing": b"",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_state_is_an_error_before_anything_is_touched(
    state: EnvStates, data: bytes
) -> None:
    for envs in (
        [SavedEnv(data, state.envs[0].digest)],
        [SavedEnv(state.envs[0].env, state.envs[0].digest, False, {"seen": data})],
    ):
        written = EnvStates(envs, state.facts).to_bytes()
        with pytest.raises(StateError):
            EnvStates.from_bytes(written)
    with pytest.raises(StateError):
        EnvStates.from_bytes(EnvStates([], {}, {"wrapper": data}).to_bytes())
    assert CALLED == []


def test_classes_of_others_are_read_only_where_they_are_trusted() -> None:
    with DummyVecEnv([Collector]) as envs, DummyVecEnv([Collector]) as others:
        envs.reset(seed=1)
        data = envs.save_state().to_bytes()
        with pytest.raises(StateError, match=r"stateful_envs\.Thing.*trusted=True"):
            EnvStates.from_bytes(data)
        others.reset(seed=9)
        obs, _ = others.load_state(EnvStates.from_bytes(data, trusted=True))
        assert_same(obs, envs.buf_obs)
        assert_same(others.step([1])[0], envs.step([1])[0])


def test_what_is_harmless_is_a_short_list() -> None:
    assert len(unpickling.SAFE_CLASSES) < 40


def test_extras_travel_along(state: EnvStates) -> None:
    values = [{"mean": np.arange(3.0)}, None, ("a", 1)]
    more = state.adding("mine", values, shared={"count": 3})
    assert state.extra("mine") is None
    assert state.shared_extra("mine") is None
    read = EnvStates.from_bytes(more.to_bytes())
    assert_same(read.extra("mine"), values)
    assert read.shared_extra("mine") == {"count": 3}
    assert_same(read[[2, 0]].extra("mine"), [values[2], values[0]])


def test_extras_that_cannot_be_read_are_an_error_of_the_state() -> None:
    env = SavedEnv(b"", "0", False, {"mine": b"damaged"})
    damaged = EnvStates([env], {}, {"mine": b"damaged"})
    with pytest.raises(StateError, match="cannot read"):
        damaged.extra("mine")
    with pytest.raises(StateError, match="cannot read"):
        damaged.shared_extra("mine")


def test_another_process_goes_on_from_a_file(state: EnvStates, tmp_path: Path) -> None:
    path = tmp_path / "three.xenvs"
    state.save(path)
    script = (
        "import sys, numpy as np\n"
        "from xuance_envs import EnvStates, Gym_Env, SubprocVecEnv\n"
        "with SubprocVecEnv([lambda: Gym_Env('CartPole-v1')] * 3, in_series=2) as envs:\n"
        "    envs.reset(seed=77)\n"
        "    envs.load_state(EnvStates.load(sys.argv[1]))\n"
        "    print(b''.join(envs.step([1, 0, 1])[0].tobytes() for _ in range(40)).hex())\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    with cart_poles() as envs:
        envs.load_state(state)
        expected = b"".join(envs.step([1, 0, 1])[0].tobytes() for _ in range(40))
    assert printed.strip() == expected.hex()


def test_bytes_of_any_type_are_read_but_nothing_else() -> None:
    with DummyVecEnv([Collector]) as envs:
        envs.reset(seed=1)
        state = envs.save_state()
    data = state.to_bytes()
    for kind in (bytes, bytearray, memoryview):
        assert EnvStates.from_bytes(kind(data), trusted=True).to_bytes() == data
    for wrong in (data.hex(), None, Path("states.xenvs")):
        with pytest.raises(TypeError, match="data: expected bytes, got"):
            EnvStates.from_bytes(wrong)


@pytest.mark.parametrize("cls", ["Collector", Collector(), None], ids=["name", "object", "None"])
def test_only_classes_are_registered(cls) -> None:
    with pytest.raises(TypeError, match="cls: expected a class, got"):
        register_state(cls, vars, setattr)


def test_parts_are_chosen_by_indices_only() -> None:
    with DummyVecEnv([Collector] * 3) as envs:
        envs.reset(seed=1)
        state = envs.save_state()
    assert state[np.int64(1)] == state[1] == state[np.array([1])] == state[-2]
    assert len(state[[]]) == 0
    for index in (3, -4, [0, 3]):
        with pytest.raises(IndexError, match=r"into 3 states, got (3|-4)"):
            state[index]
    bools = [True, False, True]
    for wrong in (True, bools, np.array(bools), 1.0, [0.0], "ab", b"\0", iter([0]), None):
        with pytest.raises(
            TypeError, match="index: expected an int, a slice or a sequence of ints"
        ):
            state[wrong]
