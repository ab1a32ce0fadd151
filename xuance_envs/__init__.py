"""Vectorized reinforcement-learning environments in the XuanCe style.

Every public name can be imported from here, and is loaded from its home when it is first used:
importing the package loads none of its parts, and nothing that only some of them need.
"""

from __future__ import annotations

from xuance_envs._version import __version__ as __version__
from xuance_envs.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
