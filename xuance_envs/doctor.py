"""The command ``doctor``: report the setup and test the backends."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from xuance_envs._version import __version__
from xuance_envs.compat.gymnasium import AsyncVectorEnv, SyncVectorEnv
from xuance_envs.engine.cpus import available_cpus, gil_is_enabled
from xuance_envs.engine.system.current import system
from xuance_envs.extras import EXTRAS, how_to_install, missing_modules
from xuance_envs.gym.gym_env import Gym_Env
from xuance_envs.gym.gym_vec_env import DummyVecEnv_Gym, SubprocVecEnv_Gym
from xuance_envs.report import markdown_table
from xuance_envs.vector_envs.thread_vec_env import ThreadVecEnv_Gym

LIBRARIES = ("gymnasium", "numpy", "torch", "stable-baselines3", "ray", "ale-py", "mujoco", "gym")
GIL_SUSPECTS = ("numpy", "cv2", "torch", "pygame", "ale_py", "mujoco", "Box2D", "ray", "msgpack")
"""Modules of native code; importing one may turn the GIL on in a free-threaded Python."""

ENV = "CartPole-v1"
STEPS = 20


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run_doctor)
    parser.add_argument(
        "--ray", action="store_true", help="also test Ray, which takes about 10 seconds to start"
    )


def run_doctor(args: argparse.Namespace) -> None:
    for title, rows in (("Versions", _versions()), ("This machine", _machine())):
        print(f"## {title}\n\n{markdown_table(('item', 'value'), list(rows))}\n")
    print(f"## Extras\n\n{markdown_table(('extra', 'installed'), list(map(_extra, EXTRAS)))}\n")
    print(f"## {STEPS} steps of 4 {ENV}\n")
    failed = 0
    for name, make in _backends(args.ray):
        start = time.perf_counter()
        print(f"{name:34}", end="", flush=True)
        if name == "RemoteVecEnv" and not system.HAS_SERVER:
            print(f"not on this system: the server does not run on {system.NAME}; the client does")
            continue
        try:
            _smoke_test(make)
        except Exception as error:
            failed += 1
            print(f"failed: {type(error).__name__}: {error}")
        else:
            print(f"ok, {time.perf_counter() - start:.1f} s including startup")
    if failed:
        raise SystemExit(1)


def _versions() -> Iterator[list[str]]:
    yield ["xuance_envs", __version__ + _how_to_install()]
    yield ["Python", f"{platform.python_version()} ({platform.python_implementation()})"]
    yield ["GIL", _gil()]
    yield ["system", platform.platform()]
    for library in LIBRARIES:
        try:
            yield [library, version(library)]
        except PackageNotFoundError:
            yield [library, "not installed"]


def _gil() -> str:
    """Return whether the global interpreter lock is on, and which import turned it on."""
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "on (this Python is not free-threaded)"
    if not gil_is_enabled():
        return "off"
    loaded = [name.partition(".")[0] for name in list(sys.modules)]  # in the order of imports
    modules = dict.fromkeys(filter(str.isidentifier, (*loaded, *GIL_SUSPECTS)))
    imports = [f"with suppress(Exception): import {each}" for each in modules if each != "__main__"]
    command = "\n".join(["from contextlib import suppress", *imports])
    result = subprocess.run(
        [sys.executable, "-W", "always", "-c", command], capture_output=True, text=True, check=False
    )
    guilty = re.findall(r"enabled to load module '(.+?)'", result.stderr)
    return f"on, by the import of {guilty[0]}" if guilty else "on, by PYTHON_GIL=1 or -X gil=1"


def _how_to_install() -> str:
    """Return an installation hint if the package runs uninstalled from a clone."""
    try:
        version("xuance_envs")
    except PackageNotFoundError:
        return f', not installed: pip install "{Path(__file__).parents[1]}"'
    return ""


def _machine() -> Iterator[list[str]]:
    yield ["CPUs", f"{os.cpu_count()} ({available_cpus()} available to this process)"]
    memory = system.available_memory()
    free = "not known on this system" if memory is None else f"{memory / 2**30:.1f} GiB"
    yield ["free shared memory", free]
    for item, there in (
        ("HTTP server", system.HAS_SERVER),
        ("CPU pinning", system.cpu_affinity() is not None),
        ("server limit on a worker's memory", system.LIMITS_MEMORY),
    ):
        yield [item, "yes" if there else "not on this system"]
    if (files := system.open_files_limits()) is not None:
        soft, hard = files
        yield ["open files", f"at most {soft} (can be raised to {hard})"]
    if (processes := system.processes_limits()) is not None:
        yield ["processes", "no limit" if processes[0] is None else f"at most {processes[0]}"]
    yield ["start methods", ", ".join(multiprocessing.get_all_start_methods())]


def _extra(extra: str) -> list[str]:
    missing = missing_modules(extra)
    if not missing:
        return [extra, "yes"]
    return [extra, f"{', '.join(missing)} missing: {how_to_install(extra, *missing)}"]


def _backends(with_ray: bool) -> Iterator[tuple[str, Callable[[], AbstractContextManager[Any]]]]:
    """Yield the name and factory of each backend to test."""
    methods: list[Any] = multiprocessing.get_all_start_methods()
    classes: dict[str, Callable[..., Any]] = {
        "DummyVecEnv_Gym": DummyVecEnv_Gym,
        "ThreadVecEnv_Gym": ThreadVecEnv_Gym,
        **{f"SubprocVecEnv_Gym, {m}": partial(SubprocVecEnv_Gym, context=m) for m in methods},
        "SubprocVecEnv_Gym, caller_steps": partial(SubprocVecEnv_Gym, caller_steps=True),
        "compat.gymnasium.SyncVectorEnv": SyncVectorEnv,
        "compat.gymnasium.AsyncVectorEnv": AsyncVectorEnv,
    }
    if not missing_modules("sb3"):
        from xuance_envs.compat import sb3

        classes["compat.sb3.SubprocVecEnv"] = sb3.SubprocVecEnv
    if with_ray:
        from xuance_envs.vector_envs.ray_vec_env import RayVecEnv_Gym

        classes["RayVecEnv_Gym"] = RayVecEnv_Gym
    env_fns = [partial(Gym_Env, ENV)] * 4
    for name, make in classes.items():
        yield name, partial(lambda make: closing(make(env_fns)), make)
    if not missing_modules("remote"):
        yield "RemoteVecEnv", _running_server


@contextmanager
def _running_server() -> Iterator[Any]:
    from xuance_envs.remote.client.remote_vec_env import RemoteVecEnv
    from xuance_envs.remote.server import Server
    from xuance_envs.remote.settings import Catalogue, Settings

    settings = Settings(Catalogue.of_ids([ENV]))
    with Server(settings, port=0) as server, RemoteVecEnv(server.url, ENV, 4) as envs:
        yield envs


def _smoke_test(make: Callable[[], AbstractContextManager[Any]]) -> None:
    with make() as envs:
        envs.reset()
        for _ in range(STEPS):
            envs.step([0, 1, 0, 1])
