"""Random operations on every backend, beside a loop over environments that does as promised."""

from __future__ import annotations

import random

import numpy as np
import operations
import pytest
from backends import CALLER_STEPS, DUMMY, MACHINES, QUICK_START, REMOTE, WORKERS, Backend
from operations import (
    ENV_FNS,
    NUM_ENVS,
    LockstepPair,
    a_call,
    a_name,
    a_seed,
    operation,
    some,
    values,
)

from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.errors import (
    AlreadySteppingError,
    ClosedVecEnvError,
    EnvError,
    NotResetError,
    NotSteppingError,
)
from xuance_envs.vector_envs.vector_env import StepBatch

QUICK = {"context": QUICK_START}
OTHERS = [
    Backend("dummy-views", DUMMY.kind, {"copy": False}),
    Backend("a worker each", WORKERS.kind, {**QUICK, "in_series": 1}),
    Backend("uneven", WORKERS.kind, {**QUICK, "in_series": 3}),
    Backend("one worker", WORKERS.kind, {**QUICK, "in_series": 9}),
    Backend("restarting", WORKERS.kind, {**QUICK, "on_worker_failure": "restart"}),
]
"""What the contract's suite does not run over: other splits and options."""


class PlainVecEnv:
    """The contract, in as few words as it takes."""

    def __init__(self, env_fns):
        self.envs = [env_fn() for env_fn in env_fns]
        self.closed = self.waiting = False
        self.flying = None
        self.never_reset = set(range(NUM_ENVS))
        self.buf_obs = np.zeros((NUM_ENVS, *self.envs[0].observation_space.shape))

    def reset(self, *, seed=None, options=None, env_ids=None):
        self.check_open()
        ids, seeds = self.checked(env_ids, seed)
        self.finish()
        obs, infos = self.reset_each(ids, seeds, options)
        self.never_reset -= set(ids)
        self.buf_obs = self.buf_obs.copy()
        self.buf_obs[ids] = obs
        return obs, infos

    def step(self, actions):
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions):
        self.check_idle()
        self.check_actions(actions)
        self.actions, self.waiting = actions, True

    def step_wait(self):
        self.check_open()
        if not self.waiting:
            raise NotSteppingError
        self.waiting = False
        result = self.step_each(self.actions)
        self.buf_obs = result[0].copy()
        return result

    def async_reset(self, *, seed=None, options=None):
        self.check_open()
        if self.waiting:
            raise AlreadySteppingError
        ids, seeds = self.checked(None, seed)
        self.finish()
        self.never_reset.clear()
        self.flying = lambda: self.as_step(*self.reset_each(ids, seeds, options))

    def send(self, actions, env_ids):
        self.check_idle()
        self.check_actions(actions)
        self.flying = lambda: self.step_each(actions)

    def recv(self, min_envs):
        self.check_open()
        if self.waiting:
            raise AlreadySteppingError
        if self.flying is None:
            raise NotSteppingError
        return StepBatch(*self.finish(), np.arange(NUM_ENVS, dtype=np.intp))

    def call(self, name, *args, env_ids=None, **kwargs):
        return self.each("call", name, env_ids, lambda env, _: getattr(env, name)(*args, **kwargs))

    def get_attr(self, name, env_ids=None):
        return self.each("get_attr", name, env_ids, lambda env, _: getattr(env, name))

    def set_attr(self, name, values, env_ids=None):
        self.check_idle()
        ids, _ = self.checked(env_ids)
        each = values if isinstance(values, list | tuple) else [values] * len(ids)
        if len(each) != len(ids):
            raise ValueError
        for i, value in zip(ids, each, strict=True):
            setattr(self.owner(i, name) or self.envs[i].unwrapped, name, value)

    def render(self, mode=None, env_ids=None):
        return list(self.each("render", "render", env_ids, lambda env, _: env.render()))

    def close(self):
        self.closed, self.waiting, self.flying = True, False, None

    # -- parts --

    def reset_each(self, ids, seeds, options):
        given = {} if options is None else {"options": options}
        results = []
        for i, seed in zip(ids, seeds, strict=True):
            seeded = given if seed is None else {**given, "seed": seed}
            results.append(self.tried(i, "reset", lambda env, seeded=seeded: env.reset(**seeded)))
        return np.stack([obs for obs, _ in results]), [info for _, info in results]

    def step_each(self, actions):
        rows = []
        for i, action in enumerate(actions):
            row = self.tried(i, "step", lambda env, action=action: env.step(np.int64(action)))
            obs, reward, terminated, truncated, info = row
            if terminated or truncated:
                reset_obs, reset_info = self.tried(i, "reset", lambda env: env.reset())
                info = {**info, "reset_obs": reset_obs, "reset_info": reset_info}
            rows.append((obs, np.float32(reward), terminated, truncated, info))
        *arrays, infos = zip(*rows, strict=True)
        return *map(np.stack, arrays), list(infos)

    def as_step(self, obs, infos):
        flags = np.zeros((2, NUM_ENVS), bool)
        return obs, np.zeros(NUM_ENVS, np.float32), *flags, infos

    def finish(self):
        """What is pending is finished, however it was started."""
        flying, self.flying = self.flying, None
        if self.waiting:
            self.step_wait()
        return None if flying is None else flying()

    def each(self, command, name, env_ids, act):
        self.check_idle()
        ids, _ = self.checked(env_ids)
        for i in ids:
            if self.owner(i, name) is None:
                raise AttributeError
        return tuple(
            self.tried(i, command, lambda _, i=i: act(self.owner(i, name), None)) for i in ids
        )

    def owner(self, i, name):
        layers = [self.envs[i], self.envs[i].unwrapped]
        return next((layer for layer in layers if hasattr(layer, name)), None)

    def tried(self, i, command, act):
        try:
            return act(self.envs[i])
        except Exception as error:
            if command in ("reset", "step"):
                self.close()
            raise EnvError(i, command, str(error), "") from error

    def checked(self, env_ids, seed=None):
        ids = list(range(NUM_ENVS)) if env_ids is None else env_ids
        if any(not 0 <= i < NUM_ENVS for i in ids):
            raise ValueError
        seeds = [seed + i for i in ids] if isinstance(seed, int) else seed or [None] * len(ids)
        if len(seeds) != len(ids):
            raise ValueError
        return ids, seeds

    def check_actions(self, actions):
        if self.never_reset:
            raise NotResetError
        if len(actions) != NUM_ENVS:
            raise ValueError

    def check_idle(self):
        self.check_open()
        if self.waiting or self.flying is not None:
            raise AlreadySteppingError

    def check_open(self):
        if self.closed:
            raise ClosedVecEnvError("VecEnv")


