"""EnvPool, which steps its own C++ environments in threads."""

from __future__ import annotations

from benchmarks.peers.entry import Entry, nearest_id
from xuance_envs.engine.cpus import available_cpus
from xuance_envs.measure import StepLoop


def in_threads(entry: Entry) -> StepLoop:
    entry.need_registered()
    import envpool

    env_id = nearest_id(entry.env_id, envpool.list_all_envs())
    if env_id != entry.env_id:
        entry.note(f"EnvPool steps its {env_id}.")
    pool = envpool.make(
        env_id,
        env_type="gymnasium",
        num_envs=entry.num_envs,
        num_threads=min(entry.num_envs, available_cpus()),
        seed=0,
    )
    entry.stack.callback(pool.close)
    pool.reset()
    dtype = pool.action_space.dtype
    return StepLoop(pool, entry.num_envs, [batch.astype(dtype) for batch in entry.actions])
