"""The backends that the contract suite runs over: one row each."""

from __future__ import annotations

import importlib
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.ray_vec_env import RayVecEnv_Gym
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv


@dataclass(frozen=True)
class Backend:
    """One row.

    Args:
        name: shown in the tests' names.
        kind: makes a vector environment from functions.
        options: given to it unless a test gives its own.
        together: options with which it keeps the first two environments in one process.
        here: whether the environments live in this process.
    """

    name: str
    kind: Callable[..., VecEnv]
    options: dict[str, Any] = field(default_factory=dict)
    together: dict[str, Any] = field(default_factory=dict)
    here: bool = False

    def __str__(self) -> str:
        return self.name


def need_remote() -> None:
    """Skips where the extra ``remote`` is not installed."""
    for library in ("fastapi", "httptools", "httpx", "msgpack", "uvicorn"):
        pytest.importorskip(library)


def hosted() -> ModuleType:
    """The module of environments behind HTTP, which needs that extra."""
    need_remote()
    return importlib.import_module("hosted")


DUMMY = Backend("dummy", DummyVecEnv, here=True)
WORKERS = Backend("workers", SubprocVecEnv, {"context": "forkserver", "in_series": 2})
CALLER_STEPS = Backend(
    "caller-steps",
    SubprocVecEnv,
    {"context": "forkserver", "in_series": 2, "caller_steps": True},
)
SPAWN = Backend("spawn", SubprocVecEnv, {"context": "spawn", "in_series": "auto"}, {"in_series": 2})
RAY = Backend("ray", RayVecEnv_Gym, {"in_series": 2, "num_cpus_per_worker": 0.01, "actors": "core"})
"""Run over by ``tests/ray``, which starts Ray for it."""
MACHINES = Backend("machines", RayVecEnv_Gym, {"in_series": 2, "actors": "machine"})
"""Likewise, on machines that are pretended."""

REMOTE = Backend("remote", lambda *args, **options: hosted().remote_vec_env(*args, **options))

BACKENDS = [DUMMY, WORKERS, CALLER_STEPS, REMOTE]
"""Those that start in an instant: what the tests of the contract run over."""

EITHER_PLACE = [DUMMY, WORKERS, REMOTE]
"""One in this process, others not: for long tables of values, which either stay or travel."""

ALL_BACKENDS = [*BACKENDS, SPAWN]
"""With those that start slowly: for what may depend on how a backend starts."""


class Maker:
    """Makes vector environments of one backend, and closes them when the test is over.

    Args:
        backend: the backend.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._made: list[VecEnv] = []

    def __call__(self, env_fns: Iterable[Callable[..., Any]], *args: Any, **options: Any) -> Any:
        vec_env = self.backend.kind(env_fns, *args, **{**self.backend.options, **options})
        self._made.append(vec_env)
        return vec_env

    def close(self) -> None:
        while self._made:
            self._made.pop().close()


@pytest.fixture(scope="session", autouse=True)
def quick_forkserver() -> None:
    """Makes workers of a forkserver start in milliseconds: it has loaded what they need."""
    multiprocessing.set_forkserver_preload(["tests.shared.preloaded"])


@pytest.fixture(params=BACKENDS, ids=str)
def make(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """Makes vector environments of each backend that starts in an instant."""
    yield from _maker(request)


@pytest.fixture(params=EITHER_PLACE, ids=str)
def make_either(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """Makes vector environments whose environments live in this process, or in others."""
    yield from _maker(request)


@pytest.fixture(params=[DUMMY, WORKERS], ids=str)
def make_local(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """Makes vector environments on this machine, here or in workers: for arguments of theirs."""
    yield from _maker(request)


@pytest.fixture(params=ALL_BACKENDS, ids=str)
def make_on_all(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """Makes vector environments of each backend, also of those that start slowly."""
    yield from _maker(request)


def _maker(request: pytest.FixtureRequest) -> Iterator[Maker]:
    if request.param is REMOTE:
        name, case = request.node.originalname, request.node.callspec.id.partition("-")[2]
        beyond = hosted().BEYOND_THE_WIRE
        reason = beyond.get((name, case)) or beyond.get((name, None))
        if reason is not None:
            pytest.skip(reason)
    yield from made(request.param)


def made(backend: Backend) -> Iterator[Maker]:
    """Makes vector environments of a backend, and sees that they leave no process behind."""
    maker = Maker(backend)
    yield maker
    maker.close()
    # A closed connection's thread takes a moment to end, and the next test may fork.
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(
        thread.name.startswith("xuance_envs-remote") for thread in threading.enumerate()
    ):
        time.sleep(0.005)
    assert multiprocessing.active_children() == [], "processes were left behind"
