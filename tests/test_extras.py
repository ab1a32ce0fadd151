"""Imports without some extras, and the errors that name the extra to install."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from unittest import mock

import pytest
from warm_python import run_python

from xuance_envs.extras import EXTRAS, LEFT_OUT_FROM, how_to_install

ROOT = Path(__file__).parents[1]
MODULES = {module for modules in EXTRAS.values() for module in modules}
NAMES = {
    "torch": [
        "MultiAgentRolloutCollector",
        "RayRolloutCollector",
        "RolloutCollector",
        "SyncVecEnv",
    ],
    "remote": ["RemoteVecEnv", "StudentGymEnvVectorized", "create_student_gym_env_vectorized"],
}
"""Public names that require an extra."""

BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name in sys.argv:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
for name in [name for name in sys.modules if name.partition(".")[0] in sys.argv]:
    del sys.modules[name]
"""


def output_without(missing: set[str], code: str) -> str:
    """Run code in a process that cannot import some modules, and return its output."""
    result = run_python("-c", BLOCK + code, *missing, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("extra", [None, *EXTRAS])
def test_import_star_works_with_one_extra_or_none(extra: str | None) -> None:
    present = set(EXTRAS[extra]) if extra else set()
    names = NAMES.get(str(extra), [])
    code = (
        "from xuance_envs import *\n"
        "import xuance_envs\n"
        "assert {'make_vec', 'Atari_Env', 'RayVecEnv_Gym'} <= set(xuance_envs.__all__)\n"
        f"print(*[getattr(xuance_envs, name).__name__ for name in {names}])"
    )
    assert output_without(MODULES - present, code).split() == names


@pytest.mark.parametrize(
    ("module", "extra", "code"),
    [
        ("torch", "torch", "from xuance_envs import RolloutCollector"),
        ("msgpack", "remote", "from xuance_envs import RemoteVecEnv"),
        ("uvicorn", "remote", "from xuance_envs.remote.server import Server; Server(None)"),
        ("stable_baselines3", "sb3", "import xuance_envs.compat.sb3"),
        ("ray", "ray", "from xuance_envs import RayVecEnv_Gym; RayVecEnv_Gym([lambda: None])"),
        ("gym", "gym", "from xuance_envs import Gym_Env; Gym_Env('Old-v0', library='gym')"),
        ("ale_py", "atari", "from xuance_envs import Atari_Env; Atari_Env('Pong')"),
        ("cv2", "atari", "from xuance_envs import Atari_Env; Atari_Env('Pong')"),
        ("mujoco", "mujoco", "from xuance_envs import Gym_Env; Gym_Env('HalfCheetah-v5')"),
        (
            "Box2D",
            "box2d",
            "from xuance_envs import make_vec; make_vec('LunarLander-v3', 2, backend='dummy')",
        ),
        (
            "Box2D",
            "box2d",
            "from xuance_envs import make_vec\n"
            "    make_vec('LunarLander-v3', 2, vectorization_mode='sync')",
        ),
        (
            "mpe2",
            "multi-agent",
            "from xuance_envs import make_multi_agent_vec\n"
            "    make_multi_agent_vec('mpe2:simple_spread_v3', 2, backend='dummy')",
        ),
        (
            "mo_gymnasium",
            "multi-objective",
            "from xuance_envs import Gym_Env; Gym_Env('mo_gymnasium:deep-sea-treasure-v0')",
        ),
        (
            "pettingzoo",
            "multi-agent",
            "from xuance_envs import as_parallel_env; as_parallel_env(None, 0)",
        ),
    ],
)
def test_the_error_names_the_extra_to_install(module: str, extra: str, code: str) -> None:
    for imported_before in {"cv2": ["ale_py"], "uvicorn": ["fastapi", "msgpack"]}.get(module, []):
        pytest.importorskip(imported_before)
    text = output_without({module}, f"try:\n    {code}\nexcept Exception as error: print(error)")
    expected = f"requires {module}, which is not installed: {how_to_install(extra, module)}"
    assert expected in text


@pytest.mark.parametrize(
    ("minor", "missing", "expected"),
    [
        (13, ["mpe2"], 'pip install "xuance_envs[multi-agent]"'),
        (14, ["mpe2"], "not available for Python 3.14 or later"),
        (14, ["mpe2", "pettingzoo"], 'pip install "xuance_envs[multi-agent]"'),
        (15, ["mpe2", "pettingzoo"], "not available for Python 3.15 or later"),
        (15, [], 'pip install "xuance_envs[multi-agent]"'),
    ],
)
def test_extras_that_would_not_install_the_module_are_not_recommended(
    monkeypatch: pytest.MonkeyPatch, minor: int, missing: list[str], expected: str
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, minor))
    assert how_to_install("multi-agent", *missing) == expected


def test_extras_leave_out_the_stated_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    setuptools = pytest.importorskip("setuptools")
    monkeypatch.chdir(ROOT)
    with mock.patch.object(setuptools, "setup") as setup:
        runpy.run_path("setup.py")
    declared = setup.call_args.kwargs["extras_require"]
    markers = {}
    for requirement in {each for extra in EXTRAS for each in declared[extra]}:
        if found := re.match(r'([\w-]+).*; python_version < "3\.(1[2-9])"', requirement):
            module = "Box2D" if "[box2d]" in requirement else found[1].replace("-", "_")
            markers[module] = int(found[2])
    markers.pop("orjson")  # optional: JSON works without it
    assert markers == LEFT_OUT_FROM
