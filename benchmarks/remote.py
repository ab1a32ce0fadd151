"""Measure a vectorized environment over HTTP on this machine.

The script compares it with vectorized environments in this process and in a worker process. Then
the script measures many concurrent sessions: requests per second, latency, and fairness. Finally,
it measures the delay of other clients and the server's memory during expensive requests; this needs
the program openssl.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.shared.attacks import Attacker, Effect, effects
from benchmarks.shared.contest import race
from benchmarks.shared.question import add_outputs, begin, finish, make_parser, with_notes
from benchmarks.shared.sessions import Load, load
from xuance_envs.gym.gym_env import Gym_Env
from xuance_envs.gym.gym_vec_env import DummyVecEnv_Gym, SubprocVecEnv_Gym
from xuance_envs.measure import StepLoop, Throughput, sample_actions
from xuance_envs.remote.client.api_client import ApiClient
from xuance_envs.remote.remote_vec_env import RemoteVecEnv
from xuance_envs.report import markdown_table

ROOT = Path(__file__).parents[1]
REMOTE, DUMMY, WORKER = "RemoteVecEnv", "DummyVecEnv_Gym", "SubprocVecEnv_Gym, one worker"
TWO_WORKERS = "RemoteVecEnv, two workers"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("remote", __doc__)
    add = parser.add_argument
    add("--env", default="CartPole-v1", metavar="ID", help="default: %(default)s")
    add("--num-envs", type=int, default=64, metavar="N", help="default: %(default)s")
    add("--seconds", type=float, default=1.0, help="duration of each run (default: %(default)s)")
    add("--rounds", type=int, default=7, help="interleaved runs (default: %(default)s)")
    add("--sessions", type=int, nargs="*", default=[32, 200], metavar="N",
        help="concurrent sessions of 8 environments each (default: 32 200)")  # fmt: skip
    add("--attacks", type=int, default=3, metavar="N",
        help="repetitions of each attack, 0 for none (default: %(default)s)")  # fmt: skip
    add_outputs(parser, "remote table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = begin()
    notes: list[str] = []
    results, requests = measure_remote(args, notes)
    here = results[DUMMY]
    header = ("implementation", "steps/s", "spread", "µs per vector step", f"× {DUMMY}")
    rows = [
        [
            name,
            f"{result.median:,.0f}",
            f"{result.spread:.0%}",
            f"{args.num_envs / result.median * 1e6:,.0f}",
            f"{result.relative_to(here):.2f}",
        ]
        for name, result in results.items()
    ]
    loads = {sessions: measure_sessions(args, sessions) for sessions in args.sessions}
    notes.append(f"requests per vector step: {requests:g}")
    text = with_notes(markdown_table(header, rows), notes)
    if loads:
        text += "\n\n" + table_of(loads)
    found = measure_attacks(args.env, args.attacks) if args.attacks else {}
    if found:
        rows = [
            [name, f"{each.health * 1e3:.0f} ms", f"{each.step * 1e3:.0f} ms", f"{each.growth:.0f}"]
            for name, each in found.items()
        ]
        others = "longest /healthz of other clients", "longest step of a small session"
        text += "\n\n" + markdown_table(("expensive request", *others, "+ MiB of server"), rows)
    print(f"\n{args.num_envs} × {args.env}\n\n{text}")
    kept = {name: dataclasses.asdict(result) for name, result in results.items()}
    kept |= {f"{count} sessions": dataclasses.asdict(each) for count, each in loads.items()}
    kept |= {"attacks": {name: each._asdict() for name, each in found.items()}} if found else {}
    kept["requests per vector step"] = {"count": requests}
    finish(args, __doc__, run, text, results=kept)


def measure_sessions(args: argparse.Namespace, sessions: int) -> Load:
    """Run three times with a number of sessions; return the run with the median request rate."""
    many = str(sessions * 8)
    limits = [
        *("--max-sessions", many, "--max-sessions-per-token", many, "--max-envs", many),
        *("--max-envs-per-token", many, "--max-processes", many),
        *("--max-processes-per-token", many),
    ]
    with served(args.env, *limits) as (url, _):
        runs = load(url, args.env, sessions, 8, 3 * args.seconds, runs=3)
    return sorted(runs, key=lambda run: run.requests)[1]


def measure_attacks(env_id: str, times: int) -> dict[str, Effect]:
    """Return the effects of each attack with the default limits; the first one is no attack."""

    def usual(attacker: Attacker) -> dict[str, Callable[[], object]]:
        return {"none": lambda: time.sleep(0.3), **attacker.attacks}

    with served(env_id, "--allow-option", "a") as (url, pid):
        found = effects(url, pid, times, usual)
    with served("benchmarks.shared.text_env:benchmarks/Text-v0") as (url, pid):
        found |= effects(
            url, pid, times, lambda attacker: {"64,000 texts of 30 KB": attacker.texts}
        )
    with served("benchmarks.shared.heavy_env:benchmarks/Heavy-v0") as (url, pid):
        found |= effects(url, pid, times, lambda attacker: attacker.on_states)
    with certificate() as (certfile, keyfile):
        files = "--certfile", certfile, "--keyfile", keyfile
        with served(env_id, *files) as (url, pid):
            found |= effects(
                url,
                pid,
                times,
                lambda attacker: {
                    "1,200 connections without TLS handshake": attacker.silent,
                    "1,200 connections that begin a TLS handshake": attacker.unfinished,
                    "1,200 TLS connections with unread replies": attacker.pipelined,
                },
                certfile,
            )
    return found


@contextmanager
def certificate() -> Iterator[tuple[str, str]]:
    """Create a TLS certificate for the loopback address; yield its file and its key's file."""
    with tempfile.TemporaryDirectory() as folder:
        certfile, keyfile = f"{folder}/cert.pem", f"{folder}/key.pem"
        command = (
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", keyfile, "-out", certfile),
        )
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        yield certfile, keyfile


