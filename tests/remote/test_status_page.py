"""The status page in a headless browser."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
from comparing import assert_same
from serving import Asking, ServerMaker

from xuance_envs.remote.remote_vec_env import RemoteVecEnv
from xuance_envs.remote.server.routes import pages
from xuance_envs.remote.server.routes.pages import png

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


def test_the_page_needs_nothing_from_elsewhere_and_has_a_strict_policy(serve: ServerMaker) -> None:
    url = serve().url
    for path in ("/docs", "/redoc", "/docs/oauth2-redirect"):
        assert httpx.get(url + path).status_code == 404
    answer = httpx.get(url)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.findall(r"(?:https?:)?//[\w.]+", answer.text)
    assert "prefers-color-scheme: dark" in answer.text
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert not re.findall(r"\s(?:style|on\w+)=", answer.text), "these have no hash"


def test_only_pictures_that_are_shared_are_shown(serve: ServerMaker) -> None:
    server = serve(tokens=("a", "b"))
    for token, share in (("a", True), ("b", False)):
        ask = Asking(server, token, share_frames=share).begin("Counting", num_envs=2)
        assert httpx.get(f"{server.url}/frames/1.png").status_code == (404 if share else 200)
        ask.ask("call", operation="render")
    assert httpx.get(f"{server.url}/status.json").json()["frames"] == [
        {"session": 1, "environments": 2}
    ]
    shown = httpx.get(f"{server.url}/frames/1.png")
    assert shown.headers["content-type"] == "image/png"
    assert shown.content == png(np.zeros((4, 6, 3), np.uint8))
    assert httpx.get(f"{server.url}/frames/2.png").status_code == 404


def test_pictures_are_png_as_others_read_it() -> None:
    image = pytest.importorskip("PIL.Image")
    from io import BytesIO

    frame = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    with image.open(BytesIO(png(frame))) as read:
        assert_same(np.asarray(read), frame)


def test_a_picture_is_made_once_and_not_by_the_event_loop(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def noted(frame: np.ndarray) -> bytes:
        made.append(threading.current_thread().name)
        return png(frame)

    monkeypatch.setattr(pages, "png", noted)
    server = serve()
    ask = Asking(server, share_frames=True).begin("Counting")
    for rendered in (1, 2):
        ask.ask("call", operation="render")
        for _ in range(5):
            assert httpx.get(f"{server.url}/frames/1.png").status_code == 200
        assert len(made) == rendered
    assert "xuance_envs-server" not in made


def test_the_pages_ask_for_a_token_where_the_operator_says_so(serve: ServerMaker) -> None:
    for asks, statuses in ((False, [200, 404, 200, 200]), (True, [401] * 4)):
        url = serve(tokens=("a",), pages_need_token=asks).url
        headers = {"Authorization": "Bearer a"}
        paths = ("/status.json", "/frames/1.png", "/metrics", "/openapi.json")
        assert [httpx.get(url + path).status_code for path in paths] == statuses
        for path in ("/status.json", "/metrics", "/openapi.json"):
            assert httpx.get(url + path, headers=headers).status_code == 200
        assert httpx.get(f"{url}/healthz").status_code == 200


@pytest.mark.skipif(BROWSER is None, reason="no chromium here: apt-get install chromium")
def test_a_browser_shows_it(serve: ServerMaker, tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    server = serve({"CartPole-v1": rendering_cart_pole})
    with RemoteVecEnv(server.url, None, 4, share_frames=True) as envs:
        envs.reset(seed=0)
        for _ in range(50):
            envs.step(np.zeros(4, np.int64))
        envs.render(env_ids=[0])
        page = browse(server.url, tmp_path, "--dump-dom")
        picture = tmp_path / "status.png"
        browse(server.url, tmp_path, f"--screenshot={picture}")
    for name, shown in (("sessions", "1"), ("environments", "4"), ("steps", "200")):
        assert re.search(rf'id="{name}">([^<]*)<', page)[1] == shown
    assert 'id="state" role="status">live<' in page
    assert 'alt="last frame of session 1"' in page
    assert "Session 1, 4 environments" in page
    image = pytest.importorskip("PIL.Image")
    with image.open(picture) as read:
        assert len(read.convert("RGB").getcolors(2**24)) > 50, "there is something on it"
    if "XUANCE_ENVS_SCREENSHOT" in os.environ:
        shutil.copy(picture, os.environ["XUANCE_ENVS_SCREENSHOT"])


def browse(url: str, profile: Path, *options: str) -> str:
    """Return the output of a headless browser after some seconds of virtual time."""
    command = [
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *(f"--user-data-dir={profile / 'browser'}", "--window-size=1000,760"),
        *("--virtual-time-budget=4000", "--timeout=20000", *options, url),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout


def rendering_cart_pole(env_seed=None):
    """CartPole that renders."""
    from xuance_envs.gym.gym_env import Gym_Env

    return Gym_Env("CartPole-v1", seed=env_seed, render_mode="rgb_array")
