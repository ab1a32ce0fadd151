"""Command-line arguments and implementation of ``python -m xuance_envs serve``."""

from __future__ import annotations

import argparse
import gc
import ipaddress
import logging
import multiprocessing
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from xuance_envs.engine.system.current import system
from xuance_envs.errors import EnvError, VecEnvError, counted
from xuance_envs.remote.cli import CommandError
from xuance_envs.remote.server.access import (
    TOKENS_VARIABLE,
    Permissions,
    Proxies,
    Tokens,
    allowed_values,
    root_path_of,
)
from xuance_envs.remote.server.limits import PROCESSES_PER_WORKER
from xuance_envs.remote.server.monitoring import BackgroundHandler
from xuance_envs.remote.server.server import Server
from xuance_envs.remote.server.settings import LIMIT_SHARES, MIB, Catalogue, Limits, Settings
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv

logger = logging.getLogger("xuance_envs")

# Option, field of `Limits`, unit, help text.
_LIMITS = (
    ("--max-sessions", "sessions", 1, "maximum concurrent sessions"),
    ("--max-sessions-per-token", "sessions_per_token", 1, "maximum concurrent sessions per token"),
    ("--max-envs", "environments", 1, "maximum concurrent environments"),
    ("--max-envs-per-token", "environments_per_token", 1, "maximum environments per token"),
    ("--max-envs-per-session", "environments_per_session", 1, "maximum environments per session"),
    ("--max-processes", "processes", 1,
     "maximum concurrent processes. On Linux, each worker counts as two"),
    ("--max-processes-per-token", "processes_per_token", 1, "maximum processes per token"),
    ("--max-processes-per-session", "processes_per_session", 1,
     "maximum processes per session. Each request that creates environments starts new workers; "
     "at the limit, its environments share an existing worker"),
    ("--max-workers", "workers", 1,
     "maximum num_workers of a request: worker processes that step its environments in parallel; "
     "increase --max-processes-per-session, too"),
    ("--max-requests-per-second-per-token", "requests_rate_per_token", 1,
     "maximum requests per second per token"),
    ("--max-requests-per-second", "requests_rate_per_session", 1,
     "maximum requests per second per session"),
    ("--max-steps-per-second-per-token", "steps_rate_per_token", 1,
     "maximum environment steps per second per token"),
    ("--max-steps-per-second", "steps_rate_per_session", 1,
     "maximum environment steps per second per session"),
    ("--worker-memory", "memory", MIB, "maximum MiB of data per worker process"),
    ("--max-memory-per-token", "memory_per_token", MIB,
     "maximum MiB for all worker processes of a token"),
    ("--max-memory", "memory_per_session", MIB,
     "maximum MiB for all worker processes of a session"),
    ("--max-cpu-per-token", "cpu_per_token", 1, "maximum CPU seconds per token"),
    ("--max-cpu", "cpu_per_session", 1, "maximum CPU seconds per session"),
    ("--max-connections", "connections", 1,
     "maximum concurrent connections; if the limit on open files is too low, the server reduces "
     "this limit and --max-processes"),
    ("--max-states", "states", 1, "maximum saved environment states"),
    ("--max-states-per-token", "states_per_token", 1, "maximum saved environment states per token"),
    ("--max-states-per-session", "states_per_session", 1,
     "maximum saved environment states per session"),
    ("--max-state-memory", "state_bytes", MIB, "maximum MiB of saved environment states"),
    ("--max-state-memory-per-token", "state_bytes_per_token", MIB,
     "maximum MiB of saved environment states per token"),
    ("--max-state-memory-per-session", "state_bytes_per_session", MIB,
     "maximum MiB of saved environment states per session"),
    ("--max-repeats", "repeats", 1, "maximum steps of one environment per request"),
    ("--max-body", "body", MIB, "maximum MiB per request"),
    ("--max-reply", "reply", MIB, "maximum MiB per reply, in the requested format"),
    ("--idle-timeout", "idle", 1, "seconds after which an idle session is closed"),
    ("--request-timeout", "request", 1,
     "seconds that environments may take per request, before their process is killed"),
    ("--start-timeout", "start", 1, "seconds that creating environments may take"),
)  # fmt: skip

_OPTIONAL = {name for name, kind in Limits.__annotations__.items() if "None" in kind}
_SECONDS = {name for name, kind in Limits.__annotations__.items() if "float" in kind}

