"""The command line: what ``python -m xuance_envs serve`` takes, and what it does."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import logging
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from xuance_envs.errors import EnvError, VecEnvError
from xuance_envs.remote.access.permissions import Permissions, allowed_values
from xuance_envs.remote.access.proxies import Network, Proxies, network_of, root_path_of
from xuance_envs.remote.access.tokens import ParseLimit
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

__all__ = ["TOKEN_LIMITS", "ServeError", "add_serve_arguments", "make_server", "run_serve"]

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
     "of these, of one session; each creation of episodes takes one, further ones share them"),
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
    ("--max-states-per-session", "states_per_session", 1,
     "states of environments that are kept in one session"),
    ("--max-state-memory-per-session", "state_bytes_per_session", MIB, "MiB of these"),
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


_PERMISSIONS = (
    ("--allow-kwarg",
     "a keyword argument of the environments that they may give, such as render_mode; "
     "NAME=VALUE allows one value of it"),
    ("--allow-option", "an option that they may give to resets"),
    ("--allow-call", "a method of the environments that they may call"),
    ("--allow-get", "an attribute of the environments that they may read"),
    ("--allow-set", "an attribute of the environments that they may set"),
    ("--info",
     "what of infos they are told; '*' for all. Unless it is given, the clients of notebooks are "
     "told nothing but step, terminated and truncated, and RemoteVecEnv everything"),
)  # fmt: skip


class ServeError(Exception):
    """Something the user can mend."""


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what ``serve`` takes."""
    add = parser.add_argument
    add("--env", action="append", default=[], metavar="ID",
        help="a Gymnasium id to serve, also as module:ID; may be given more than once")  # fmt: skip
    add("--multi-agent", action="append", default=[], metavar="PACKAGE:NAME",
        help="the module of an environment with many agents, such as mpe2:simple_spread_v3; "
        "likewise")  # fmt: skip
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=_port, default=8001, help="port; 0 for a free one (default: %(default)s)")
    add("--unix", type=Path, metavar="PATH",
        help="listen on a unix socket instead, for a proxy on this machine")  # fmt: skip
    add("--certfile", type=Path, metavar="FILE",
        help="speak TLS with this certificate, followed by those of its authorities")  # fmt: skip
    add("--keyfile", type=Path, metavar="FILE", help="its private key, if it is in another file")
    add("--root-path", type=_root_path, default="", metavar="PATH",
        help="the path below which a proxy has this server, such as /envs")  # fmt: skip
    add("--trusted-proxy", action="append", default=[], type=_network, metavar="ADDRESS",
        help="address or network of a proxy that is believed who its clients are; may be given "
        "more than once")  # fmt: skip
    add("--tokens", type=Path, metavar="FILE",
        help="file with one token a line, or a name, a token, and limits of its own such as "
        "max-envs-per-session=8, or 'admin'; only requests with one of them are answered. The "
        f"variable {TOKENS_VARIABLE} does the same, separated by commas. Without either any "
        "request is, and the server listens on loopback addresses only. SIGHUP has the file read "
        "again")  # fmt: skip
    add("--reload", action="store_true", help="read the file of tokens again when it changes")
    add("--allow-host", action="append", default=[], metavar="NAME",
        help="a name that a server without tokens may be asked by, besides its own; may be given "
        "more than once")  # fmt: skip
    add("--pages-need-token", action="store_true",
        help="the status page and /metrics ask for a token, too")  # fmt: skip
    add("--no-access-log", dest="access_log", action="store_false", help="log no requests")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info",
        help="what is logged; requests for steps are at debug, the others at info "
        "(default: %(default)s)")  # fmt: skip
    allow = parser.add_argument_group("what clients may do, each of which may be given repeatedly")
    for option, text in _PERMISSIONS:
        allow.add_argument(option, action="append", default=[], metavar="NAME", help=text)
    allow.add_argument("--tracebacks", action="store_true",
        help="tell clients where in this machine's files an environment failed")  # fmt: skip
    allow.add_argument("--any-action", action="store_true",
        help="hand environments also actions that are not in their space")  # fmt: skip
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
    """Serves until it is interrupted."""
    _log(args.log_level)
    if (hangup := getattr(signal, "SIGHUP", None)) is not None:
        signal.signal(hangup, signal.SIG_IGN)  # until there is a server that it can tell
    if "forkserver" in multiprocessing.get_all_start_methods():
        # Workers are then copies of a process that has loaded what they need.
        rooms = ("engine.process.worker", "gym.gym_env", "remote.repeating_env")
        multiprocessing.set_forkserver_preload([f"xuance_envs.{room}" for room in rooms])
    server = make_server(args)
    settings = server.settings
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


def make_server(args: argparse.Namespace) -> Server:
    """The server that the arguments ask for; it listens."""
    if not args.env and not args.multi_agent:
        raise ServeError("say what to serve: --env ID, or --multi-agent PACKAGE:NAME")
    try:
        settings = Settings(
            Catalogue.of_ids(args.env, allowed_values(args.allow_kwarg), args.multi_agent),
            Tokens.load(args.tokens, TOKEN_LIMITS),
            _limits(args),
            _permissions(args),
            access_log=args.access_log,
            allowed_hosts=frozenset(args.allow_host),
            pages_need_token=args.pages_need_token,
            watch_tokens=args.reload,
        )
        return Server(
            settings,
            args.host,
            args.port,
            unix=args.unix,
            certfile=args.certfile,
            keyfile=args.keyfile,
            proxies=Proxies(args.root_path, args.trusted_proxy),
        )
    except (ImportError, OSError, ValueError) as error:
        raise ServeError(str(error)) from error


def _log(level: str) -> None:
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(message)s", handlers=[BackgroundHandler()]
    )
    for name in ("xuance_envs", "uvicorn"):
        logging.getLogger(name).setLevel(level.upper())


def _permissions(args: argparse.Namespace) -> Permissions:
    return Permissions(
        calls=frozenset(args.allow_call),
        gets=frozenset(args.allow_get),
        sets=frozenset(args.allow_set),
        options=frozenset(args.allow_option),
        infos=frozenset(args.info) if args.info else None,
        tracebacks=args.tracebacks,
        any_action=args.any_action,
    )


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


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= port < 1 << 16:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text}")
    return port


def _root_path(text: str) -> str:
    try:
        return root_path_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _network(text: str) -> Network:
    try:
        return network_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _at_least(least: int, kind: type[int] | type[float]) -> Callable[[str], float]:
    """An argparse type: a number of this kind that is not below ``least``."""

    def parse(text: str) -> float:
        value = kind(text)
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"expected a number of at least {least}, got {text}")
        return value

    parse.__name__ = kind.__name__
    return parse


def _token_limit(name: str, unit: int) -> ParseLimit:
    """What reads a limit of one token's own."""
    parse = _at_least(0 if name in _OPTIONAL else 1, float if name in _SECONDS else int)

    def own(text: str) -> dict[str, float | None]:
        try:
            value = parse(text) * unit
        except argparse.ArgumentTypeError as error:
            raise ValueError(str(error)) from None
        return {name: value or None}

    return own


TOKEN_LIMITS = {
    option.removeprefix("--"): _token_limit(name, unit)
    for option, name, unit, _ in _LIMITS
    if name.endswith(("_per_token", "_per_session")) or name == "repeats"
}
"""The limits that a line of the tokens' file may set."""
