"""Workers that are lost are replaced, and training goes on: what the caller sees of it."""

from __future__ import annotations

import logging
import os
import time
from functools import partial

import numpy as np
import pytest
from example_envs import EchoEnv
from faulty_envs import ENDINGS, HANGS, FaultyEnv, kill
from gymnasium import spaces
from interrupts import interrupt_after
from leftovers import is_running

from xuance_envs import (
    DummyVecEnv,
    EnvError,
    EnvStates,
    Gym_Env,
    StateError,
    SubprocVecEnv,
    VecEnvError,
    WorkerDiedError,
    WorkerTimeoutError,
)

LOSSES = {**ENDINGS, **HANGS, "raises": None}


def make(env_fns, **options):
    """Two environments in each worker, and another worker for each that is lost."""
    defaults = {
        "context": "forkserver",
        "in_series": 2,
        "step_timeout": 1.0,
        "start_timeout": 20,
        "on_worker_failure": "restart",
        "restart_on_exception": True,
    }
    return SubprocVecEnv(env_fns, **{**defaults, **options})


def faulty(place, fault, path, *, at=2, n=6, **keywords):
    """Functions that make environments, of which one commits a fault."""
    env_fns = [FaultyEnv] * n
    env_fns[at] = partial(FaultyEnv, place, fault, path / "fault", **keywords)
    return env_fns


def copied(result):
    """What a step returned, with plain dicts."""
    return *result[:-1], [dict(info) for info in result[-1]]


def assert_same_envs(result, expected, envs):
    """Raises unless two steps returned the same for some environments."""
    for mine, its in zip(result[:-1], expected[:-1], strict=True):
        assert (mine[envs] == its[envs]).all()
    for env in envs:
        mine, its = dict(result[-1][env]), dict(expected[-1][env])
        assert np.array_equal(mine.pop("reset_obs", None), its.pop("reset_obs", None))
        assert mine == its


# --- lost in a step -----------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("place", ["step", "auto-reset"])
def test_a_step_that_loses_a_worker_truncates_its_episodes(loss, place, tmp_path):
    """Step 3 for the one, which has made 2; the end of an episode of 5 steps for the other."""
    after = 2 if place == "step" else 5
    envs = make(faulty(place, loss, tmp_path, after=after))
    reference = DummyVecEnv([FaultyEnv] * 6)
    others = [0, 1, 4, 5]
    with envs, reference:
        pids = envs.pids
        last, _ = envs.reset(seed=7)
        reference.reset(seed=7)
        for number in range(1, 15):
            result, expected = copied(envs.step([0] * 6)), reference.step([0] * 6)
            assert_same_envs(result, expected, others)
            if number == (3 if place == "step" else 5):
                lost = result
                break
            last = result[0]
        obs, rewards, terminated, truncated, infos = lost
        assert obs[2:4].tolist() == last[2:4].tolist()
        assert rewards[2:4].tolist() == [0, 0]
        assert terminated[2:4].tolist() == [False, False]
        assert truncated[2:4].tolist() == [True, True]
        for i in (2, 3):
            assert infos[i]["worker_restarted"] is True
            assert infos[i]["steps"] == number - 1
            assert infos[i]["episodes"] == 1
            assert infos[i]["reset_obs"][0] == 0
            assert infos[i]["reset_info"] == {"steps": 0, "episodes": 1}
        assert envs.pids[0] == pids[0]
        assert envs.pids[1] != pids[1]
        assert not is_running(pids[1])
        for number in range(1, 12):
            result, expected = copied(envs.step([0] * 6)), reference.step([0] * 6)
            assert_same_envs(result, expected, others)
            assert [info["steps"] for info in result[-1][2:4]] == [number] * 2
            assert "worker_restarted" not in result[-1][2]


