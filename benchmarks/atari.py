"""Measure steps per second of Atari games, against other libraries and the bare emulator."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import gymnasium

from benchmarks.peers import Entry, LeftOut, Peer, nearest_id
from benchmarks.shared.contest import Results, join_peers, race, ratios
from benchmarks.shared.emulator import emulator_loop
from benchmarks.shared.question import (
    add_outputs,
    add_rounds,
    begin,
    finish,
    make_parser,
    with_notes,
)
from benchmarks.shared.reference import LIMIT, Limit
from xuance_envs.engine.cpus import available_cpus
from xuance_envs.gym.atari_env import Atari_Env
from xuance_envs.gym.atari_games import full_id, load_ale
from xuance_envs.gym.gym_vec_env import DummyVecEnv_Atari, SubprocVecEnv_Atari
from xuance_envs.measure import Runner, StepLoop, Throughput, sample_actions
from xuance_envs.report import markdown_table, plot_throughput
from xuance_envs.vector_envs.vector_env import VecEnv

SIZE = 84
FRAME_SKIP = NUM_STACK = 4
NOOP_MAX = 30
# All implementations play whole games, without sticky actions, after up to 30 no-ops.
PREPROCESSING: dict[str, Any] = {
    "image_size": SIZE,
    "frame_skip": FRAME_SKIP,
    "num_stack": NUM_STACK,
    "noop_max": NOOP_MAX,
    "terminal_on_life_loss": False,
    "repeat_action_probability": 0.0,
}

BACKENDS: dict[str, tuple[str, Callable[..., VecEnv]]] = {
    "dummy": ("Dummy", DummyVecEnv_Atari),
    "subproc": ("Subproc", SubprocVecEnv_Atari),
    "caller": ("Subproc, caller_steps", partial(SubprocVecEnv_Atari, caller_steps=True)),
}


def ale_vector(entry: Entry) -> StepLoop:
    """Make ale-py's ``AtariVectorEnv``, in C++."""
    ale_py = load_ale()
    if not hasattr(ale_py, "AtariVectorEnv"):
        raise LeftOut("this version of ale-py has no AtariVectorEnv")
    game = gymnasium.spec(entry.env_id).kwargs["game"]
    envs = ale_py.AtariVectorEnv(
        game,
        entry.num_envs,
        img_height=SIZE,
        img_width=SIZE,
        frameskip=FRAME_SKIP,
        stack_num=NUM_STACK,
        noop_max=NOOP_MAX,
        repeat_action_probability=0.0,
    )
    entry.stack.callback(envs.close)
    envs.reset(seed=0)
    return StepLoop(envs, entry.num_envs, entry.actions)


def envpool(entry: Entry) -> StepLoop:
    """Make EnvPool's Atari environments, in C++."""
    import envpool

    pool = envpool.make(
        nearest_id(entry.env_id, envpool.list_all_envs()),
        env_type="gymnasium",
        num_envs=entry.num_envs,
        num_threads=min(entry.num_envs, available_cpus()),
        img_height=SIZE,
        img_width=SIZE,
        frame_skip=FRAME_SKIP,
        stack_num=NUM_STACK,
        noop_max=NOOP_MAX,
        reward_clip=True,
        repeat_action_probability=0.0,
        seed=0,
    )
    entry.stack.callback(pool.close)
    pool.reset()
    dtype = pool.action_space.dtype
    return StepLoop(pool, entry.num_envs, [batch.astype(dtype) for batch in entry.actions])


def gymnasium_async(entry: Entry) -> StepLoop:
    """Make Gymnasium's ``AsyncVectorEnv`` with its Atari wrappers."""
    entry.need_processes()
    envs = gymnasium.vector.AsyncVectorEnv([partial(wrapped, entry.env_id)] * entry.num_envs)
    entry.stack.callback(envs.close)
    envs.reset(seed=0)
    return StepLoop(envs, entry.num_envs, entry.actions)


def wrapped(env_id: str) -> gymnasium.Env[Any, Any]:
    """Make one environment with Gymnasium's preprocessing."""
    load_ale()
    env = gymnasium.make(env_id, frameskip=1, repeat_action_probability=0.0)
    env = gymnasium.wrappers.AtariPreprocessing(
        env, noop_max=NOOP_MAX, frame_skip=FRAME_SKIP, screen_size=SIZE
    )
    return gymnasium.wrappers.FrameStackObservation(env, NUM_STACK)


PEERS = {
    "ale": Peer("ale-py AtariVectorEnv", ale_vector),
    "envpool": Peer("EnvPool", envpool),
    "gymnasium-async": Peer("Gymnasium Async", gymnasium_async),
}


