"""Fast, fault-tolerant vectorized environments for reinforcement learning.

The names that ``__init__.pyi`` lists can be imported from here. They are loaded on first use, so
importing the package loads neither its subpackages nor optional dependencies.
"""

from __future__ import annotations

from xuance_envs._version import __version__ as __version__
from xuance_envs.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