def test_after_an_episodes_end_the_last_known_observation_is_the_first_of_the_next():
    with make([partial(FaultyEnv, length=2)] * 2) as envs:
        envs.reset(seed=1)
        envs.step([0, 0])
        infos = envs.step([0, 0])[4]
        first = [info["reset_obs"].tolist() for info in infos]
        kill(envs, 0)
        obs, _, terminated, truncated, infos = envs.step([0, 0])
        assert obs.tolist() == first
        assert (terminated.any(), truncated.all()) == (False, True)
        assert [info["steps"] for info in infos] == [2, 2]
        assert [info["episodes"] for info in infos] == [2, 2]


def test_a_worker_lost_in_its_first_step_shows_what_the_reset_did():
    with make([FaultyEnv] * 2) as envs:
        for _ in range(2):  # before the second reset, there are results of a step
            obs, before = envs.reset(seed=1)
            kill(envs, 0)
            obs_after, _, _, truncated, infos = envs.step([0, 0])
            assert truncated.all()
            assert obs_after.tolist() == obs.tolist()
            assert [info["episodes"] for info in infos] == [info["episodes"] for info in before]
            envs.step([0, 0])


SPACES = {
    "dict": spaces.Dict(box=spaces.Box(-1, 1, (3,), np.float32), number=spaces.Discrete(9)),
    "tuple": spaces.Tuple((spaces.Box(0, 255, (2, 2), np.uint8), spaces.Discrete(9))),
    "text": spaces.Text(9),
    "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), None),
    "sequence": spaces.Sequence(spaces.Discrete(5)),
    "text within a dict": spaces.Dict(text=spaces.Text(9), box=spaces.Box(-1, 1, (3,))),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize("steps", [0, 2, 3])
def test_the_last_known_observation_is_known_for_every_space(space, steps):
    """Episodes have three steps."""
    with make([partial(EchoEnv, space)] * 2) as envs:
        envs.reset(seed=3)
        known = [str(copy_of_row(space, envs.buf_obs, i)) for i in range(2)]
        for _ in range(steps):
            infos = envs.step([0, 0])[4]
            known = [
                str(infos[i].get("reset_obs", copy_of_row(space, envs.buf_obs, i)))
                for i in range(2)
            ]
        kill(envs, 0)
        _, _, _, truncated, infos = envs.step([0, 0])
        assert truncated.all()
        assert [str(copy_of_row(space, envs.buf_obs, i)) for i in range(2)] == known
        assert all(space.contains(info["reset_obs"]) for info in infos)
        for _ in range(4):
            envs.step([0, 0])


def copy_of_row(space, batch, i):
    """One environment's observation out of a batch."""
    if isinstance(space, spaces.Dict):
        return {key: batch[key][i] for key in space.spaces}
    if isinstance(space, spaces.Tuple):
        return tuple(part[i] for part in batch)
    return batch[i]


def test_infos_that_were_no_numbers_are_not_remembered():
    class Telling(FaultyEnv):
        def step(self, action):
            *rest, info = super().step(action)
            return *rest, {**info, "text": "x", "flag": True, "half": np.float32(0.5)}

    with make([Telling] * 2) as envs:
        envs.reset()
        envs.step([0, 0])
        kill(envs, 0)
        infos = envs.step([0, 0])[4]
        kept = {key: infos[0][key] for key in infos[0] if not key.startswith("reset")}
        assert kept == {
            "steps": 1,
            "episodes": 1,
            "flag": True,
            "half": np.float32(0.5),
            "worker_restarted": True,
        }
        assert type(kept["half"]) is np.float32
        values, mask = infos.column("worker_restarted")
        assert (values.tolist(), mask.tolist()) == ([True, True], [True, True])


@pytest.mark.parametrize("copy", [True, False])
def test_without_copying_it_is_the_same(copy):
    with make([FaultyEnv] * 4, copy=copy) as envs:
        envs.reset(seed=2)
        before = np.array(envs.step([0] * 4)[0])
        kill(envs, 0)
        obs, rewards, _, truncated, _ = envs.step([0] * 4)
        assert (obs[:2] == before[:2]).all()
        assert rewards.tolist() == [0, 0, 1, 1]
        assert truncated.tolist() == [True, True, False, False]
        assert envs.step([0] * 4)[0][:, 0].tolist() == [1, 1, 3, 3]


def test_several_workers_may_be_lost_at_once():
    with make([FaultyEnv] * 8) as envs:
        envs.reset(seed=0)
        envs.step([0] * 8)
        for worker in (0, 2, 3):
            kill(envs, worker)
        _, _, _, truncated, _ = envs.step([0] * 8)
        assert truncated.tolist() == [True, True, False, False, True, True, True, True]
        assert envs.step([0] * 8)[0][:, 0].tolist() == [1, 1, 3, 3, 1, 1, 1, 1]


@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_so_it_is_with_other_ways_to_start(context):
    with make([FaultyEnv] * 4, context=context) as envs:
        envs.reset(seed=0)
        kill(envs, 1)
        assert envs.step([0] * 4)[3].tolist() == [False, False, True, True]
        assert envs.step([0] * 4)[0][:, 0].tolist() == [2, 2, 1, 1]


# --- lost in something else ---------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["is killed", "raises"])
def test_lost_in_a_reset_they_are_reset_all_the_same(loss, tmp_path):
    with make(faulty("reset", loss, tmp_path)) as envs:
        obs, infos = envs.reset(seed=5)
        assert obs[:, 0].tolist() == [0] * 6
        assert [info["episodes"] for info in infos] == [1] * 6
        assert not envs.step([0] * 6)[3].any()


def test_lost_in_a_reset_of_some_the_next_step_truncates(tmp_path):
    """They are those that had been lost, and the worker cannot step without any of them."""
    with make([FaultyEnv] * 4) as envs:
        envs.reset(seed=5)
        before = envs.step([0] * 4)[0]
        kill(envs, 0)
        obs, _ = envs.reset(env_ids=[1, 3])
        assert obs[:, 0].tolist() == [0, 0]
        after, _, _, truncated, infos = envs.step([0] * 4)
        assert truncated.tolist() == [True, True, False, False]
        assert after[0].tolist() == before[0].tolist()
        assert after[1].tolist() == obs[0].tolist()
        assert infos[0]["worker_restarted"]
        assert envs.step([0] * 4)[0][:, 0].tolist() == [1, 1, 3, 2]


def test_lost_before_a_reset_of_all_nothing_is_truncated():
    with make([FaultyEnv] * 4) as envs:
        envs.reset(seed=5)
        kill(envs, 1)
        envs.reset()
        obs, _, _, truncated, _ = envs.step([0] * 4)
        assert obs[:, 0].tolist() == [1] * 4
        assert not truncated.any()


COMMANDS = {
    "call": lambda envs: envs.call("method"),
    "get_attr": lambda envs: envs.get_attr("attribute"),
    "set_attr": lambda envs: envs.set_attr("attribute", 3),
    "render": lambda envs: envs.render(),
}


@pytest.mark.parametrize("loss", ["is killed", "hangs in C"])
@pytest.mark.parametrize("command", COMMANDS)
def test_lost_in_another_command_that_is_an_error_and_it_goes_on(command, loss, tmp_path):
    """How far the command came is not known, so it is not given again."""
    with make(faulty(command, loss, tmp_path)) as envs:
        envs.reset(seed=1)
        before = envs.step([0] * 6)[0]
        with pytest.raises((WorkerDiedError, WorkerTimeoutError)) as caught:
            COMMANDS[command](envs)
        assert caught.value.restarted
        assert "a new worker replaces it" in str(caught.value)
        assert not envs.closed
        COMMANDS[command](envs)
        obs, _, _, truncated, infos = envs.step([0] * 6)
        assert truncated.tolist() == [False, False, True, True, False, False]
        assert obs[2:4].tolist() == before[2:4].tolist()
        assert infos[2]["worker_restarted"]
        assert obs[[0, 1, 4, 5], 0].tolist() == [2] * 4


@pytest.mark.parametrize("command", COMMANDS)
def test_lost_before_another_command_they_are_reset_and_do_it(command):
    with make([FaultyEnv] * 4) as envs:
        envs.reset(seed=1)
        envs.step([0] * 4)
        kill(envs, 1)
        assert len(COMMANDS[command](envs) or [0] * 4) == 4
        assert envs.get_attr("episodes") == (1,) * 4
        assert envs.step([0] * 4)[3].tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    "save", [lambda envs: envs.save_state(), lambda envs: envs.clone_state(2, 0)]
)
def test_lost_before_it_is_saved_there_is_no_state_until_it_is_truncated(save):
    """Its last observation is one of the lost episode, and the new environment is in another."""
    with make([FaultyEnv] * 4) as envs:
        envs.reset(seed=1)
        last = envs.step([0] * 4)[0]
        kill(envs, 1)
        for _ in range(2):
            with pytest.raises(StateError, match=r"environment 2 .* the next step will truncate"):
                save(envs)
        envs.save_state([0, 1])
        obs, _, _, truncated, infos = envs.step([0] * 4)
        assert truncated.tolist() == [False, False, True, True]
        assert obs[2:].tolist() == last[2:].tolist()
        first = infos[2]["reset_obs"].tolist()
        save(envs)
        assert envs.load_state(envs.save_state())[0][2].tolist() == first


