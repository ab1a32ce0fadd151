"""make_vec: many environments by their id."""

from __future__ import annotations

import copy
import math
import multiprocessing
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium
import pytest
from gymnasium import VectorizeMode
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import Autoreset, TimeLimit
from scripts import run_script

from xuance_envs import Atari_Env, DummyVecEnv, Gym_Env, SubprocVecEnv, make_vec, making, tuning
from xuance_envs.compat.gymnasium import AsyncVectorEnv, SyncVectorEnv
from xuance_envs.tuning import Autotuned, Candidate


@pytest.mark.parametrize(("backend", "kind"), [("dummy", DummyVecEnv), ("subproc", SubprocVecEnv)])
def test_the_backend_is_the_one_asked_for(backend: str, kind: type) -> None:
    with make_vec("CartPole-v1", 3, backend=backend, seed=7) as envs:
        assert type(envs) is kind
        assert envs.autotuned is None
        obs, infos = envs.reset()
        assert infos[0] == {"episode_step": 0}
    for i in range(3):
        assert obs[i].tobytes() == Gym_Env("CartPole-v1").reset(seed=7 + i)[0].tobytes()


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_know_what_is_registered_here_only(context: str) -> None:
    class Corridor(CartPoleEnv):  # as a script defines one: no worker can import it
        pass

    gymnasium.register("Corridor-v0", Corridor, max_episode_steps=3)
    try:
        with make_vec("Corridor-v0", 2, backend="subproc", vector_kwargs={"context": context}) as e:
            e.reset(seed=0)
            for _ in range(3):
                *_, truncated, infos = e.step([0, 1])
            assert truncated.all()
            assert infos[1]["episode_step"] == 3
    finally:
        del gymnasium.registry["Corridor-v0"]


def test_observations_and_rewards_are_normalized_when_asked_for() -> None:
    with make_vec("Pendulum-v1", 3, backend="dummy", seed=7, normalize=True) as envs:
        assert repr(envs) == "NormalizeObservations(NormalizeRewards(DummyVecEnv(num_envs=3)))"
        obs, _ = envs.reset()
        assert obs.mean(0) == pytest.approx(0, abs=1e-6)
        assert (envs.raw_observations == envs.vec_env.buf_obs).all()
    with make_vec("Pendulum-v1", 2, normalize=True) as envs:
        assert envs.autotuned is not None


def test_what_cannot_be_normalized_leaves_no_process_behind() -> None:
    with pytest.raises(ValueError, match="expected observations in a Box of numbers, got Discrete"):
        make_vec("FrozenLake-v1", 3, backend="subproc", normalize=True)
    assert multiprocessing.active_children() == []
    with pytest.raises(ValueError, match="cannot be combined with backend, allow_native"):
        make_vec("CartPole-v1", 2, vectorization_mode="sync", normalize=True)


def test_options_go_to_the_backend_and_arguments_to_the_environments() -> None:
    with make_vec(
        "FrozenLake-v1",
        2,
        backend="subproc",
        render_mode="rgb_array",
        vector_kwargs={"in_series": 1, "context": "forkserver"},
        is_slippery=False,
    ) as envs:
        assert isinstance(envs, SubprocVecEnv)
        assert len(envs.pids) == 2
        envs.reset(seed=0)
        assert envs.render()[0].shape[2] == 3
        for action, expected in ((1, 4), (1, 8), (2, 9)):
            assert envs.step([action] * 2)[0].tolist() == [expected] * 2


def test_auto_measures_and_tells_what_it_found() -> None:
    with make_vec("CartPole-v1", 2) as envs:
        assert isinstance(envs.autotuned, Autotuned)
        assert envs.autotuned.num_envs == envs.num_envs == 2
        kind = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[envs.autotuned.choice.backend]
        assert type(envs) is kind
        assert envs.autotuned.step_time > 0


