"""The command line: what ``python -m xuance_envs serve`` takes, and what it does."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import logging
import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path

from xuance_envs.errors import EnvError, VecEnvError
from xuance_envs.remote.server import Server
from xuance_envs.remote.serving.logs import BackgroundHandler
from xuance_envs.remote.settings import (
    MIB,
    TOKENS_VARIABLE,
    Catalogue,
    Limits,
    Settings,
    Tokens,
)
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv

__all__ = ["ServeError", "add_serve_arguments", "run_serve"]

logger = logging.getLogger("xuance_envs")

_DEFAULTS = Limits()

# Option, the limit it sets, its unit, and what it says.
_LIMITS = (
    ("--max-sessions", "sessions", 1, "sessions at the same time"),
    ("--max-sessions-per-token", "sessions_per_token", 1, "of these, of one token"),
    ("--max-envs", "environments", 1, "environments at the same time"),
    ("--max-envs-per-token", "environments_per_token", 1, "of these, of one token"),
    ("--max-envs-per-session", "environments_per_session", 1, "of these, in one session"),
    ("--max-processes", "processes", 1, "processes for environments at the same time"),
    ("--max-processes-per-token", "processes_per_token", 1, "of these, of one token"),
    ("--max-processes-per-session", "processes_per_session", 1,
     "of these, of one session; episodes created beyond share them"),
    ("--max-requests-per-second-per-token", "requests_rate_per_token", 1,
     "requests per second of one token; 0 for any, as below"),
    ("--max-requests-per-second", "requests_rate_per_session", 1, "the same, of one session"),
    ("--max-steps-per-second-per-token", "steps_rate_per_token", 1,
     "environment steps per second of one token"),
    ("--max-steps-per-second", "steps_rate_per_session", 1, "the same, of one session"),
    ("--worker-memory", "memory", MIB, "MiB of data one process may have; 0 for any, as below"),
    ("--max-memory-per-token", "memory_per_token", MIB, "MiB of all processes of one token"),
    ("--max-memory", "memory_per_session", MIB, "MiB of all processes of one session"),
    ("--max-cpu-per-token", "cpu_per_token", 1, "seconds of CPU that one token may take in all"),
    ("--max-cpu", "cpu_per_session", 1, "seconds of CPU that one session may take"),
    ("--max-connections", "connections", 1, "connections at the same time"),
    ("--max-repeats", "repeats", 1, "steps of one environment per request"),
    ("--max-body", "body", MIB, "MiB of a request"),
    ("--max-reply", "reply", MIB, "MiB of one answer, in the form it is asked for"),
    ("--idle-timeout", "idle", 1, "seconds after which an unused session is closed"),
    ("--request-timeout", "request", 1, "seconds environments may take for one request"),
    ("--start-timeout", "start", 1, "seconds environments may take to be made"),
)  # fmt: skip


_FIELDS = {limit.name: limit for limit in dataclasses.fields(Limits)}
_OPTIONAL = {name for name, limit in _FIELDS.items() if "None" in str(limit.type)}
_SECONDS = {name for name, limit in _FIELDS.items() if "float" in str(limit.type)}


class ServeError(Exception):
    """Something the user can mend."""


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what ``serve`` takes."""
    add = parser.add_argument
    add("--env", action="append", required=True, metavar="ID",
        help="a Gymnasium id to serve, also as module:ID; may be given more than once")  # fmt: skip
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8001, help="port; 0 for a free one (default: %(default)s)")
    add("--tokens", type=Path, metavar="FILE",
        help="file with one token a line; only requests with one of them are answered. The "
        f"variable {TOKENS_VARIABLE} does the same, separated by commas. Without either any "
        "request is, and the server listens on loopback addresses only")  # fmt: skip
    add("--allow-kwarg", action="append", default=[], metavar="NAME",
        help="a keyword argument of the environments that clients may give, such as "
        "render_mode; may be given more than once")  # fmt: skip
    add("--allow-call", action="append", default=[], metavar="NAME",
        help="a method or attribute of the environments that clients may reach; may be given "
        "more than once")  # fmt: skip
    add("--allow-host", action="append", default=[], metavar="NAME",
        help="a name that a server without tokens may be asked by, besides its own; may be given "
        "more than once")  # fmt: skip
    add("--pages-need-token", action="store_true",
        help="the status page and /metrics ask for a token, too")  # fmt: skip
    add("--no-access-log", dest="access_log", action="store_false", help="log no requests")
    limits = parser.add_argument_group("limits, each answered with a 4xx beyond it")
    for option, name, unit, text in _LIMITS:
        optional = name in _OPTIONAL
        default = (getattr(_DEFAULTS, name) or 0) / unit
        limits.add_argument(
            option,
            dest=f"limit_{name}",
            type=_at_least(0 if optional else 1, float if name in _SECONDS else int),
            default=default if name in _SECONDS else int(default),
            metavar="N",
            help=f"{text} (default: {default:g})",
        )


def run_serve(args: argparse.Namespace) -> None:
    """Serves until it is interrupted.

    Raises:
        ServeError: it cannot, for a reason the user can mend.
    """
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        handlers=[BackgroundHandler()],
    )
    if "forkserver" in multiprocessing.get_all_start_methods():
        # Workers are then copies of a process that has loaded what they need.
        rooms = ("engine.process.worker", "gym.gym_env", "remote.repeating_env")
        multiprocessing.set_forkserver_preload([f"xuance_envs.{room}" for room in rooms])
    try:
        settings = Settings(
            Catalogue.of_ids(dict.fromkeys(args.env), args.allow_kwarg),
            Tokens.load(args.tokens),
            _limits(args),
            frozenset(args.allow_call),
            access_log=args.access_log,
            allowed_hosts=frozenset(args.allow_host),
            pages_need_token=args.pages_need_token,
        )
        server = Server(settings, args.host, args.port)
    except (ImportError, OSError, ValueError) as error:
        raise ServeError(str(error)) from error
    try:
        _try_environments(settings, settings.catalogue.ids)
    except (VecEnvError, RuntimeError) as error:
        server.close()
        raise ServeError(error.reason if isinstance(error, EnvError) else str(error)) from error
    count = len(settings.tokens)
    whom = f"{count} tokens" if count else "no tokens: anybody on this machine may use it"
    print(f"serving {', '.join(settings.catalogue.ids)} at {server.url} ({whom})", flush=True)
    gc.collect()
    gc.freeze()  # what is there now stays; it need not be looked at again
    server.run()


def _limits(args: argparse.Namespace) -> Limits:
    given = {name: getattr(args, f"limit_{name}") * unit for _, name, unit, _ in _LIMITS}
    given |= {name: given[name] or None for name in _OPTIONAL}
    return dataclasses.replace(_DEFAULTS, **given)


def _try_environments(settings: Settings, ids: Sequence[str]) -> None:
    """Makes one of each, in a process of its own: what cannot be made should not be offered."""
    for env_id in ids:
        functions = settings.catalogue.functions(env_id, 1, {})
        with SubprocVecEnv(functions, context=settings.context, pin_workers=False) as envs:
            logger.info(
                "%s: observations %s, actions %s",
                env_id,
                envs.observation_space,
                envs.action_space,
            )


def _at_least(least: int, kind: type[int] | type[float]) -> Callable[[str], float]:
    """An argparse type: a number of this kind that is not below ``least``."""

    def parse(text: str) -> float:
        value = kind(text)
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"expected a number of at least {least}, got {text}")
        return value

    parse.__name__ = kind.__name__
    return parse