def test_an_exception_in_another_command_loses_nothing(tmp_path):
    with make(faulty("call", "raises", tmp_path)) as envs:
        pids = envs.pids
        envs.reset()
        with pytest.raises(EnvError, match="as told"):
            envs.call("method")
        assert not envs.step([0] * 6)[3].any()
        assert envs.pids == pids


def test_an_exception_is_no_loss_unless_asked_for(tmp_path):
    envs = make(faulty("step", "raises", tmp_path), restart_on_exception=False)
    envs.reset()
    with pytest.raises(EnvError, match="environment 2 failed in 'step': ValueError: as told"):
        envs.step([0] * 6)
    assert envs.closed


@pytest.mark.parametrize("loss", ["is killed", "waits", "raises"])
def test_a_new_worker_may_be_lost_while_it_starts(loss, tmp_path):
    """The first time for good; then the environments that take over fail twice to be made."""

    class Unlucky(FaultyEnv):
        def __init__(self, path):
            is_first = not path.exists()
            path.touch()
            super().__init__("construct", loss, None if is_first else path, times=2)

        def commit_at(self, place):
            if self.path is not None:
                super().commit_at(place)

    env_fns = [partial(Unlucky, tmp_path / "one"), partial(Unlucky, tmp_path / "other")]
    with make(env_fns, start_timeout=1.0) as envs:
        envs.reset()
        envs.step([0, 0])
        kill(envs, 0)
        assert envs.step([0, 0])[3].all()
        assert envs.step([0, 0])[0][:, 0].tolist() == [1, 1]


