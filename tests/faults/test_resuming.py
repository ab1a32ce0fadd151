"""Workers that are lost without a step being lost."""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same
from faulty_envs import be_killed, kill, wait
from gymnasium import spaces
from gymnasium.wrappers import RenderCollection
from stateful_envs import Collector

from xuance_envs import DummyVecEnv, EnvError, Gym_Env, StateError, SubprocVecEnv
from xuance_envs.engine.ledger import Ledger
from xuance_envs.engine.recovery import FailureRecord

N = 4


def subproc(fns: list[Any], **options: Any) -> SubprocVecEnv:
    return SubprocVecEnv(
        fns, in_series=2, context="forkserver", on_worker_failure="resume", **options
    )


@contextlib.contextmanager
def losing(
    envs: SubprocVecEnv, worker: int, command: str, often: float = math.inf
) -> Iterator[list[int]]:
    """Kills a worker before it is asked for a command, as often; the others are asked."""
    start, kills = Ledger.start, list[int]()

    def killing(ledger: Any, packed: Any) -> None:
        if len(kills) < often and packed[0][0][0] == command:
            kills.append(worker)
            kill(envs, worker)
        start(ledger, packed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "start", killing)
        yield kills


def shown(envs: Any, actions: Any) -> Any:
    obs, rewards, terminated, truncated, infos = envs.step(actions)
    told = [{k: v for k, v in info.items() if k != "worker_restarted"} for info in infos]
    restarted = ["worker_restarted" in info for info in infos]
    return (obs, rewards, terminated, truncated, told), restarted