def table_of(loads: Mapping[int, Load]) -> str:
    """Return the table of concurrent sessions."""
    header = ("sessions of 8", "requests/s", "p50", "p99", "slowest session, × mean", "/healthz")
    rows = [
        [
            f"{sessions}",
            f"{each.requests:,.0f}",
            f"{each.p50 * 1e3:.1f} ms",
            f"{each.p99 * 1e3:.1f} ms",
            f"{each.least:.2f}",
            f"at most {each.health * 1e3:.0f} ms",
        ]
        for sessions, each in loads.items()
    ]
    return markdown_table(header, rows)


def measure_remote(
    args: argparse.Namespace, notes: list[str]
) -> tuple[dict[str, Throughput], float]:
    """Return the figures of each implementation, and the requests per vector step."""
    functions = [partial(Gym_Env, args.env)] * args.num_envs
    with (
        served(args.env, "--max-workers", "2") as (url, _),
        RemoteVecEnv(url, args.env, args.num_envs) as remote,
        RemoteVecEnv(url, args.env, args.num_envs, num_workers=2) as in_two,
        DummyVecEnv_Gym(functions) as dummy,
        SubprocVecEnv_Gym(functions, in_series=args.num_envs) as worker,
    ):
        actions = sample_actions(dummy.action_space, args.num_envs)
        loops = {}
        vec_envs = {DUMMY: dummy, REMOTE: remote, TWO_WORKERS: in_two, WORKER: worker}
        for name, vec_env in vec_envs.items():
            vec_env.reset(seed=0)
            loops[name] = StepLoop(vec_env, args.num_envs, actions)
        results = race(args, "remote", lambda _: loops, notes.append)
        with counted_requests() as counts:
            loops[REMOTE].run(20)
        return results, len(counts) / 20


@contextmanager
def served(env_id: str, *more: str) -> Iterator[tuple[str, int]]:
    """Start a server process with the command line; yield its address and process id."""
    command = [sys.executable, "-m", "xuance_envs", "serve", "--env", env_id, "--port", "0"]
    command += ["--no-access-log", *more]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            match = re.search(r"https?://[\d.:]+", said)
            if match is None:
                raise RuntimeError(f"the server did not start; its output: {said!r}")
            yield match[0], server.pid
        finally:
            server.terminate()


@contextmanager
def counted_requests() -> Iterator[list[str]]:
    """Record the paths of all requests of clients in this process."""
    paths: list[str] = []
    request = ApiClient.request

    def counted(self: ApiClient, method: str, path: str, *args: object, **kwargs: object) -> object:
        paths.append(path)
        return request(self, method, path, *args, **kwargs)  # type: ignore[arg-type]

    ApiClient.request = counted  # type: ignore[method-assign]
    try:
        yield paths
    finally:
        ApiClient.request = request  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
