"""Programs that leave it to the vector environment to start Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import pytest
from ray_actors import VARIABLES

import xuance_envs

ROOT = Path(xuance_envs.__file__).parents[1]

SCRIPT = """
import gymnasium, numpy as np, ray
from xuance_envs import EnvError, RayVecEnv_Gym, WorkerDiedError

class TooFar(Exception):
    pass

class OwnEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1), {"made by": type(self)}

    def step(self, action):
        if action:
            raise TooFar("one too many")
        return np.ones(1), 1.0, False, False, {}

few = dict(num_cpus_per_worker=0.01)
forgotten = RayVecEnv_Gym([OwnEnv], **few)
forgotten.reset()
ray.shutdown()
try:
    forgotten.step([0])
except WorkerDiedError as error:
    print("lost:", "the connection to Ray has been shut down" in str(error))
print("not started again:", not ray.is_initialized())

envs = RayVecEnv_Gym([OwnEnv, lambda: OwnEnv()], 1, **few)
forgotten.close()
others = RayVecEnv_Gym([OwnEnv], **few)
print("own class:", envs.reset()[1][1]["made by"] is OwnEnv)
try:
    envs.step([0, 1])
except EnvError as error:
    print("own exception:", type(error.__cause__) is TooFar)
print("closed:", envs.closed, "in use:", ray.is_initialized())
print("steps:", others.reset()[0].tolist(), others.step([0])[0].tolist())
others.close()
print("shut down:", not ray.is_initialized())
"""

EXPECTED = """\
lost: True
not started again: True
own class: True
own exception: True
closed: True in use: True
steps: [[0.0]] [[1.0]]
shut down: True
"""


def running_with(mark: str) -> list[str]:
    """The command lines of processes that have it in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.mark.slow("starts Ray twice")
def test_a_script_without_a_guard_starts_ray_and_leaves_nothing_behind(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    mark = uuid.uuid4().hex
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    settings = {name: value for name, value in VARIABLES.items() if "USAGE" not in name}
    settings["RAY_ADDRESS"] = "local"  # else it joins a cluster of tests that run beside it
    result = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={**environ, **settings, "PYTHONPATH": str(ROOT), "XUANCE_ENVS_TEST": mark},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout == EXPECTED
    deadline = time.monotonic() + 30
    while (left := running_with(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