_PERMISSIONS = (
    ("--allow-kwarg",
     "allow a keyword argument for creating environments, such as render_mode; NAME=VALUE allows "
     "only this value"),
    ("--allow-option", "allow an option for resets"),
    ("--allow-call", "allow calling a method of the environments"),
    ("--allow-get", "allow reading an attribute of the environments"),
    ("--allow-set", "allow setting an attribute of the environments"),
    ("--info",
     "send this key of infos to clients; '*' for all. By default, notebook clients receive only "
     "step, terminated and truncated, and RemoteVecEnv receives all keys"),
)  # fmt: skip

# Seconds that the event loop may hold the GIL while threads that step for notebook clients wait.
SWITCH_INTERVAL = 1e-4


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run_serve)
    add = parser.add_argument

    def add_list(option: str, metavar: str, text: str, **options: Any) -> None:
        text = f"{text}; may be repeated"
        add(option, action="append", default=[], metavar=metavar, help=text, **options)

    add_list("--env", "ID",
        "Gymnasium id to serve; module:ID first imports the module that registers it")  # fmt: skip
    add_list("--multi-agent", "PACKAGE:NAME",
        "module of a multi-agent environment to serve, such as mpe2:simple_spread_v3")  # fmt: skip
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=_argument(_port), default=8001,
        help="port; 0 for any free port (default: %(default)s)")  # fmt: skip
    add("--unix", type=Path, metavar="PATH",
        help="listen on a Unix socket instead of a port, for a proxy on this machine")  # fmt: skip
    add("--certfile", type=Path, metavar="FILE", help="serve HTTPS with this certificate chain")
    add("--keyfile", type=Path, metavar="FILE",
        help="private key of the certificate, if not in the same file")  # fmt: skip
    add("--root-path", type=_argument(root_path_of), default="", metavar="PATH",
        help="path under which a proxy mounts this server, such as /envs")  # fmt: skip
    add_list("--trusted-proxy", "ADDRESS",
        "address or network of a proxy whose X-Forwarded headers are trusted",
        type=_argument(ipaddress.ip_network))  # fmt: skip
    add("--tokens", type=Path, metavar="FILE",
        help="tokens file. Each line is TOKEN or NAME TOKEN [OPTION ...]; an option is 'admin', or "
        "a limit such as max-envs-per-session=8. The server accepts only requests with one of "
        f"these tokens. The environment variable {TOKENS_VARIABLE} adds tokens, separated by "
        "commas. Without tokens, the server accepts every request, but listens only on loopback "
        "addresses. SIGHUP reloads the file")  # fmt: skip
    add("--reload", action="store_true", help="reload the tokens file when it changes")
    add_list("--allow-host", "NAME", "additional host name that a server without tokens accepts")
    add("--pages-need-token", action="store_true",
        help="require a token for the status page's data, /metrics and /openapi.json")  # fmt: skip
    add("--shutdown-grace", type=_argument(partial(_at_least, 0, float)), metavar="SECONDS",
        help="seconds for requests in progress to finish after SIGINT or SIGTERM, before their "
        "environments are killed (default: the larger of --request-timeout and "
        "--start-timeout)")  # fmt: skip
    add("--no-access-log", dest="access_log", action="store_false", help="do not log requests")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info",
        help="log level; step requests are logged at debug, other requests at info "
        "(default: %(default)s)")  # fmt: skip
    allow = parser.add_argument_group("permissions of clients; options with NAME may be repeated")
    for option, text in _PERMISSIONS:
        allow.add_argument(option, action="append", default=[], metavar="NAME", help=text)
    allow.add_argument("--tracebacks", action="store_true",
        help="send tracebacks of failed environments to clients")  # fmt: skip
    allow.add_argument("--any-action", action="store_true",
        help="accept actions outside the action space")  # fmt: skip
    limits = parser.add_argument_group(
        "limits; a request beyond a limit is delayed, or refused with an error that names the limit"
    )
    for option, name, unit, text in _LIMITS:
        default = (getattr(Limits, name) or 0) / unit
        zero = "; 0 for no limit" if name in _OPTIONAL else ""
        with_tokens = ""
        if name in LIMIT_SHARES:
            with_tokens = "; more if the tokens file has many names"
        elif name in LIMIT_SHARES.values():
            with_tokens = "; with tokens, an equal share of the total"
        limits.add_argument(option, dest=f"limit_{name}", type=_argument(_parser(name)),
            metavar="N", help=f"{text}{zero} (default: {default:g}{with_tokens})")  # fmt: skip