def test_a_constructor_that_fails_for_a_restart_closes_unless_asked_otherwise(tmp_path):
    class Once(FaultyEnv):
        def __init__(self):
            super().__init__()
            os.close(os.open(tmp_path / "made", os.O_CREAT | os.O_EXCL))

    envs = make([Once], restart_on_exception=False)
    envs.reset()
    kill(envs, 0)
    for _ in range(2):  # what is no step and no reset leaves it usable
        with pytest.raises(EnvError, match="environment 0 failed in 'construct': FileExistsError"):
            envs.get_attr("level")
    with pytest.raises(EnvError, match="environment 0 failed in 'construct': FileExistsError"):
        envs.step([0])
    assert envs.closed


# --- send and recv ------------------------------------------------------------------------------


def test_lost_after_being_sent_it_is_received_truncated():
    with make([FaultyEnv] * 4) as envs:
        envs.async_reset(seed=1)
        first = envs.recv(4)
        kill(envs, 1)
        envs.send([0] * 4, range(4))
        batch = envs.recv(4)
        assert batch.truncated.tolist() == [False, False, True, True]
        assert batch.obs[2:].tolist() == first.obs[2:].tolist()
        assert batch.rewards.tolist() == [1, 1, 0, 0]
        assert [batch.infos[i]["reset_obs"][0] for i in (2, 3)] == [0, 0]
        assert [info.get("worker_restarted", False) for info in batch.infos] == [0, 0, 1, 1]
        envs.send([0] * 4, range(4))
        assert envs.recv(4).obs[:, 0].tolist() == [2, 2, 1, 1]