def test_auto_takes_the_choice_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = Candidate("subproc", {"in_series": 1}, 1.0)
    tuned = Autotuned(3, 1.0, 1.0, (choice,), choice, "so it is")
    monkeypatch.setattr(making, "backend_for", lambda *_, **__: tuned)
    with make_vec("CartPole-v1", 3, backend="auto", seed=1) as envs:
        assert isinstance(envs, SubprocVecEnv)
        assert len(envs.pids) == 3
        assert envs.autotuned is tuned


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"on_worker_failure": "restart"}, SubprocVecEnv),
        ({"num_workers": 2}, SubprocVecEnv),
        ({"in_series": 3, "context": "forkserver"}, SubprocVecEnv),
        ({"copy": False, "record_failures": None}, (DummyVecEnv, SubprocVecEnv)),
    ],
)
def test_auto_honours_the_options(options: Any, kind: Any) -> None:
    with make_vec("CartPole-v1", 4, vector_kwargs=options) as envs:
        assert isinstance(envs, kind)
        assert options.items() <= envs.autotuned.choice.options.items()
        if "num_workers" in options:
            assert len(envs.pids) == 2
        envs.reset(seed=0)
        assert envs.step([0] * 4)[0].flags.writeable is options.get("copy", True)


def test_auto_takes_the_only_backend_that_has_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def backend_class(name: str) -> Any:
        return lambda env_fns, **options: asked.append((name, options)) or DummyVecEnv(env_fns)

    monkeypatch.setattr(making, "backend_class", backend_class)
    make_vec("CartPole-v1", 2, vector_kwargs={"actors": "core", "step_timeout": 3}).close()
    assert asked == [("ray", {"actors": "core", "step_timeout": 3})]


@pytest.mark.parametrize("given", [{}, {"backend": "subproc"}, {"vectorization_mode": "async"}])
def test_an_option_among_the_arguments_of_environments_is_recognized(given: Any) -> None:
    with pytest.raises(TypeError, match=r"in_series: .*use vector_kwargs=\{'in_series': 2\}"):
        make_vec("CartPole-v1", 4, in_series=2, sutton_barto_reward=True, **given)
    assert multiprocessing.active_children() == []


def test_an_environment_keeps_an_argument_that_it_shares_with_the_options() -> None:
    class Copied(CartPoleEnv):
        def __init__(self, copy: bool = False, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.copied = copy

    gymnasium.register("Copied-v0", Copied)
    try:
        with make_vec("Copied-v0", 2, backend="dummy", copy=True) as envs:
            assert envs.get_attr("copied") == (True, True)
    finally:
        del gymnasium.registry["Copied-v0"]


@pytest.mark.parametrize(
    ("env_id", "expected"),
    [
        ("CartPole-v1", Gym_Env),
        ("Breakout", Atari_Env),
        ("Breakout-v5", Atari_Env),
        ("ALE/Breakout-v5", Atari_Env),
        ("gymnasium:CartPole-v1", Gym_Env),
    ],
)
def test_the_wrapper_follows_from_the_id(env_id: str, expected: type) -> None:
    with make_vec(env_id, 1, backend="dummy") as envs:
        assert isinstance(envs, DummyVecEnv)
        assert type(envs.envs[0]) is expected


def test_the_native_form_of_an_environment() -> None:
    with make_vec("CartPole-v1", 4, backend="native", seed=3) as envs:
        obs, _ = envs.reset()
        assert obs.shape == (4, 4)
        assert envs.step([0] * 4)[4][0] == {"episode_step": 1, "episode_score": 1.0}


def test_auto_takes_the_native_form_only_where_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def told(
        env_fn: Any, num_envs: int, options: Any, allow_threads: bool, others: Any
    ) -> Autotuned:
        asked.append(sorted(others))
        choice = Candidate(sorted(others)[0] if others else "dummy", {}, math.nan)
        return Autotuned(num_envs, 1.0, 1.0, (choice,), choice, "so it is")

    monkeypatch.setattr(making, "backend_for", told)
    make_vec("CartPole-v1", 2).close()
    with make_vec("CartPole-v1", 2, allow_native=True) as envs:
        assert not isinstance(envs, DummyVecEnv)
    make_vec("MountainCar-v0", 2, allow_native=True).close()
    make_vec("CartPole-v1", 2, allow_native=True, vector_kwargs={"copy": False}).close()
    assert asked == [[], ["native"], [], []]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_envs": 0}, ValueError, "num_envs: expected an int of at least 1, got 0"),
        ({"num_envs": 1.5}, ValueError, "num_envs: expected an int of at least 1, got 1.5"),
        ({"backend": "threads"}, ValueError, "backend: expected one of 'auto', .*got 'threads'"),
        (
            {"vector_kwargs": {"step_timout": 3}},
            TypeError,
            "unknown option 'step_timout' .*; did you mean 'step_timeout'",
        ),
        (
            {"vector_kwargs": {"address": "auto", "caller_steps": True}},
            ValueError,
            r"options together: address \(ray\), caller_steps \(thread, subproc\)",
        ),
        ({"env_id": "MountainCar-v0", "backend": "native"}, ValueError, "no vectorized impl"),
        ({"seed": 1.5}, ValueError, "seed: expected a non-negative int, got 1.5"),
        ({"backend": "native", "wrappers": [abs]}, ValueError, "wrappers cannot be combined"),
        ({"vectorization_mode": "threads"}, ValueError, "expected one of .*'sync'.*got 'threads'"),
        ({"vectorization_mode": "sync", "backend": "dummy"}, ValueError, "combined with backend"),
        ({"atari_preset": "dqn"}, ValueError, "expected an Atari game .*got 'CartPole-v1'"),
        ({"atari_preset": "rainbow"}, ValueError, "expected 'dqn' or None, got 'rainbow'"),
        ({"vectorization_mode": "sync", "atari_preset": "dqn"}, ValueError, "atari_preset or seed"),
        ({"vectorization_mode": "sync", "seed": 1}, ValueError, "pass the seed to reset"),
        (
            {"vectorization_mode": "vector_entry_point", "vector_kwargs": {"copy": False}},
            gymnasium.error.Error,
            "`vector_kwargs` is not empty",
        ),
    ],
)
def test_what_cannot_be_made_is_refused(arguments: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make_vec(**{"env_id": "CartPole-v1", "num_envs": 2, **arguments})


def test_an_unknown_id_is_told_by_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "available_cpus", lambda: 1)
    with pytest.raises(Exception, match="NoSuchGame") as caught:
        make_vec("NoSuchGame-v7", 2)
    cause = caught.value if caught.value.__cause__ is None else caught.value.__cause__
    assert isinstance(cause, gymnasium.error.Error)


