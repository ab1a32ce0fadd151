"""Test the proxy configurations in ``deploy`` with each installed proxy."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from serving import wait_until

from xuance_envs.remote.client import create_student_gym_env_vectorized
from xuance_envs.remote.remote_vec_env import RemoteVecEnv

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"

JSON = {"Content-Type": "application/json"}

NGINX = """user root;  # which only root can choose, and others are not asked
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/x; uwsgi_temp_path {folder}/x; scgi_temp_path {folder}/x;
  {site}
}}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def certificate(folder: Path) -> None:
    command = (
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
        *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        *("-keyout", "key.pem", "-out", "cert.pem"),
    )
    subprocess.run(command, check=True, capture_output=True, timeout=60, cwd=folder)


def nginx(folder: Path, port: int) -> list[str]:
    site = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    for before, after in (
        (r"/run/xuance_envs/server\.sock", f"{folder}/server.sock"),
        (r"listen 443", f"listen 127.0.0.1:{port}"),
        (r"server_name \S+;", "server_name localhost;"),
        (r"/etc/ssl/\S+/fullchain\.pem", f"{folder}/cert.pem"),
        (r"/etc/ssl/\S+/privkey\.pem", f"{folder}/key.pem"),
    ):
        site, count = re.subn(before, after, site)
        assert count
    file = folder / "nginx.conf"
    file.write_text(NGINX.format(folder=folder, site=site), encoding="utf-8")
    return ["nginx", "-p", str(folder), "-c", str(file)]


def caddy(folder: Path, port: int) -> list[str]:
    site = (DEPLOY / "Caddyfile").read_text(encoding="utf-8")
    for before, after in (
        (r"/run/xuance_envs/server\.sock", f"{folder}/server.sock"),
        (
            r"(?m)^envs\.example\.org \{",
            "{\n\tadmin off\n\tauto_https disable_redirects\n}\n\n"
            f"https://localhost:{port} {{\n\ttls {folder}/cert.pem {folder}/key.pem",
        ),
    ):
        site, count = re.subn(before, after, site)
        assert count
    file = folder / "Caddyfile"
    file.write_text(site, encoding="utf-8")
    return ["caddy", "run", "--config", str(file), "--adapter", "caddyfile"]


@pytest.fixture(params=[nginx, caddy], ids=["nginx", "caddy"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Return the address of a server behind a proxy, and the folder of both."""
    name = request.param.__name__
    for needed in (name, "openssl"):
        if shutil.which(needed) is None:
            pytest.skip(f"no {needed} here")
    certificate(tmp_path)
    port = free_port()
    variables = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    serve = (
        *(sys.executable, "-m", "xuance_envs", "serve", "--env", "CartPole-v1"),
        *("--unix", str(tmp_path / "server.sock"), "--root-path", "/envs"),
    )
    with open(tmp_path / "log", "wb") as log:
        started = [
            subprocess.Popen(command, stdout=log, stderr=log, env=variables)
            for command in (serve, request.param(tmp_path, port))
        ]
    url = f"https://localhost:{port}/envs"

    def answers() -> bool:
        try:
            return httpx.get(f"{url}/healthz", verify=False).status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(answers)
        yield url, tmp_path
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(30)


def test_environments_behind_a_proxy(served: tuple[str, Path]) -> None:
    url, folder = served
    ca = folder / "cert.pem"
    with RemoteVecEnv(url, None, 64, verify=ca) as envs:
        envs.reset(seed=0)
        for _ in range(200):
            obs, *_ = envs.step(np.zeros(64, np.int64))
        assert obs.shape == (64, 4)
    with create_student_gym_env_vectorized(8, 1000, None, base_url=url, verify=ca) as env:
        env.reset(seed=0)
        assert env.step([0] * 8)[2].all()
        assert env.reset_specific_envs([3])[0].shape == (1, 4)
    log = (folder / "log").read_text(encoding="utf-8")
    assert re.search(r"127\.0\.0\.1 anybody POST /api/v1/session/create 200", log), log[-3000:]
    refused = httpx.post(
        f"{url}/api/v1/episode/create", content=b" " * (17 << 20), headers=JSON, verify=False
    )
    assert refused.status_code == 413
