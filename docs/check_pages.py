"""Check the built pages in a headless browser, in light and dark mode, on wide and narrow screens.

    python docs/check_pages.py docs/_build/html [--screenshots FOLDER]

A page must not be wider than the window, must show all images, must be legible in both colour
schemes, drawings included, and must not report errors. Without Chromium, the script reports this
and checks nothing.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
WIDTHS = {"desktop": 1400, "phone": 390}
SCHEMES = ("light", "dark")
PATIENCE = 30.0

OF_REFERENCE = ("Gym_Env", "SubprocVecEnv_Gym", "VecEnv", "errors", "make_vec")

# This code runs in the page. Contrast is WCAG's contrast of a text against the page's background.
LOOK = """
(async () => {
  const faults = [], root = document.documentElement;
  for (const image of document.images) image.loading = "eager";
  await Promise.all([...document.images].map(image => image.decode().catch(() => null)));
  for (const image of document.images)
    if (!image.naturalWidth) faults.push(`missing image: ${image.getAttribute("src")}`);
  if (root.scrollWidth > root.clientWidth)
    faults.push(`wider than the window: ${root.scrollWidth} > ${root.clientWidth}`);
  const numbers = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const linear = part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const luminance = colour => {
    const [r, g, b] = numbers(colour).map(part => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = luminance(getComputedStyle(document.body).backgroundColor);
  const contrast = colour => {
    const other = luminance(colour);
    return (Math.max(ground, other) + 0.05) / (Math.min(ground, other) + 0.05);
  };
  if ((ground < 0.5) !== DARK) faults.push("wrong colour scheme");
  for (const [what, element, key] of [
    ["text", document.querySelector("article p, article li, article dd"), "color"],
    ...[...document.querySelectorAll("article svg[role] text")].map(t => ["drawing", t, "fill"]),
  ])
    if (element && contrast(getComputedStyle(element)[key]) < 3)
      faults.push(`low contrast: ${what} ${element.textContent.slice(0, 30)}`);
  return faults;
})()
"""


class Tab:
    """One browser tab, controlled through the Chrome DevTools Protocol (CDP)."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._asked = 0
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for the result."""
        self._asked += 1
        self._socket.send(json.dumps({"id": self._asked, "method": method, "params": parameters}))
        while (message := self._next()).get("id") != self._asked:
            pass
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']}")
        result: dict[str, Any] = message["result"]
        return result

    def open(self, url: str) -> None:
        """Open a page and wait until it has loaded."""
        self.errors.clear()
        self.ask("Page.navigate", url=url)
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv(timeout=PATIENCE))
        given = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            details = given["exceptionDetails"]
            self.errors.append(str(details.get("exception", details).get("description", details)))
        elif message.get("method") == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.errors.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
        return message


@contextmanager
def browser() -> Iterator[Tab]:
    """Start a browser with one tab, and stop it at the end of the context."""
    assert BROWSER is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"),
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            note, deadline = Path(profile, "DevToolsActivePort"), time.monotonic() + PATIENCE
            while not (note.exists() and note.read_text().count("\n")):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{BROWSER} did not start")
                time.sleep(0.05)
            port, path = note.read_text().split()
            address = f"ws://127.0.0.1:{port}"
            with connect(f"{address}{path}", max_size=None) as whole:
                whole.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
                targets = json.loads(whole.recv(timeout=PATIENCE))["result"]["targetInfos"]
            page = next(target["targetId"] for target in targets if target["type"] == "page")
            with connect(f"{address}/devtools/page/{page}", max_size=None) as socket:
                yield Tab(socket)
        finally:
            process.terminate()
            process.wait(PATIENCE)


def pages_of(site: Path) -> list[Path]:
    """Return the written pages, and one page of each kind from the API reference."""
    written = [path for path in sorted(site.glob("*.html")) if not path.stem.endswith("index")]
    return [
        site / "index.html",
        *written,
        *(site / "api" / f"xuance_envs.{name}.html" for name in OF_REFERENCE),
    ]


def faults_of(tab: Tab, page: Path, screenshots: Path | None) -> Iterator[str]:
    """Yield the faults of a page in each width and colour scheme."""
    tab.open(page.resolve().as_uri())
    for form, width in WIDTHS.items():
        tab.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=form == "phone",
        )
        for scheme in SCHEMES:
            feature = {"name": "prefers-color-scheme", "value": scheme}
            tab.ask("Emulation.setEmulatedMedia", features=[feature])
            look = LOOK.replace("DARK", "true" if scheme == "dark" else "false")
            answer = tab.ask(
                "Runtime.evaluate", expression=look, awaitPromise=True, returnByValue=True
            )
            faults = answer["result"].get("value", [f"the check failed: {answer}"])
            yield from (f"{page.name}, {form}, {scheme}: {fault}" for fault in faults)
            if screenshots is not None:
                picture = tab.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
                target = screenshots / f"{page.stem}-{form}-{scheme}.png"
                target.write_bytes(base64.b64decode(picture))
    yield from (f"{page.name}: {error}" for error in tab.errors)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("site", type=Path, help="folder of the built pages")
    parser.add_argument("--screenshots", type=Path, help="folder for screenshots")
    options = parser.parse_args()
    if BROWSER is None:
        print("pages not checked: chromium is not installed (apt-get install chromium)")
        return 0
    if options.screenshots is not None:
        options.screenshots.mkdir(parents=True, exist_ok=True)
    with browser() as tab:
        found = [
            fault
            for page in pages_of(options.site)
            for fault in faults_of(tab, page, options.screenshots)
        ]
    if found:
        print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