def test_lost_while_half_of_its_environments_are_sent_it_is_truncated_when_all_are():
    with make([FaultyEnv] * 4) as envs:
        envs.async_reset(seed=1)
        envs.recv(4)
        envs.send([0, 0, 0], [0, 1, 2])
        kill(envs, 1)
        assert envs.recv().env_ids.tolist() == [0, 1]
        envs.send([0], [3])
        batch = envs.recv()
        assert (batch.env_ids.tolist(), batch.truncated.tolist()) == ([2, 3], [True, True])


def test_lost_in_an_async_reset_it_is_reset_all_the_same(tmp_path):
    with make(faulty("reset", "is killed", tmp_path)) as envs:
        envs.async_reset(seed=1)
        batch = envs.recv(6)
        assert batch.obs[:, 0].tolist() == [0] * 6
        assert not batch.truncated.any()


def test_a_recv_that_times_out_meanwhile_may_be_called_again():
    class Slow(FaultyEnv):
        def __init__(self):
            super().__init__()
            time.sleep(0.5)

    with make([Slow] * 2) as envs:
        envs.async_reset(seed=1)
        envs.recv(2)
        kill(envs, 0)
        envs.send([0, 0], [0, 1])
        with pytest.raises(WorkerTimeoutError, match="no reply from environments 0, 1 within"):
            envs.recv(timeout=0.1)
        assert envs.recv(2).truncated.all()


# --- how often ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["exits", "waits", "raises"])
def test_there_may_be_so_many_restarts_and_no_more(loss, tmp_path, caplog):
    envs = make(faulty("step", loss, tmp_path, times=99), max_restarts=2, step_timeout=0.3)
    envs.reset()
    with caplog.at_level(logging.INFO, logger="xuance_envs"):
        for _ in range(2):
            assert envs.step([0] * 6)[3].tolist() == [False, False, True, True, False, False]
        pids = envs.pids
        with pytest.raises(VecEnvError, match="no restarts left: max_restarts=2 reached"):
            envs.step([0] * 6)
    assert envs.closed
    assert not any(map(is_running, pids))
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [text.split(":")[0] for text in warnings] == [f"restart {k} (at most 2)" for k in (1, 2)]


def test_a_call_with_no_restart_left_closes(tmp_path):
    envs = make(faulty("call", "exits", tmp_path, times=9), max_restarts=1)
    for restarted in (True, False):
        with pytest.raises(WorkerDiedError) as caught:
            envs.call("method")
        assert caught.value.restarted is restarted
    assert "no restarts left" in str(caught.value)
    assert envs.closed


def test_there_may_be_any_number_of_restarts():
    with make([FaultyEnv] * 2, max_restarts=None) as envs:
        envs.reset()
        for _ in range(5):
            kill(envs, 0)
            assert envs.step([0, 0])[3].all()


def test_wrong_options_are_refused():
    for options, message in (
        ({"on_worker_failure": "retry"}, "expected 'raise', 'restart' or 'resume', got 'retry'"),
        ({"max_restarts": -1}, "max_restarts: expected an int of at least 0, got -1"),
        ({"max_restarts": float("nan")}, "max_restarts: expected an int of at least 0, got nan"),
        ({"on_worker_failure": "raise"}, "expected .* with restart_on_exception=True"),
        ({"step_timeout": 0}, "step_timeout: expected a positive number"),
        ({"step_timeout": "5"}, "step_timeout: expected a positive number or None, got '5'"),
    ):
        with pytest.raises(ValueError, match=message):
            make([FaultyEnv], **options)


