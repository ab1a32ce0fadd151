"""Files in ``deploy``: their options exist, and their names match."""

from __future__ import annotations

import argparse
import ipaddress
import json
import re
from pathlib import Path

import pytest

from xuance_envs.remote.cli.serve import add_serve_arguments, given_limits
from xuance_envs.remote.server.monitoring import Metrics
from xuance_envs.remote.settings import Catalogue, Limits, Settings

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def text_of(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    assert match is not None, pattern
    return match[1]


def in_docker(more: list[str]) -> list[str]:
    entry: list[str] = json.loads(found(r"^ENTRYPOINT (.*)$", text_of("Dockerfile")))
    return entry + more


def started(name: str) -> list[str]:
    """Return the words of the command in a file."""
    text = text_of(name)
    if name == "Dockerfile":
        return in_docker(json.loads(found(r"^CMD (.*)$", text)))
    if name == "compose.yaml":
        return in_docker(found(r"command: >-\n((?: {6}.*\n)+)", text).split())
    if name == "xuance-envs.service":
        return found(r"^ExecStart=((?:.*\\\n)*.*)$", text).replace("\\\n", " ").split()
    return found(r"^# +(python (?:.*\\\n#)*.*)$", text).replace("\\\n#", " ").split()


def options_of(name: str) -> argparse.Namespace:
    words = started(name)
    serve = words.index("serve")
    assert words[serve - 2 : serve] == ["-m", "xuance_envs"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_serve_arguments(parser)
    return parser.parse_args(words[serve + 1 :])


@pytest.mark.parametrize(
    "name", ["Dockerfile", "compose.yaml", "xuance-envs.service", "nginx.conf", "Caddyfile"]
)
def test_its_options_are_those_there_are(name: str) -> None:
    options = options_of(name)
    assert options.env == ["CartPole-v1"]
    assert options.tokens is not None, "a server beyond loopback needs them"


def test_all_containers_know_the_port() -> None:
    port = str(options_of("Dockerfile").port)
    docker, compose = text_of("Dockerfile"), text_of("compose.yaml")
    assert found(r"^EXPOSE (\d+)$", docker) == port
    assert found(r"http://127\.0\.0\.1:(\d+)/healthz", docker) == port
    assert found(r'"--to", "envs:(\d+)"', compose) == port
    assert options_of("Dockerfile").host == options_of("compose.yaml").host == "0.0.0.0"
    assert str(options_of("compose.yaml").tokens) == "/run/secrets/tokens"
    assert found(r"secrets: \[(\w+)\]", compose) == "tokens"


def test_only_the_proxy_of_the_compose_file_is_trusted() -> None:
    text = text_of("compose.yaml")
    (trusted,) = options_of("compose.yaml").trusted_proxy
    network = ipaddress.ip_network(found(r"subnet: ([\d./]+)\}", text))
    assert trusted.num_addresses == 1
    assert trusted.subnet_of(network)
    assert found(r"ipv4_address: ([\d.]+)\}", text) == str(trusted.network_address)
    assert found(r"networks: \[(\w+)\]", text) == found(r"^networks:\n  (\w+):", text)
    assert network.num_addresses <= 8


def test_alerts_are_about_metrics_that_there_are() -> None:
    text = text_of("prometheus_alerts.yml")
    names = set(re.findall(r"xuance_envs_\w+", text))
    assert len(names) > 5
    metrics = Metrics()
    metrics.count_request("GET", 200)
    served = set(re.findall(r"^\w+", metrics.text(), re.MULTILINE))
    assert names <= served
    assert f'le="{found(r"step_seconds_bucket.* > ([0-9.]+)$", text)}"' in metrics.text()


def test_what_stops_a_server_waits_for_it() -> None:
    for name, pattern in (
        ("xuance-envs.service", r"^TimeoutStopSec=(\d+)$"),
        ("compose.yaml", r"^    stop_grace_period: (\d+)s"),
        ("Dockerfile", r"^# .*--stop-timeout (\d+)"),
    ):
        options = options_of(name)
        limits, catalogue = Limits(**given_limits(options)), Catalogue.of_ids(options.env)
        grace = Settings(catalogue, limits=limits, shutdown_grace=options.shutdown_grace)
        assert int(found(pattern, text_of(name))) == grace.seconds_to_finish + 15


@pytest.mark.parametrize("name", ["nginx.conf", "Caddyfile"])
def test_proxies_find_what_the_unit_starts(name: str) -> None:
    unit, text = options_of("xuance-envs.service"), text_of(name)
    assert (options_of(name).unix, options_of(name).root_path) == (unit.unix, unit.root_path)
    assert found(r"unix/?/?:?(/run/[^ ;]+\.sock)", text.split("\n\n", 1)[1]) == str(unit.unix)
    assert f"{unit.root_path}/" in text.split("\n\n", 1)[1]
    folder = found(r"^RuntimeDirectory=(.*)$", text_of("xuance-envs.service"))
    assert unit.unix.parent == Path("/run") / folder