class BesidePlain(LockstepPair):
    """Compares results, and what is said of the state."""

    def __init__(self, envs, reference, *, copies):
        super().__init__(envs, reference)
        self.copies = copies

    def plain(self, value):
        if isinstance(value, StepBatch):
            order = np.argsort(value.env_ids)
            arrays = [array[order] for array in (*value[:4], value.env_ids)]
            return *arrays, [dict(value.infos[k]) for k in order]
        if isinstance(value, tuple):
            return tuple(map(self.plain, value))
        return list(map(dict, value)) if isinstance(value, StepInfos) else value

    def after(self, done, expected):
        for name in ("waiting", "closed"):
            got, right = getattr(self.envs, name), getattr(self.reference, name)
            assert got == right, f"{name} after {done}: got {got}, expected {right}"
        if not self.envs.closed:
            operations.assert_same(
                self.envs.buf_obs, self.reference.buf_obs, f"buf_obs after {done}"
            )

    def look_back(self):
        if self.copies:
            super().look_back()


def draw(rng: random.Random) -> operations.Operation:
    """An operation of the contract; some are wrong, some raise, some come at the wrong time."""
    ids = rng.choice([None, some(rng)])
    count = NUM_ENVS if ids is None else len(ids)
    name, args, kwargs = a_call(rng)
    options = rng.choice([None, None, {"level": 3}])
    bad = rng.choice([None] * 30 + [{"fail": rng.randrange(NUM_ENVS)}])
    return operations.weighted(
        rng,
        {
            lambda: operation("step", operations.actions(rng, 0.02)): 30,
            lambda: operation("step_async", operations.actions(rng, 0.02)): 8,
            lambda: operation("step_wait"): 12,
            lambda: operation("step", operations.actions(rng, count=rng.choice([4, 6]))): 1,
            lambda: operation(
                "reset", seed=a_seed(rng, count), options=bad or options, env_ids=ids
            ): 8,
            lambda: operation("reset", seed=[1] * (count + 1), env_ids=ids): 1,
            lambda: operation("reset", env_ids=[NUM_ENVS]): 1,
            lambda: operation("async_reset", seed=a_seed(rng), options=bad or options): 3,
            lambda: operation("send", operations.actions(rng, 0.02), list(range(NUM_ENVS))): 6,
            lambda: operation("recv", NUM_ENVS): 10,
            lambda: operation("call", name, *args, env_ids=ids, **kwargs): 8,
            lambda: operation("get_attr", a_name(rng), env_ids=ids): 8,
            lambda: operation("set_attr", "level", values(rng, count), env_ids=ids): 5,
            lambda: operation("set_attr", "layer", values(rng, count), env_ids=ids): 1,
            lambda: operation("set_attr", "level", [1] * (count + 1), env_ids=ids): 1,
            lambda: operation("render", env_ids=ids): 5,
            lambda: operation("close"): 0.3,
        },
    )


def pair_of(backend):
    copies = backend.options.get("copy", True)
    return lambda: operations.closing(
        BesidePlain(backend.kind(ENV_FNS, **backend.options), PlainVecEnv(ENV_FNS), copies=copies)
    )


@pytest.mark.everywhere
def test_any_operations_in_any_order_do_what_a_loop_would(make):
    count = 60 if make.backend.here else 3
    operations.assert_alike(pair_of(make.backend), draw, range(count), 60)


@pytest.mark.parametrize("backend", OTHERS, ids=str)
def test_however_environments_are_split(backend):
    operations.assert_alike(pair_of(backend), draw, range(10, 13), 60)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_thousands_of_sequences_of_operations_do_what_a_loop_would(make_on_all, part):
    counts = {DUMMY.name: 1_000, MACHINES.name: 30}
    counts |= {each.name: 300 for each in (WORKERS, CALLER_STEPS, REMOTE)}
    backend = make_on_all.backend
    count = counts.get(backend.name, 300 if backend.here else 50)
    operations.assert_alike(pair_of(backend), draw, operations.tenth(part, count), 60)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("backend", OTHERS, ids=str)
def test_thousands_of_sequences_however_environments_are_split(backend, part):
    operations.assert_alike(pair_of(backend), draw, operations.tenth(part, 300), 60)