def run_serve(args: argparse.Namespace) -> None:
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(format=form, handlers=[BackgroundHandler()])
    for name in ("xuance_envs", "uvicorn"):
        logging.getLogger(name).setLevel(args.log_level.upper())
    if system.HANGUP is not None:
        signal.signal(system.HANGUP, signal.SIG_IGN)  # until the server installs its handler
    if "forkserver" in multiprocessing.get_all_start_methods():
        # The fork server imports these modules once, for all workers.
        modules = ("engine.process.worker", "gym.gym_env", "remote.server.hosting.repeating_env")
        multiprocessing.set_forkserver_preload([f"xuance_envs.{module}" for module in modules])
    server = make_server(args)
    settings = server.settings
    try:
        _try_environments(settings)
    except CommandError:
        server.close()
        raise
    count = len(settings.tokens)
    access = counted(count, "token") if count else "no tokens: every local user has access"
    print(f"serving {', '.join(settings.catalogue.ids)} at {server.url} ({access})", flush=True)
    gc.collect()
    gc.freeze()  # objects created so far are permanent; later garbage collections skip them
    sys.setswitchinterval(SWITCH_INTERVAL)
    server.run()


def given_limits(args: argparse.Namespace) -> dict[str, Any]:
    return {
        name: value * unit or None  # 0 means no limit
        for _, name, unit, _ in _LIMITS
        if (value := getattr(args, f"limit_{name}")) is not None
    }


def make_server(args: argparse.Namespace) -> Server:
    if not args.env and not args.multi_agent:
        raise CommandError("nothing to serve: give --env ID or --multi-agent PACKAGE:NAME")
    limits = given_limits(args)
    try:
        settings = Settings(
            Catalogue.of_ids(args.env, allowed_values(args.allow_kwarg), args.multi_agent),
            Tokens.load(args.tokens, TOKEN_LIMITS),
            Limits(**limits),
            Permissions(
                calls=frozenset(args.allow_call),
                gets=frozenset(args.allow_get),
                sets=frozenset(args.allow_set),
                options=frozenset(args.allow_option),
                infos=frozenset(args.info) if args.info else None,
                tracebacks=args.tracebacks,
                any_action=args.any_action,
            ),
            access_log=args.access_log,
            allowed_hosts=frozenset(args.allow_host),
            pages_need_token=args.pages_need_token,
            watch_tokens=args.reload,
            shutdown_grace=args.shutdown_grace,
            limits_by_tokens=frozenset({*LIMIT_SHARES, *LIMIT_SHARES.values()} - limits.keys()),
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
        raise CommandError(str(error)) from error


def _try_environments(settings: Settings) -> None:
    """Create one environment of each id in a worker; raise a CommandError if this fails."""
    for env_id in settings.catalogue.ids:
        functions = settings.catalogue.functions(env_id, 1, {})
        try:
            with SubprocVecEnv(functions, context=settings.context, pin_workers=False) as envs:
                spaces = envs.observation_space, envs.action_space
                logger.info("%s: observations %s, actions %s", env_id, *spaces)
        except (VecEnvError, RuntimeError) as error:
            reason = error.reason if isinstance(error, EnvError) else error
            raise CommandError(f"cannot serve {env_id!r}: {reason}") from error


def _argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Convert a parser's ValueErrors to errors that argparse prints."""

    def parse_argument(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_argument


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and (port := int(text)) < 1 << 16:
        return port
    raise ValueError(f"expected a port from 0 to 65535, got {text}")


def _at_least(least: int, kind: type[int] | type[float], text: str) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = -1
    if not least <= value < float("inf"):
        number = "an int" if kind is int else "a finite number"
        raise ValueError(f"expected {number} of at least {least}, got {text}")
    return value


def _parser(name: str) -> Callable[[str], float]:
    least = PROCESSES_PER_WORKER if name.startswith("processes") else 1
    kind = float if name in _SECONDS else int
    return partial(_at_least, 0 if name in _OPTIONAL else least, kind)


def _token_limit(name: str, unit: int, text: str) -> dict[str, float | None]:
    return {name: _parser(name)(text) * unit or None}


# Parsers of the limits that a line of the tokens file may set.
TOKEN_LIMITS = {
    option.removeprefix("--"): partial(_token_limit, name, unit)
    for option, name, unit, _ in _LIMITS
    if name.endswith(("_per_token", "_per_session")) or name in ("repeats", "workers")
}
