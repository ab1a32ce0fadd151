"""The calls of this operating system, as the module ``system``.

The modules ``linux``, ``macos`` and ``windows`` define the same names. No code outside this folder
checks the operating system.
"""

from __future__ import annotations

import sys

if sys.platform == "linux":
    from xuance_envs.engine.system import linux as system
elif sys.platform == "win32":
    from xuance_envs.engine.system import windows as system
else:  # other systems resemble macOS more than Linux
    from xuance_envs.engine.system import macos as system

__all__ = ["system"]