KINDS = {title: "xuance_envs" for title, _ in BACKENDS.values()}
KINDS |= {peer.title: "others" for peer in PEERS.values()}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("atari", __doc__)
    add = parser.add_argument
    add("--games", nargs="+", default=["Breakout", "Pong"], metavar="GAME")
    add("--num-envs", type=int, nargs="+", default=[8, 32], metavar="N")
    add(
        "--backends",
        nargs="+",
        choices=BACKENDS,
        default=["subproc", "caller"],
        help="backends of this package",
    )
    add(
        "--peers",
        nargs="*",
        choices=PEERS,
        default=list(PEERS),
        help="other libraries (default: all)",
    )
    add_rounds(parser, seconds=1.0)
    add_outputs(parser, "atari table", "plot the medians")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = begin()
    results = {game: Results() for game in dict.fromkeys(map(full_id, args.games))}
    for args.env, found in results.items():
        for num_envs in dict.fromkeys(args.num_envs):
            make = partial(make_runners, args, num_envs, found)
            measured = race(args, f"{num_envs} environments", make, found.note)
            found.panels[num_envs] = list(measured.values())
    print(f"\nrandom actions, {args.rounds} rounds of {args.seconds:g} s\n")
    notes = [f"{env_id}, {note}" for env_id, found in results.items() for note in found.notes]
    text = with_notes(table(results), notes)
    print(text)
    finish(args, __doc__, run, text, preprocessing=PREPROCESSING, results=records(results))
    if args.png:
        draw(args, run, results)


def make_runners(
    args: argparse.Namespace, num_envs: int, results: Results, stack: ExitStack
) -> dict[str, Runner]:
    """Make and reset all implementations; the stack closes them."""
    with gymnasium.make(args.env) as env:
        actions = sample_actions(env.action_space, num_envs)
    limit = Limit(args.env, num_envs, emulator_loop)
    stack.callback(limit.close)
    runners: dict[str, Runner] = {LIMIT: limit}
    for name in args.backends:
        title, make = BACKENDS[name]
        vec_env = stack.enter_context(
            make([partial(Atari_Env, args.env, **PREPROCESSING)] * num_envs)
        )
        vec_env.reset(seed=0)
        runners[title] = StepLoop(vec_env, num_envs, actions)
    entry = Entry(args.env, num_envs, actions, stack, results.note)
    return runners | join_peers(args.peers, entry, f"{num_envs} environments", PEERS)


def table(results: dict[str, Results]) -> str:
    others = others_in(results)
    rows = []
    for env_id, found in results.items():
        for panel in found.panels.values():
            ratio = ratios(panel, others)
            for result in panel:
                cells = [ratio[result.name].get(other) for other in others]
                rows.append(
                    [
                        f"{result.num_envs} {env_id}",
                        result.name,
                        f"{result.median:,.0f}",
                        f"{result.spread:.0%}",
                        *("-" if cell is None else f"{cell:.2f}" for cell in cells),
                    ]
                )
    header = ["environments", "implementation", "steps/s", "spread", "of the limit"]
    return markdown_table(header + [f"× {other}" for other in others[1:]], rows, words=2)


def others_in(results: dict[str, Results]) -> list[str]:
    """Return the baselines: :data:`LIMIT`, and the other libraries that took part."""
    names = {
        result.name
        for found in results.values()
        for panel in found.panels.values()
        for result in panel
    }
    return [LIMIT, *(peer.title for peer in PEERS.values() if peer.title in names)]


def records(results: dict[str, Results]) -> list[dict[str, Any]]:
    """Return all figures for the JSON file."""
    others = others_in(results)

    def record(env_id: str, panel: Sequence[Throughput], result: Throughput) -> dict[str, Any]:
        return {
            "environment": env_id,
            "environments": result.num_envs,
            "contender": result.name,
            "steps_per_second": result.median,
            "spread": result.spread,
            "rounds": result.rates,
            "relative_to": ratios(panel, others)[result.name],
        }

    return [
        {**record(env_id, panel, result), "notes": found.notes}
        for env_id, found in results.items()
        for panel in found.panels.values()
        for result in panel
    ]


def draw(args: argparse.Namespace, run: dict[str, Any], results: dict[str, Results]) -> None:
    """Draw a panel per game and number of environments."""
    machine = run["machine"]
    panels = {
        f"{num_envs} {env_id}": panel
        for env_id, found in results.items()
        for num_envs, panel in found.panels.items()
    }
    plot_throughput(
        panels,
        args.png,
        title=f"random actions, {machine['cores']} cores of {machine['cpu']}",
        kinds=KINDS,
        limit=LIMIT,
    )


if __name__ == "__main__":
    main()