@pytest.mark.parametrize("backend", ["auto", "dummy", "subproc", "native"])
def test_a_spec_is_taken_in_place_of_an_id(backend: str) -> None:
    spec = gymnasium.make("CartPole-v1", max_episode_steps=7).spec
    assert spec is not None
    with make_vec(spec, 2, backend=backend, seed=3, sutton_barto_reward=True) as envs:
        assert envs.max_episode_steps == 7
        envs.reset()
        assert envs.step([0, 1])[1].tolist() == [0, 0]


@pytest.mark.parametrize(("changed", "expected"), [(False, Atari_Env), (True, Gym_Env)])
def test_the_spec_of_a_game_is_its_id_unless_it_was_changed(changed: bool, expected: type) -> None:
    pytest.importorskip("ale_py")
    with make_vec("Pong", 1, backend="dummy") as envs:
        spec = copy.deepcopy(gymnasium.spec("ALE/Pong-v5"))
        if changed:
            spec.kwargs["obs_type"] = "ram"
    with make_vec(spec, 1, backend="dummy") as envs:
        assert type(envs.envs[0]) is expected
        assert changed == (envs.obs_shape == (128,))


def test_wrappers_go_around_every_environment() -> None:
    wrappers = [partial(TimeLimit, max_episode_steps=4), Autoreset]
    with make_vec("CartPole-v1", 2, backend="subproc", seed=3, wrappers=wrappers) as envs:
        assert envs.max_episode_steps == 4
        assert envs.get_attr("unwrapped")
        obs, _ = envs.reset()
    assert obs[1].tobytes() == Gym_Env("CartPole-v1").reset(seed=4)[0].tobytes()


MODES = {
    "sync": SyncVectorEnv,
    VectorizeMode.SYNC: SyncVectorEnv,
    "async": AsyncVectorEnv,
    VectorizeMode.ASYNC: AsyncVectorEnv,
    "vector_entry_point": CartPoleVectorEnv,
    VectorizeMode.VECTOR_ENTRY_POINT: CartPoleVectorEnv,
}


