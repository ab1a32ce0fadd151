"""The contract: arrays in infos arrive as the environment gave them, in steps and in resets."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from comparing import assert_same
from example_envs import ReusingEnv, ScriptedEnv, plain_step

NAN_BITS = np.array([0x7FF8_0000_0000_1234, 1], np.uint64)
ONE = np.arange(3)

SCRIPTS = {
    "vectors beside numbers": [{"v": np.full(4, n), "n": n, "m": np.ones(3, bool)} for n in (1, 2)],
    "axes": [{"a": np.arange(6.0).reshape(2, 3) + n} for n in range(3)],
    "changing dtypes": [{"a": np.ones(3, d)} for d in ("i4", "i4", "f4", "f4", "?", "u1")],
    "changing shapes": [{"a": np.zeros(n), "b": n} for n in (1, 1, 2, 2, 1, 0, 3, 4, 5, 5)],
    "one array in all infos": [{"a": ONE, "b": ONE}],
    "gaps": [{"a": np.arange(10)[::3], "b": np.arange(6).reshape(2, 3)[:, ::-1]}],
    "no elements": [{"a": np.zeros(0), "b": np.zeros((2, 0), bool)}, {"a": np.zeros((0, 3))}],
    "no axes": [{"a": np.array(5)}, {"a": np.array(0.5)}, {"a": 5}, {"a": np.array(5)}],
    "keys that come and go": [{"a": ONE}, {"b": ONE, "a": ONE + 1}, {}, {"a": 1}, {"b": ONE}],
    "more than there is room for": [{"a": np.full(3000, n), "b": np.full(9, n)} for n in (1, 2)],
    "bits of NaN": [{"a": NAN_BITS.view(float)}, {"a": -NAN_BITS.view(float)}],
    "Fortran order": [{"a": np.asfortranarray(np.arange(6).reshape(2, 3) + n)} for n in (1, 2)],
    "another byte order": [{"a": np.arange(3, dtype=d)} for d in (">i4", ">i4", "<i4", "<i4")],
    "dates": [{"a": np.array(["2020-01-01", "NaT"], "M8[D]")}],
    "structured": [{"a": np.array([(1.5, n)], [("x", "f4"), ("n", "u1")])} for n in (1, 2)],
    "strings": [{"a": np.array(["ab", "c"])}, {"a": np.array(["abc", "c"])}],
    "complex": [{"a": np.array([1 + 2j])}],
    "objects": [{"a": np.array([None, {"x": 1}], object), "b": ONE}],
    "masked": [{"a": np.ma.array([1, 2], mask=[True, False]), "b": ONE}],
}


def envs_that_give(make, scripts, **options):
    envs = make([partial(ScriptedEnv, steps=s, resets=s) for s in scripts], **options)
    envs.reset()
    return envs


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_an_array_arrives_as_the_environment_gave_it(make_either, script):
    scripts = [script[i % len(script) :] + script[: i % len(script)] for i in range(3)]
    envs = envs_that_give(make_either, scripts)
    keeps_order = make_either.backend.name != "remote"  # in a message all arrays have C's
    for step in range(len(script) + 2):
        infos = envs.step([0] * 3)[4]
        for i, own in enumerate(scripts):
            expected = own[step % len(own)]
            assert_same(infos[i], expected, f"step {step}, infos[{i}]")
            for key, value in expected.items():
                if type(value) is np.ndarray and value.flags.forc and keeps_order:
                    assert infos[i][key].flags.fnc == value.flags.fnc
    for count in range(2):
        infos = envs.reset()[1]
        for i, own in enumerate(scripts):
            assert_same(infos[i], own[(count + 1) % len(own)], f"reset {count}, infos[{i}]")


@pytest.mark.everywhere
def test_arrays_come_with_the_infos_of_resets_and_of_ends(make):
    steps = [plain_step(terminated=n == 2, info={"mask": np.full(3, n)}) for n in range(3)]
    envs = make([partial(ScriptedEnv, steps, [{"mask": np.full(3, 7)}])] * 5)
    _, infos = envs.reset()
    assert_same(infos.column("mask")[0], np.full((5, 3), 7))
    for n in (0, 1, 2, 0):
        infos = envs.step([0] * 5)[4]
        assert_same(infos[4]["mask"], np.full(3, n))
        assert ("reset_info" in infos[4]) == (n == 2)
        if n == 2:
            assert_same(infos[4]["reset_info"], {"mask": np.full(3, 7)})
    _, infos = envs.reset(env_ids=[3, 1])
    assert_same(infos.column("mask")[0], np.full((2, 3), 7))


@pytest.mark.everywhere
def test_a_column_of_arrays_of_a_kind_is_one_array(make):
    script = [
        [{"n": i, "a": np.full((2, 3), i, np.float32)} if i % 2 == 0 else {"n": i}]
        for i in range(5)
    ]
    values, given = envs_that_give(make, script).step([0] * 5)[4].column("a")
    assert given.tolist() == [True, False, True, False, True]
    assert (values.dtype, values.shape) == (np.float32, (5, 2, 3))
    assert [value.max() for value in values] == [0, 0, 2, 0, 4]
    values[:] = 9


@pytest.mark.everywhere
def test_what_is_written_to_an_array_afterwards_changes_no_info(make):
    envs = make([partial(ReusingEnv, (9,))] * 5)
    held = [envs.reset()[1]]
    held += [envs.step([step] * 5)[4] for step in (21, 22, 23)]
    columns = [infos.column("trail")[0] for infos in held]
    for infos in held:
        assert infos[2]["trail"].flags.writeable
        infos[2]["trail"][:] = 99
    for step, (infos, column) in enumerate(zip(held, columns, strict=True)):
        expected = np.array([1, step, 20 + step if step else -1], np.float32)
        assert_same(column, np.stack([expected] * 5))
        assert_same(infos[3]["trail"], expected)
        assert_same(infos.column("trail")[0], column)


@pytest.mark.everywhere
def test_arrays_are_received_with_their_environments(make):
    script = [[{"a": np.full(3, 10 * i + n)} for n in range(4)] for i in range(5)]
    envs = make([partial(ScriptedEnv, s, [{"a": np.full(3, -1)}]) for s in script])
    envs.async_reset()
    batch = envs.recv(min_envs=5)
    assert_same(batch.infos.column("a")[0], np.full((5, 3), -1))
    for n in range(3):
        envs.send([0] * 5, np.arange(5))
        done = []
        while len(done) < 5:
            batch = envs.recv()
            done += batch.env_ids.tolist()
            expected = np.stack([np.full(3, 10 * i + n) for i in batch.env_ids.tolist()])
            assert_same(batch.infos.column("a")[0], expected)


@pytest.mark.everywhere
def test_with_little_room_infos_are_the_same(make_local):
    script = [{"a": np.full(4, n), "b": np.full(3, n), "n": n} for n in range(3)]
    for info_bytes in (0, 1, 40, 64):
        envs = envs_that_give(make_local, [script] * 3, info_bytes=info_bytes)
        for n in range(3):
            assert_same(list(envs.step([0] * 3)[4]), [script[n]] * 3)


@pytest.mark.parametrize("wrong", [-1, 1.5, None, "64", True])
def test_room_for_arrays_is_a_number_of_bytes(make_local, wrong):
    with pytest.raises(ValueError, match=r"info_bytes: expected an int of at least 0, got"):
        make_local([ReusingEnv], info_bytes=wrong)