# --- seeds, attributes, the others --------------------------------------------------------------


def test_attributes_that_were_set_are_set_again():
    with make([FaultyEnv] * 4) as envs:
        envs.set_attr("level", [1, 2, 3, 4])
        envs.set_attr("level", 9, env_ids=[3])
        envs.set_attr("mark", "x")
        envs.reset()
        kill(envs, 1)
        envs.step([0] * 4)
        assert envs.get_attr("level") == (1, 2, 3, 9)
        assert envs.get_attr("mark") == ("x",) * 4


class StagedEnv(FaultyEnv):
    """Environment whose stage also sets its level."""

    @property
    def stage(self):
        return self.level // 10

    @stage.setter
    def stage(self, stage):
        self.level = 10 * stage


def test_attributes_are_set_again_in_the_order_in_which_they_were_set_last():
    with make([StagedEnv] * 2) as envs:
        for name, value in ("level", 5), ("stage", 3), ("level", 32):
            envs.set_attr(name, value)
        envs.reset()
        kill(envs, 0)
        envs.step([0] * 2)
        assert envs.get_attr("level") == (32, 32)


def test_seeds_are_derived_anew_and_alike():
    def seeds():
        with make([FaultyEnv] * 4, env_seed=100) as envs:
            envs.reset(seed=[10, 11, 12, 13])
            for _ in range(2):
                kill(envs, 1)
                envs.step([0] * 4)
                yield envs.get_attr("env_seed"), envs.get_attr("seeds")

    first, second = seeds()
    for env_seeds, reset_seeds in (first, second):
        assert env_seeds[:2] == (100, 101)
        assert reset_seeds[:2] == ([10], [11])
    drawn = {env_seed for env_seeds, _ in (first, second) for env_seed in env_seeds[2:]}
    drawn |= {seed for _, reset_seeds in (first, second) for (seed,) in reset_seeds[2:]}
    assert len(drawn) == 8
    assert not drawn & {100, 101, 102, 103, 10, 11, 12, 13}
    assert list(seeds()) == [first, second]


def test_a_reset_without_a_seed_that_loses_a_worker_derives_it_from_the_last_one():
    with make([FaultyEnv] * 4) as envs:
        envs.reset(seed=10)
        kill(envs, 1)
        envs.reset()
        lost = envs.get_attr("seeds")[2:]
    assert None not in [seed for (seed,) in lost]
    assert len({12, 13, *(seed for (seed,) in lost)}) == 4


def test_environments_never_seeded_are_not_seeded_by_a_restart():
    with make([FaultyEnv] * 2) as envs:
        draws = [envs.reset()[0][:, 1].tolist()]
        kill(envs, 0)
        infos = envs.step([0, 0])[4]
        draws.append([info["reset_obs"][1] for info in infos])
        assert envs.get_attr("seeds") == ([None], [None])
    assert len({*draws[0], *draws[1]}) == 4


@pytest.mark.parametrize("caller_steps", [False, True])
def test_the_others_never_know(caller_steps):
    """Their trajectories are those of a run without any loss, also those of the caller's own."""
    with (
        make([FaultyEnv] * 6, caller_steps=caller_steps) as envs,
        DummyVecEnv([FaultyEnv] * 6) as reference,
    ):
        envs.reset(seed=3)
        reference.reset(seed=3)
        for step in range(40):
            if step % 10 == 4:
                kill(envs, 0)
            result, expected = copied(envs.step([0] * 6)), reference.step([0] * 6)
            assert_same_envs(result, expected, [2, 3, 4, 5])
            assert result[3][:2].all() == (step % 10 == 4)


def test_the_callers_own_share_is_not_covered(tmp_path):
    envs = make(faulty("step", "raises", tmp_path, at=5), caller_steps=True)
    envs.reset()
    with pytest.raises(EnvError, match="environment 5 failed in 'step'"):
        envs.step([0] * 6)
    assert envs.closed