@pytest.mark.parametrize(("mode", "kind"), MODES.items())
def test_a_vectorization_mode_gives_what_gymnasium_does_in_our_classes(mode, kind) -> None:
    given = {"vectorization_mode": mode, "sutton_barto_reward": True}
    ours = make_vec("CartPole-v1", 3, **given)
    theirs = gymnasium.make_vec("CartPole-v1", 3, **given)
    assert type(ours) is kind
    assert ours.spec == theirs.spec
    assert data_equivalence(ours.reset(seed=1), theirs.reset(seed=1))
    for _ in range(30):
        actions = ours.action_space.sample()
        assert data_equivalence(ours.step(actions), theirs.step(actions))
    ours.close()
    theirs.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_kwargs_and_wrappers_go_with_a_vectorization_mode(mode) -> None:
    given = {
        "vectorization_mode": mode,
        "vector_kwargs": {"autoreset_mode": AutoresetMode.SAME_STEP},
        "wrappers": [partial(TimeLimit, max_episode_steps=2)],
        "render_mode": "rgb_array",
    }
    ours, theirs = (
        make_vec("Pendulum-v1", 2, **given),
        gymnasium.make_vec("Pendulum-v1", 2, **given),
    )
    assert ours.spec == theirs.spec
    assert data_equivalence(ours.reset(seed=1), theirs.reset(seed=1))
    for _ in range(3):
        actions = ours.action_space.sample()
        mine, its = ours.step(actions), theirs.step(actions)
        assert data_equivalence(mine[:4], its[:4])
        assert mine[4].keys() == its[4].keys()
    assert [frame.shape for frame in ours.render()] == [(500, 500, 3)] * 2
    ours.close()
    theirs.close()


def test_a_vectorization_mode_takes_specs_modules_and_short_forms() -> None:
    for env_id in (gymnasium.spec("CartPole-v1"), "gymnasium:CartPole-v1"):
        with closing(make_vec(env_id, 2, vectorization_mode="sync")) as envs:
            assert type(envs) is SyncVectorEnv
            assert envs.spec.id == "CartPole-v1"
    pytest.importorskip("ale_py")
    with closing(make_vec("Pong", 1, vectorization_mode="sync")) as envs:
        assert envs.spec.id == "ALE/Pong-v5"


def test_asynchronous_environments_take_what_ours_do() -> None:
    ours = {"in_series": 2, "context": "forkserver"}
    with closing(
        make_vec("CartPole-v1", 4, vectorization_mode="async", vector_kwargs=ours)
    ) as envs:
        assert len(envs.processes) == 2


def test_an_atari_games_class_does_not_depend_on_whether_ale_is_loaded(tmp_path) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    script = """
        import gymnasium
        from xuance_envs import make_vec
        for env_id in ("PongNoFrameskip-v4", "PongNoFrameskip-v4", "Own-v0"):
            with make_vec(env_id, 1, backend="dummy") as envs:
                print(type(envs.envs[0]).__name__, envs.observation_space.shape)
            own = {"game": "pong", "obs_type": "ram"}
            gymnasium.registry.pop("Own-v0", None)
            gymnasium.register("Own-v0", entry_point="ale_py.env:AtariEnv", kwargs=own)
    """
    games = "Atari_Env (210, 160, 4)\n" * 2
    assert run_script(tmp_path, script) == games + "Gym_Env (128,)\n"


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "Pong"])
def test_the_preset_of_atari_games_is_atari_env_with_small_images(env_id: str) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    with make_vec(env_id, 2, backend="dummy", atari_preset="dqn", noop_max=1) as envs:
        assert envs.observation_space.shape == (84, 84, 4)
        env = envs.envs[0]
        assert isinstance(env, Atari_Env)
        assert (env.frame_skip, env.noop_max) == (4, 1)
    with make_vec(env_id, 2, backend="dummy", atari_preset="dqn", image_size=40) as envs:
        assert envs.observation_space.shape == (40, 40, 4)
    spec = copy.deepcopy(gymnasium.spec("ALE/Pong-v5"))
    spec.kwargs["difficulty"] = 1  # for Gym_Env
    with pytest.raises(ValueError, match="expected an Atari game"):
        make_vec(spec, 2, backend="dummy", atari_preset="dqn")
