"""This package's backends and other libraries by name, for any environments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import gymnasium

from benchmarks.peers import PEERS, Entry, Peer
from benchmarks.shared.contest import join_peers
from benchmarks.shared.ours import BACKENDS
from xuance_envs.measure import Runner, StepLoop, sample_actions

DEFAULT = ("dummy", "subproc", "caller", "gymnasium-sync", "gymnasium-async")
"""This package's main backends, and Gymnasium's."""

KINDS = {backend.title: "xuance_envs" for backend in BACKENDS.values()}
KINDS |= {peer.title: "others" for peer in PEERS.values()}


def _ours(name: str) -> Callable[[Entry], StepLoop]:
    def make(entry: Entry) -> StepLoop:
        vec_env = entry.stack.enter_context(BACKENDS[name].make(entry.env_fns()))
        vec_env.reset(seed=0)
        return StepLoop(vec_env, entry.num_envs, entry.actions)

    return make


CONTENDERS = {name: Peer(backend.title, _ours(name)) for name, backend in BACKENDS.items()}
CONTENDERS |= PEERS


def join(
    names: Iterable[str],
    functions: Sequence[Callable[[], Any]],
    space: gymnasium.Space[Any],
    what: str,
    stack: ExitStack,
    note: Callable[[str], None],
    env_id: str = "",
    quick_start: bool = True,
) -> dict[str, Runner]:
    """Make all implementations that can take part, by title; the stack closes them.

    Without ``env_id``, libraries that create environments themselves are left out.
    """
    actions = sample_actions(space, len(functions))
    known = None if env_id else functions
    entry = Entry(env_id, len(functions), actions, stack, note, known, quick_start)
    return join_peers(names, entry, what, CONTENDERS)