# --- interrupts ---------------------------------------------------------------------------------


def test_an_interrupted_restart_goes_on():
    class Slow(FaultyEnv):
        def __init__(self):
            super().__init__()
            time.sleep(0.3)

    for command in ("step", "reset", "call"):
        with make([Slow] * 2, in_series=1) as envs:
            envs.reset(seed=1)
            envs.step([0, 0])
            kill(envs, 0)
            act = {
                "step": lambda envs=envs: envs.step([0, 0]),
                "reset": lambda envs=envs: envs.reset(),
                "call": lambda envs=envs: envs.call("method"),
            }[command]
            with interrupt_after(0.15), pytest.raises(KeyboardInterrupt):
                act()
            if command == "step":
                assert envs.step_wait()[3].tolist() == [True, False]
            else:
                act()
            assert envs.step([0, 0])[0][1, 0] == {"step": 3, "reset": 1, "call": 2}[command]


def test_closed_within_a_restart_nothing_is_left():
    class Slow(FaultyEnv):
        def __init__(self):
            super().__init__()
            time.sleep(0.3)

    for _ in range(5):
        envs = make([Slow] * 2, in_series=1)
        envs.reset()
        kill(envs, 0)
        with interrupt_after(0.1), pytest.raises(KeyboardInterrupt):
            envs.step([0, 0])
        pids = envs.pids
        envs.close()
        assert not any(map(is_running, pids))


# --- what states have of it ---------------------------------------------------------------------


def restarted(envs, worker):
    """The first observations of the episodes that follow a worker's loss."""
    kill(envs, worker)
    infos = envs.step([0] * envs.num_envs)[-1]
    return {
        env: info["reset_obs"].tolist() for env, info in enumerate(infos) if "reset_obs" in info
    }


def cart_pole():
    return Gym_Env("CartPole-v1")


def test_a_loaded_run_restarts_with_the_seeds_of_the_saved_one():
    with make([cart_pole] * 4) as envs, make([cart_pole] * 4, in_series=4) as others:
        envs.reset(seed=7)
        others.reset(seed=90)
        first = restarted(envs, 0)
        state = EnvStates.from_bytes(envs.save_state().to_bytes())
        second = restarted(envs, 0)
        assert first.keys() == second.keys() == {0, 1}
        assert first[0] != second[0]
        expected = {**second, **restarted(envs, 1)}
        others.load_state(state)
        assert restarted(others, 0) == expected
        envs.load_state(state)
        assert restarted(envs, 0) == second
        envs.load_state(state[1], env_ids=[3])
        assert restarted(envs, 1)[3] == second[1]


def test_clones_restart_with_the_seeds_of_their_source():
    with make([cart_pole] * 4) as envs:
        envs.reset(seed=7)
        envs.clone_state(0, 2)
        envs.clone_state(1, 3, fork_rng=True)
        first, second = restarted(envs, 0), restarted(envs, 1)
        assert first[0] == second[2]
        assert first[1] != second[3]


def test_states_of_environments_that_are_not_restarted_leave_the_seeds(tmp_path):
    with make([cart_pole] * 2) as envs, DummyVecEnv([cart_pole] * 2) as others:
        envs.reset(seed=7)
        state = envs.save_state()
        expected = restarted(envs, 0)
        others.reset(seed=3)
        others.load_state(state)
        for each in (others.save_state(), state):
            envs.load_state(state)
            envs.load_state(each)
            assert restarted(envs, 0) == expected


@pytest.mark.parametrize("seeds", [3, (1,), ("seed", 1), (1, -1), (None, None)])
def test_seeds_that_are_none_are_refused(seeds):
    with make([cart_pole] * 2) as envs:
        envs.reset(seed=7)
        state = envs.save_state()
        with pytest.raises(StateError, match=r"expected .*seed"):
            envs.load_state(state.adding("seeds", [None, seeds]))
        envs.load_state(state)
