"""Imports for the tests' forkserver, so that its workers start in milliseconds.

The forkserver imports this module by its full name, because up to Python 3.12 it ignores folders
that its parent added to ``sys.path``.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

FOLDER = str(Path(__file__).parent)
MODULES = [
    "multiprocessing.popen_forkserver",
    "xuance_envs.engine.process.worker",
    "xuance_envs.engine.group.group_states",
    "xuance_envs.multi_agent.adapters",
    "xuance_envs.remote.server.hosting.repeating_env",
    "agents_envs",
    "backends",
    "comparing",
    "compat_envs",
    "example_envs",
    "faulty_envs",
    "image_envs",
    "masked_envs",
    "play_envs",
    "stateful_envs",
    "walking",
]

if FOLDER not in sys.path:
    sys.path.insert(0, FOLDER)
for name in MODULES:
    importlib.import_module(name)
