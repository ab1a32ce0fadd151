"""Other libraries, each with a small adapter that imports the library on first use.

All but EnvPool step the same ``gymnasium.make`` environments; EnvPool has its own in C++. Every
library runs with its defaults. This favors Gymnasium and EnvPool: after an episode's end, their
next step only resets the environment, but counts as a step. Tianshou's users reset ended
environments themselves, so the adapter resets them within the step, in one call. If a library's
requirements conflict with those of this package, the library runs in its own virtual environment
and process, which also measures the time: see :mod:`benchmarks.peers.elsewhere`.
"""

from __future__ import annotations

from benchmarks.peers import elsewhere, envpool, gymnasium, sb3, tianshou, torchrl
from benchmarks.peers.entry import Entry, LeftOut, Peer, make_peer, nearest_id

__all__ = ["PEERS", "Entry", "LeftOut", "Peer", "make_peer", "nearest_id"]

PEERS = {
    "gymnasium-sync": Peer("Gymnasium Sync", gymnasium.sync, "gymnasium"),
    "gymnasium-async": Peer("Gymnasium Async", gymnasium.in_processes, "gymnasium"),
    "sb3-dummy": Peer("SB3 Dummy", sb3.dummy, "stable_baselines3"),
    "sb3-subproc": Peer("SB3 Subproc", sb3.subproc, "stable_baselines3"),
    "tianshou-dummy": Peer("Tianshou Dummy", tianshou.dummy, "tianshou"),
    "tianshou-shmem": Peer("Tianshou Shmem", tianshou.shmem, "tianshou"),
    "torchrl-serial": Peer("TorchRL Serial", torchrl.serial, "torchrl"),
    "torchrl-parallel": Peer("TorchRL Parallel", torchrl.parallel, "torchrl"),
    "xuance-dummy": Peer("XuanCe Dummy", elsewhere.xuance_dummy, "xuance"),
    "xuance-subproc": Peer("XuanCe Subproc", elsewhere.xuance_subproc, "xuance"),
    "pufferlib-serial": Peer("PufferLib Serial", elsewhere.pufferlib_serial, "pufferlib"),
    "pufferlib": Peer("PufferLib Multiprocessing", elsewhere.pufferlib, "pufferlib"),
    "envpool": Peer("EnvPool", envpool.in_threads, "envpool"),
}
