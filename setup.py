"""Package metadata. The version is in ``xuance_envs/_version.py``."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
REPOSITORY = "https://github.com/xuance-envs/xuance_envs"
VERSION = runpy.run_path(str(ROOT / "xuance_envs" / "_version.py"))["__version__"]

# Upper bounds for Python 3.10 are the last releases with wheels for it. Markers with an upper bound
# of the Python leave out libraries that cannot be installed from wheels on newer ones; pygame-ce
# replaces pygame.
EXTRAS = {
    "atari": [
        'ale-py>=0.10.2; python_version < "3.15"',
        # On Linux the headless build, which needs no system libraries.
        'opencv-python>=4.8.0.76; sys_platform != "linux"',
        'opencv-python-headless>=4.8.0.76; sys_platform == "linux"',
    ],
    "box2d": ['gymnasium[box2d]>=1.1; python_version < "3.14"'],
    "gym": ["gym==0.26.2"],
    "mujoco": [
        "gymnasium[mujoco]>=1.1",
        'mujoco>=3.3.4; python_version >= "3.11"',
        'mujoco>=3.3.4,<4; python_version < "3.11"',
    ],
    "multi-agent": [
        'mpe2>=1; python_version < "3.14"',
        'pettingzoo>=1.25; python_version < "3.15"',
    ],
    "multi-objective": ['mo-gymnasium>=1.3; python_version < "3.14"'],
    "torch": ["torch>=2.4", "tqdm>=4.64", "Pillow>=10.1"],
    "remote": [
        "fastapi>=0.110",
        "uvicorn[standard]>=0.27,<0.55",  # its connections are a base class here
        "httptools>=0.6",
        "msgpack>=1.0.5",
        'orjson>=3.9.15; python_version < "3.15"',
        "psutil>=5.9",
    ],
    "ray": ['ray>=2.10; python_version < "3.15"'],
    "sb3": ["stable-baselines3>=2.6"],
    "plot": ["matplotlib>=3.8", "tqdm>=4.64"],
}
RENDERING = [
    'gymnasium[classic-control]>=1.1; python_version < "3.14"',
    'pygame-ce>=2.5.6; python_version >= "3.14"',
]
EXTRAS["demo"] = [*EXTRAS["plot"], *EXTRAS["torch"], *RENDERING]
EXTRAS["all"] = sorted({requirement for extra in EXTRAS.values() for requirement in extra})
EXTRAS["docs"] = [
    "sphinx>=7.2",
    "furo>=2024.1.29",
    "myst-parser>=3",
    "sphinx-copybutton>=0.5.2",
    "sphinx-design>=0.6",
    "sphinx-reredirects>=0.1.5",
    "websockets>=13",  # docs/check_pages.py controls a browser
]
EXTRAS["test"] = [
    *EXTRAS["box2d"],
    *EXTRAS["multi-agent"],
    "array-api-compat>=1.11",  # for Gymnasium's NumpyToTorch
    *RENDERING,
    'envpool>=1.1; sys_platform == "linux" and python_version >= "3.11" '
    'and python_version < "3.15"',
    "httpx>=0.27",
    "hypothesis>=6.136",
    'moviepy>=1.0.3; python_version < "3.15"',  # for Stable-Baselines3's VecVideoRecorder
    "pytest>=8.4",
    "pytest-timeout>=2.3.1",
    "pytest-xdist>=3.8",
    "sb3-contrib>=2.6",  # for MaskablePPO, with action masks
    "schemathesis>=4",
]
EXTRAS["dev"] = [
    *EXTRAS["test"],
    "basedpyright>=1.31",  # brings Node.js
    "build>=1.2",
    "mypy>=2.0",
    "ruff>=0.6",
    "types-psutil>=5.9",
    "types-tqdm>=4.64",
]


def long_description() -> str:
    """Return the README with absolute links: package indexes do not host the files it links to."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{REPOSITORY}/raw/main/", text)
    return re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)(?=\w)", rf"\1{REPOSITORY}/blob/main/", text)


class BuildWithExample(build_py):
    """Add the demo's training script to wheels. A clone has it in ``examples``."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib, "xuance_envs", "examples")
            self.mkpath(str(folder))
            self.copy_file(str(ROOT / "examples" / "train_ppo.py"), str(folder))


setup(
    name="xuance_envs",
    version=VERSION,
    description="Fast, fault-tolerant vectorized environments for reinforcement learning",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="xuance_envs contributors",
    url=REPOSITORY,
    project_urls={
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
        "Security": f"{REPOSITORY}/blob/main/SECURITY.md",
        "Source": REPOSITORY,
    },
    license_expression="MIT",
    license_files=["LICENSE"],
    keywords=[
        "reinforcement learning",
        "vectorized environments",
        "vector environments",
        "VecEnv",
        "parallel environments",
        "asynchronous stepping",
        "multi-agent",
        "Gymnasium",
        "PettingZoo",
        "Stable-Baselines3",
        "Tianshou",
        "XuanCe",
        "Atari",
        "MuJoCo",
        "Ray",
    ],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Programming Language :: Python :: Free Threading :: 1 - Unstable",
        "Programming Language :: Python :: Implementation :: CPython",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["xuance_envs", "xuance_envs.*"]),
    cmdclass={"build_py": BuildWithExample},
    package_data={
        "xuance_envs": [
            *("py.typed", "*.pyi", "*/__init__.pyi", "remote/*/__init__.pyi"),
            "remote/server/routes/*.html",
        ]
    },
    zip_safe=False,
    python_requires=">=3.10",
    install_requires=[
        'numpy>=1.26; python_version >= "3.11"',
        'numpy>=1.26,<2.3; python_version < "3.11"',
        "gymnasium>=1.1",
        "cloudpickle>=3,<4",
    ],
    extras_require=EXTRAS,
)
