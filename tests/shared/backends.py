"""The backends of the contract suite."""

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
from starts import start_by

from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.ray_vec_env import RayVecEnv_Gym
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.thread_vec_env import ThreadVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv


@dataclass(frozen=True, eq=False)
class Backend:
    """A backend of the contract suite."""

    name: str
    kind: Callable[..., VecEnv]
    options: dict[str, Any] = field(default_factory=dict)
    together: dict[str, Any] = field(default_factory=dict)
    here: bool = False

    def __str__(self) -> str:
        return self.name


def need_remote() -> None:
    """Skip the tests if the extra ``remote`` is not installed."""
    for library in ("fastapi", "httptools", "httpx", "msgpack", "psutil", "uvicorn"):
        pytest.importorskip(library)


def hosted() -> ModuleType:
    """Return the module for environments behind HTTP, which requires the extra ``remote``."""
    need_remote()
    return importlib.import_module("hosted")


DUMMY = Backend("dummy", DummyVecEnv, here=True)
THREADS = Backend("thread", ThreadVecEnv, {"in_series": 2}, here=True)
METHODS = multiprocessing.get_all_start_methods()
QUICK_START = "forkserver" if "forkserver" in METHODS else "spawn"  # on Windows
WORKERS = Backend("workers", SubprocVecEnv, {"context": QUICK_START, "in_series": 3})
CALLER_STEPS = Backend(
    "caller-steps",
    SubprocVecEnv,
    {"context": QUICK_START, "in_series": 2, "caller_steps": True},
)
SPAWN = Backend("spawn", SubprocVecEnv, {"context": "spawn", "in_series": "auto"}, {"in_series": 2})
RAY = Backend("ray", RayVecEnv_Gym, {"in_series": 2, "num_cpus_per_worker": 0.01, "actors": "core"})
"""For ``tests/ray``, which starts Ray."""
MACHINES = Backend("machines", RayVecEnv_Gym, {"in_series": 2, "actors": "machine"})
"""For ``tests/ray``, on simulated machines."""

REMOTE = Backend("remote", lambda *args, **options: hosted().remote_vec_env(*args, **options))

BACKENDS = [DUMMY, THREADS, WORKERS, CALLER_STEPS, REMOTE]
"""Backends that start immediately, for the contract tests."""

EITHER_PLACE = [DUMMY, WORKERS, REMOTE]
"""One backend in this process and two in others, for long tables of values."""

ALL_BACKENDS = [*BACKENDS, SPAWN]
"""All backends, including slow starters, for tests that may depend on the start."""

ALWAYS = (DUMMY, THREADS, WORKERS)


def rows(backends: list[Backend]) -> list[Any]:
    """Return a fixture's parameters, those that start slowly marked as far."""
    far = {
        backend: pytest.mark.far("spawned" if backend is SPAWN else "everywhere")
        for backend in backends
        if backend not in ALWAYS
    }
    return [pytest.param(backend, marks=far.get(backend, ())) for backend in backends]


class Maker:
    """Factory of vectorized environments of one backend, which closes them after the test."""

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
def quick_forkserver(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork workers from a process without threads that has loaded their modules.

    Tests that name another start method get it, and with ``-m long`` defaults are what users get.
    """
    if QUICK_START != "forkserver":
        yield
        return
    multiprocessing.set_forkserver_preload(["tests.shared.preloaded"])
    multiprocessing.set_start_method("forkserver", force=True)
    with pytest.MonkeyPatch.context() as patch:
        # With the modules of a benchmark instead, each later worker would import these itself.
        patch.setattr("multiprocessing.forkserver.set_forkserver_preload", lambda modules: None)
        if request.config.option.markexpr == "not long":
            start_by("forkserver", patch.setattr)
        yield


@pytest.fixture(params=rows(BACKENDS), ids=str)
def make(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """Yield a factory for each backend that starts immediately."""
    yield from _maker(request)


@pytest.fixture(params=rows(EITHER_PLACE), ids=str)
def make_either(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """Yield a factory for backends with environments in this process and in others."""
    yield from _maker(request)


@pytest.fixture(params=[DUMMY, WORKERS], ids=str)
def make_local(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """Yield a factory for local backends, without and with workers, for tests of arguments."""
    yield from _maker(request)


@pytest.fixture(params=rows(ALL_BACKENDS), ids=str)
def make_on_all(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """Yield a factory for each backend, including those that start slowly."""
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
    """Yield a backend's factory, then check that no process is left."""
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