@pytest.mark.parametrize("make", [Collector, lambda: Gym_Env("CartPole-v1")])
def test_the_caller_sees_an_exact_continuation(make: Any) -> None:
    rng = np.random.default_rng(1)
    with subproc([make] * N) as envs, DummyVecEnv([make] * N) as reference:
        assert_same(envs.reset(seed=1)[0], reference.reset(seed=1)[0])
        for step in range(120):
            killed = step in (0, 1, 7, 40, 41, 90)
            if killed:
                kill(envs, step % 2)
            if step == 60:
                envs.reset(env_ids=[1])
                reference.reset(env_ids=[1])
            actions = rng.integers(2, size=N)
            (got, restarted), (expected, _) = shown(envs, actions), shown(reference, actions)
            assert_same(got, expected)
            mine = [env // 2 == step % 2 for env in range(N)]
            assert restarted == ([env and killed for env in mine])


class Failing(gymnasium.Env[Any, Any]):
    """Fails at an action, once or whenever it is given."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(9)
    ALWAYS, ONCE, HANGS, RAISES = 5, 6, 7, 8

    def __init__(self, path: str) -> None:
        self.path = path
        self.total = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.total = 0
        return np.zeros(2), {}

    def step(self, action: Any) -> Any:
        first = not os.path.exists(self.path)
        if action >= self.ALWAYS:
            open(self.path, "w").close()
        if action == self.ALWAYS or (action == self.ONCE and first):
            be_killed()
        if action == self.HANGS and first:
            wait()
        if action == self.RAISES and first:
            raise ValueError("once")
        self.total += int(action)
        return np.array([self.total, self.np_random.random()]), 1.0, False, False, {}


@pytest.mark.parametrize(
    ("action", "options"),
    [
        (Failing.ONCE, {}),
        (Failing.HANGS, {"step_timeout": 1.0}),
        (Failing.RAISES, {"restart_on_exception": True}),
    ],
)
def test_what_fails_once_goes_on(tmp_path: Any, action: int, options: dict[str, Any]) -> None:
    path = str(tmp_path / "failed")
    with subproc([lambda: Failing(path)] * N, **options) as envs:
        envs.reset(seed=1)
        for _ in range(5):
            envs.step([1] * N)
        obs, _, _, truncated, infos = envs.step([1, 1, 1, action])
        assert obs[:, 0].tolist() == [6, 6, 6, 5 + action]
        assert not truncated.any()
        assert ["worker_restarted" in info for info in infos] == [False, False, True, True]


class Grown(gymnasium.Env[Any, Any]):
    """Observes what it was made with, which its state lacks."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(9)

    def __init__(self, env_seed: int) -> None:
        self.made_with = env_seed
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.array([0, self.made_with]), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.array([self.steps, self.made_with]), 1.0, False, False, {}

    def __env_state__(self) -> int:
        return self.steps

    def __set_env_state__(self, steps: int) -> None:
        self.steps = steps


@pytest.mark.parametrize("steps", [1, 3])
def test_what_was_restarted_is_resumed_with_its_own_seeds(tmp_path: Path, steps: int) -> None:
    with subproc([Grown] * 2, env_seed=5, record_failures=tmp_path) as envs:
        kill(envs, 0)
        made_with = envs.reset()[0][:, 1].astype(int).tolist()
        assert made_with != [5, 6]
        for _ in range(steps):
            envs.step([0] * 2)
        kill(envs, 0)
        assert envs.step([0] * 2)[0].tolist() == [[steps + 1, seed] for seed in made_with]
    (path,) = tmp_path.iterdir()
    assert FailureRecord(path).keywords == [{"env_seed": seed} for seed in made_with]


def test_what_fails_again_is_truncated(tmp_path: Any) -> None:
    path = str(tmp_path / "failed")
    with subproc([lambda: Failing(path)] * N, max_restarts=3) as envs:
        envs.reset(seed=1)
        envs.step([1] * N)
        obs, _, _, truncated, infos = envs.step([1, 1, 1, Failing.ALWAYS])
        assert truncated.tolist() == [False, False, True, True]
        assert obs[:, 0].tolist() == [2, 2, 1, 1]
        assert infos[3]["worker_restarted"]
        assert infos[3]["reset_obs"].tolist() == [0, 0]
        obs, _, _, truncated, _ = envs.step([1] * N)
        assert not truncated.any()
        kill(envs, 1)
        assert envs.step([1] * N)[0][:, 0].tolist() == [4, 4, 2, 2]


class Forgetful(Failing):
    """Goes on otherwise than it was: it counts in a file."""

    def step(self, action: Any) -> Any:
        result = super().step(action)
        with open(self.path + "-count", "a") as file:
            file.write(".")
        return np.full(2, os.path.getsize(self.path + "-count"), float), *result[1:]


def test_a_repetition_that_differs_is_truncated(tmp_path: Any) -> None:
    path = str(tmp_path / "failed")
    with subproc([lambda: Forgetful(path)] * 2) as envs:
        envs.reset(seed=1)
        for _ in range(4):
            envs.step([1, 1])
        # No other states are saved.
        envs._groups.drivers[0]._replay_log.next_save = 1 << 60  # type: ignore[attr-defined]
        for _ in range(4):
            envs.step([1, 1])
        kill(envs)
        _, _, _, truncated, infos = envs.step([1, 1])
        assert truncated.all()
        assert infos[0]["worker_restarted"]


class Leaking(Collector):
    """Differs in one thing, at one step, in another process than the first one."""

    def __init__(self, what: str, path: str) -> None:
        super().__init__(length=5)
        self.what, self.path = what, path

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        with open(self.path, "a+") as file:
            file.seek(0)
            first = int(file.read() or (file.write(str(os.getpid())) and os.getpid()))
        if first != os.getpid() and self.steps == 2 and self.episodes == 1:
            if self.what == "observation":
                obs = obs + 1
            elif self.what == "reward":
                reward += 1
            elif self.what == "terminated flag":
                terminated = True
            elif self.what == "truncated flag":
                truncated = True
            elif self.what == "info":
                info["drawn"] += 1
            elif self.what == "info that is no number":
                info["text"] = ["another"]
        elif self.what == "info that is no number":
            info["text"] = ["one"]
        return obs, reward, terminated, truncated, info

    def reset(self, **how: Any) -> Any:
        obs, info = super().reset(**how)
        if self.what.startswith("reset") and self.episodes == 2:
            with open(self.path) as file:
                if int(file.read()) != os.getpid():
                    return (obs, {**info, "name": "x"}) if "info" in self.what else (obs + 1, info)
        return obs, info


WHERE = {
    "observation": "step 2 of 7 .*: the observation of environment 0 differs",
    "reward": r"step 2 of 7 .*: the reward of environment 0 was \S+ and is ",
    "terminated flag": "step 2 of 7 .*: the terminated flag of environment 0 was False and is True",
    "truncated flag": "step 2 of 7 .*: the truncated flag of environment 0 was False and is True",
    "info": r"step 2 of 7 .*: the info of environment 0 differs at \['drawn'\]",
    "info that is no number": r"step 2 of 7 .*: the info of .* 0 differs at \['text'\]\[0\]",
    "reset observation": "step 5 of 7 .*: the reset observation of environment 0 differs",
    "reset info": r"step 5 of 7 .*: the reset info of environment 0 differs at \['name'\]",
}

OBSERVATIONS = ("observation", "reset observation")
"""What depends on the size of an observation: the replay log has digests of large ones."""


@pytest.mark.parametrize(
    ("what", "size"), [*((what, 3) for what in WHERE), *((what, 3000) for what in OBSERVATIONS)]
)
def test_every_result_of_every_step_is_compared(
    tmp_path: Any, what: str, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Large(Leaking):
        observation_space = spaces.Box(-1e9, 1e9, (size,), np.float64)

        def observation(self) -> Any:
            return np.resize(super().observation(), size)

    fns = [lambda: Large(what, str(tmp_path / "pid"))] + [Collector] * (size == 3)
    with subproc(fns) as envs:
        envs.reset(seed=1)
        # No other states are saved.
        envs._groups.drivers[0]._replay_log.next_save = 1 << 60  # type: ignore[attr-defined]
        for _ in range(7):
            envs.step([1] * len(fns))
        kill(envs)
        _, _, _, truncated, infos = envs.step([1] * len(fns))
        assert truncated.all()
        assert infos[0]["worker_restarted"]
    assert re.search(WHERE[what], caplog.text), caplog.text


class Board(Leaking):
    """Shows stones of two colors, and swaps two of them when the observation differs."""

    observation_space = spaces.Box(-1, 1, (3000,), np.float32)

    def observation(self) -> Any:
        return np.resize(np.array([1, -1], np.float32), 3000)

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        if obs[0] != 1:
            obs = self.observation()
            obs[:2] = obs[1::-1]
        return obs, *rest


def test_a_swap_of_two_signs_is_a_difference(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with subproc([lambda: Board("observation", str(tmp_path / "pid"))]) as envs:
        envs.reset(seed=1)
        for _ in range(4):
            envs.step([1])
        kill(envs)
        assert envs.step([1])[3].all()
    assert re.search("step 2 of 4 .*: the observation of environment 0 differs", caplog.text)


class Timed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Tells the time, a set, and an object of its own; only the time is another in each process."""

    class Note:
        def __init__(self, text: str) -> None:
            self.text = text

    def step(self, action: Any) -> Any:
        *result, info = self.env.step(action)
        names = {str(number) for number in range(20)}
        return *result, {**info, "names": names, "note": self.Note("a")}


def test_infos_are_compared_by_what_they_mean() -> None:
    def make() -> Any:
        return Timed(gymnasium.wrappers.RecordEpisodeStatistics(Collector(length=3)))

    with subproc([make] * 2) as envs:
        envs.reset(seed=1)
        envs._groups.drivers[0]._replay_log.next_save = 1 << 60  # type: ignore[attr-defined]
        for _ in range(7):
            envs.step([1, 1])
        for _ in range(2):  # the second one repeats a step that told of the restart
            kill(envs)
            _, _, _, truncated, infos = envs.step([1, 1])
            assert not truncated.any()
            assert infos[0]["worker_restarted"]
            envs.step([1, 1])


@pytest.mark.parametrize("steps", [0, 1])
def test_ataris_default_wrappers_go_on_right_after_a_reset(steps: int) -> None:
    pytest.importorskip("ale_py")

    def make() -> Any:
        import ale_py  # noqa: F401  # registers the games

        return gymnasium.make("ALE/Pong-v5")

    with subproc([make] * 2) as envs, DummyVecEnv([make] * 2) as reference:
        for each in (envs, reference):
            each.reset(seed=1)
            for _ in range(steps):
                each.step([2, 3])
        kill(envs)
        for step in range(5):
            (got, restarted), (expected, _) = shown(envs, [2, 3]), shown(reference, [2, 3])
            assert_same(got, expected)
            assert restarted == [step == 0] * 2


def test_the_warning_says_what_keeps_it_from_going_on(caplog: pytest.LogCaptureFixture) -> None:
    class Held(Collector):
        def reset(self, **how: Any) -> Any:
            self.files = os.scandir(".")
            return super().reset(**how)

    class Other(Collector):
        def __env_state__(self) -> Any:
            return self.steps

        def __set_env_state__(self, steps: int) -> None:
            raise ValueError("refused")

    def truncate(make: Any, actions: list[Any]) -> str:
        caplog.clear()
        with subproc([make] * 2) as envs:
            envs.reset(seed=1)
            kill(envs)
            assert envs.step(actions)[3].all()
        return caplog.text

    told = "the episodes of environments 0, 1 are truncated instead of resumed: "
    assert re.search(f"{told}.*Held.files", truncate(Held, [1, 1]))
    assert f"{told}the actions have no fixed shape" in truncate(Told, ["a", "b"])
    assert re.search(f"{told}the new worker could not load .*refused", truncate(Other, [1, 1]))


class Drawing(Collector):
    """Draws its rewards from a global generator."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        self.drawn = random.random()
        return obs, reward + self.drawn, *rest


def test_what_would_not_be_resumed_exactly_is_told_once_and_restarted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with subproc([Drawing] * 4) as envs:
        envs.reset(seed=1)
        for _ in range(80):
            envs.step([1] * 4)
        assert caplog.text.count("failed workers are restarted instead of resumed") == 1
        assert re.search(r"in step 1 of 31 .*: the reward of environment \d was", caplog.text)
        assert re.search(r"After 31 steps, Drawing\.drawn is 0\.\d+, and 0\.", caplog.text)
        caplog.clear()
        kill(envs, 1)
        _, _, _, truncated, infos = envs.step([1] * 4)
        assert truncated.tolist()[2:] == [True, True]
        assert infos[3]["worker_restarted"]
        assert "resumed" not in caplog.text


def counted(path: Any) -> type[Collector]:
    """Return a class whose objects are counted by the bytes of a file."""

    class Made(Collector):
        def __init__(self) -> None:
            super().__init__()
            with open(path, "a") as file:
                file.write(".")

    return Made


def test_exact_environments_are_verified_without_a_word(
    caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    with (
        subproc([counted(tmp_path / "made")] * 4) as envs,
        DummyVecEnv([Collector] * 4) as reference,
    ):
        for each in (envs, reference):
            each.reset(seed=1)
        for step in range(80):
            actions = [step % 4] * 4
            assert_same(shown(envs, actions)[0], shown(reference, actions)[0])
        assert os.path.getsize(tmp_path / "made") == 8  # each environment, and one more
        assert caplog.text == ""
        kill(envs)
        assert_same(shown(envs, [1] * 4)[0], shown(reference, [1] * 4)[0])


def test_a_worker_restart_in_the_step_before_does_not_prevent_the_verification(
    caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    with subproc([counted(tmp_path / "made")] * 2) as envs:
        envs.reset(seed=1)
        for step in range(32):
            if step == 30:
                kill(envs)
            assert os.path.getsize(tmp_path / "made") == (2 if step <= 30 else 4)
            envs.step([1, 1])
    assert os.path.getsize(tmp_path / "made") == 6  # the last step verified
    assert "not verified" not in caplog.text


@pytest.mark.parametrize("why", ["the port is in use", "may exceed step_timeout"])
def test_what_cannot_be_verified_is_told(
    why: str, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    class Single(Collector):
        def __init__(self) -> None:
            super().__init__()
            with open(tmp_path / "made", "a") as file:
                file.write(".")
            if os.path.getsize(tmp_path / "made") > 2 and "port" in why:
                raise OSError("the port is in use")

    options = {} if "port" in why else {"step_timeout": 30.0}
    with subproc([Single] * 2, **options) as envs:
        envs.reset(seed=1)
        for _ in range(40):
            assert not envs.step([1, 1])[3].any()
    assert re.search(f"not verify that failed workers can be resumed.*{why}", caplog.text)


def test_a_command_that_is_lost_loses_no_episode() -> None:
    with subproc([Collector] * N) as envs, DummyVecEnv([Collector] * N) as reference:
        envs.reset(seed=1)
        reference.reset(seed=1)
        for _ in range(3):
            assert_same(shown(envs, [1] * N)[0], shown(reference, [1] * N)[0])
        kill(envs)
        assert envs.get_attr("steps") == reference.get_attr("steps")
        assert_same(shown(envs, [2] * N)[0], shown(reference, [2] * N)[0])
        envs.call("up", 3)
        kill(envs)
        state = envs.save_state()
        kill(envs, 1)
        envs.load_state(state)
        kill(envs, 1)
        assert_same(shown(envs, [2] * N)[0], shown(reference, [2] * N)[0])


def test_what_cannot_be_saved_is_truncated() -> None:
    class Held(Collector):
        def reset(self, **how: Any) -> Any:
            self.lock = os.scandir(".")
            return super().reset(**how)

    with subproc([Held] * 2) as envs:
        envs.reset(seed=1)
        envs.step([1, 1])
        kill(envs)
        assert envs.step([1, 1])[3].all()


class Told(Collector):
    """Is told what to do in words."""

    action_space = spaces.Text(5)

    def step(self, action: Any) -> Any:
        return super().step(len(action))


def test_with_actions_that_are_not_kept_it_is_as_with_a_restart() -> None:
    with subproc([Told] * 4) as envs:
        envs.reset(seed=1)
        envs.step(["left", "right", "", "up"])
        kill(envs)
        _, _, _, truncated, infos = envs.step(["left", "right", "", "up"])
        assert truncated.tolist() == [True, True, False, False]
        assert infos[0]["worker_restarted"]
        assert not envs.step(["up"] * 4)[3].any()


def test_beside_the_callers_share_nothing_is_lost() -> None:
    fns = [Collector] * 6
    with subproc(fns, caller_steps=True) as envs, DummyVecEnv(fns) as reference:
        envs.reset(seed=1)
        reference.reset(seed=1)
        for step in range(30):
            if killed := step in (0, 5, 6, 20):
                kill(envs, step % 2)
            actions = [step % 4] * 6
            (got, restarted), (expected, _) = shown(envs, actions), shown(reference, actions)
            assert_same(got, expected)
            mine = [env // 2 == step % 2 for env in range(6)]
            assert restarted == [env and killed for env in mine]


def test_without_a_restart_left_it_raises() -> None:
    with subproc([Collector] * 2, max_restarts=1) as envs:
        envs.reset(seed=1)
        envs.step([1, 1])
        kill(envs)
        envs.step([1, 1])
        kill(envs)
        with pytest.raises(Exception, match="no restarts left"):
            envs.step([1, 1])


def test_an_exception_is_raised_unless_it_counts() -> None:
    class Raises(Collector):
        def step(self, action: Any) -> Any:
            raise ValueError("now")

    with subproc([Raises] * 2) as envs:
        envs.reset(seed=1)
        with pytest.raises(EnvError, match="now"):
            envs.step([1, 1])


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_kill_a_second_for_five_minutes() -> None:
    rng = np.random.default_rng(1)
    fns = [lambda: Gym_Env("CartPole-v1")] * 8
    with (
        SubprocVecEnv(fns, in_series=4, on_worker_failure="resume", max_restarts=None) as envs,
        DummyVecEnv(fns) as reference,
    ):
        envs.reset(seed=1)
        reference.reset(seed=1)
        begin = due = time.monotonic()
        kills = steps = 0
        while time.monotonic() < begin + 300:
            if time.monotonic() > due:
                os.kill(envs.pids[int(rng.integers(2))], signal.SIGKILL)
                due, kills = due + 1, kills + 1
            actions = rng.integers(2, size=8)
            assert_same(shown(envs, actions)[0], shown(reference, actions)[0])
            steps += 1
        assert kills >= 20  # fewer than a second each where others have the CPUs
        print(f"{kills} kills in {steps} steps, 0 mismatches")


@pytest.mark.parametrize("mode", ["restart", "resume"])
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("when", ["prepare_states", "load_states"])
@pytest.mark.parametrize("how", ["load_state", "clone_state"])
def test_what_is_lost_while_states_are_loaded_or_cloned_is_given_them_again(
    how: str, when: str, lost: int, mode: str
) -> None:
    """Also where the sources have become others by then, or were in the worker that was lost."""
    with (
        SubprocVecEnv([Collector] * N, in_series=2, on_worker_failure=mode) as envs,
        DummyVecEnv([Collector] * N) as reference,
    ):
        for each in (envs, reference):
            each.reset(seed=1)
            for _ in range(3):
                each.step([1, 2, 0, 1])
        given: Any = ([3, 0, 0, 1], range(N))
        if how == "load_state":
            given = (reference.save_state(),)
            for _ in range(4):
                envs.step([0] * N)
        with losing(envs, lost, when, often=1) as kills:
            obs, infos = getattr(envs, how)(*given)
        assert kills == [lost]
        expected, told = getattr(reference, how)(*given)
        assert_same(obs, expected)
        assert_same(list(infos), list(told))
        for actions in ([1] * N, [2] * N, [0] * N) * 5:
            assert_same(shown(envs, actions)[0], shown(reference, actions)[0])


def test_frames_that_were_returned_are_not_returned_again() -> None:
    def collecting() -> Any:
        return RenderCollection(gymnasium.make("FrozenLake-v1", render_mode="rgb_array"))

    with subproc([collecting] * 2) as envs:
        envs.reset(seed=1)
        for _ in range(3):
            envs.step([0, 0])
        envs.render(env_ids=[0])
        envs.step([0, 0])
        kill(envs, 0)
        envs.step([0, 0])
        assert [len(frames) for frames in envs.render()] == [2, 6]


def test_what_is_lost_again_while_states_are_loaded_is_told() -> None:
    with subproc([Collector] * N) as envs, DummyVecEnv([Collector] * N) as reference:
        for each in (envs, reference):
            each.reset(seed=1)
        envs.step([1] * N)
        state = reference.save_state()
        reference.step([1] * N)
        told = pytest.raises(StateError, match="try again")
        with losing(envs, 1, "load_states"), told as caught:
            envs.load_state(state)
        assert caught.value.env_index == 2
        # Those of the other worker are loaded by then; these are where they were.
        states = envs.save_state()
        reference.load_state(state)
        assert_same(states[:2].envs[0].env, reference.save_state([0]).envs[0].env)
        reference.step([1] * N)
        assert_same(shown(envs, [2] * N)[0][0][2:], shown(reference, [2] * N)[0][0][2:])
        envs.load_state(state)
        reference.load_state(state)
        assert_same(shown(envs, [2] * N)[0], shown(reference, [2] * N)[0])


class Telling(Collector):
    """Has one more in its infos from the third step on."""

    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        return *result, {**info, "late": self.steps} if self.steps > 2 else info


def test_infos_that_came_with_an_error_are_known_thereafter() -> None:
    with subproc([Telling] * N) as envs, DummyVecEnv([Telling] * N) as reference:
        for each in (envs, reference):
            each.reset(seed=1)
        for _ in range(3):
            reference.step([1] * N)
        state = reference.save_state()
        with losing(envs, 1, "load_states"), pytest.raises(StateError, match="try again"):
            envs.load_state(state)
        infos, expected = envs.step([1] * N)[4], reference.step([1] * N)[4]
        assert_same(list(infos)[:2], list(expected)[:2])


class SometimesTelling(Collector):
    """Has an info with a dict in every third step; the other infos are only numbers."""

    def step(self, action: Any) -> Any:
        *result, _ = super().step(action)
        info = {"n": self.steps}
        return *result, {**info, "at": {"n": self.steps}} if self.steps % 3 == 0 else info


def test_each_step_of_a_replay_is_compared_with_its_own_infos() -> None:
    with subproc([SometimesTelling] * 2) as envs:
        envs.reset(seed=1)
        envs._groups.drivers[0]._replay_log.next_save = 1 << 60
        for _ in range(7):
            envs.step([1, 1])
        kill(envs)
        assert not envs.step([1, 1])[3].any()


class Brief(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(0, 9e9, (2,), np.float32)
    action_space = spaces.Discrete(2)
    length, episodes = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.length = self.length if seed is None else 3 + seed % 3
        self.steps, self.episodes = 0, self.episodes + 1
        return np.full(2, self.episodes, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.full(2, self.steps, np.float32), 1.0, self.steps == self.length, False, {}


def test_more_environments_than_their_flags_are_bytes_of_a_copied_step_are_resumed() -> None:
    number = 1700
    options: Any = {"context": "forkserver", "on_worker_failure": "resume"}
    with SubprocVecEnv([Brief] * number, num_workers=1, **options) as envs:
        envs.reset(seed=1)
        envs._groups.drivers[0]._replay_log.next_save = 1 << 60
        for _ in range(6):
            envs.step([1] * number)
        kill(envs)
        assert not envs.step([1] * number)[3].any()
