"""Draw the overview image of the README and the documentation's first page.

    python docs/draw_overview.py

This writes docs/_static/overview.svg, in the colours of the browser's colour scheme, or of the page
that contains the drawing.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

FILE = Path(__file__).parent / "_static" / "overview.svg"
WIDTH, HEIGHT = 800, 300
BLUE, GREY = "#3f8fd4", "#9aa0a8"
INK = "var(--color-foreground-primary, var(--ink))"
PAPER = "var(--color-background-primary, var(--paper))"
GROUND = "var(--color-background-secondary, var(--ground))"
STYLE = """<style>
.overview { --ink: #20242a; --paper: white; --ground: #f6f8fa }
@media (prefers-color-scheme: dark) {
  .overview { --ink: #d0d4da; --paper: #0d1117; --ground: #1a1f27 }
}
</style>"""

PROGRAMS = ("your own loop", "RolloutCollector", "Gymnasium", "Stable-Baselines3")
PROGRAMS += ("Tianshou", "XuanCe")
PLACES = (
    ("main process", "DummyVecEnv_Gym", 1),
    ("threads", "ThreadVecEnv", 3),
    ("worker processes", "SubprocVecEnv_Gym", 3),
    ("Ray cluster", "RayVecEnv_Gym", 3),
    ("HTTP server", "RemoteVecEnv", 2),
)
"""Location of the environments, its class, and the number of groups to draw."""

TOP, STEP = 48, 49


def text(x: float, y: float, words: str, *, size: int = 13, style: str = "") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" {style}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{PAPER}" '
        f'stroke="{colour}" stroke-width="1.5"/>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<path d="M{x1} {y1} L{x2} {y2}" stroke="{INK}" stroke-width="1.3" fill="none" '
        'marker-end="url(#head)"/>'
    )


def programs() -> Iterator[str]:
    """Draw the programs that step environments, on the left."""
    height = 38.6
    for number, name in enumerate(PROGRAMS):
        y = TOP + number * height
        yield box(16, y, 160, 30, GREY)
        yield text(96, y + 20, name, style='text-anchor="middle"')
        yield f'<path d="M176 {y + 15} H196" stroke="{GREY}" stroke-width="1.3"/>'
    last = TOP + (len(PROGRAMS) - 1) * height + 15
    yield f'<path d="M196 {TOP + 15} V{last}" stroke="{GREY}" stroke-width="1.3"/>'


def places() -> Iterator[str]:
    """Draw the locations of environments, on the right, as groups with one process each."""
    for number, (name, kind, groups) in enumerate(PLACES):
        y = TOP + number * STEP
        yield box(500, y, 284, 42, BLUE)
        yield text(512, y + 18, name, style='font-weight="bold"')
        yield text(512, y + 34, kind, size=11, style='font-family="monospace"')
        for group in range(groups):
            x = 672 + group * 36
            yield box(x, y + 6, 30, 30, GREY)
            for square in range(4):
                left, top = x + 5 + 11 * (square % 2), y + 11 + 11 * (square // 2)
                yield f'<rect x="{left}" y="{top}" width="8" height="8" fill="{BLUE}"/>'
        yield arrow(470, 156, 496, y + 21)


def picture() -> str:
    """Return the drawing as SVG."""
    centre = 'text-anchor="middle"'
    parts = [
        '<svg role="img" class="overview" xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'style="max-width: 100%; height: auto" font-family="sans-serif" fill="{INK}">',
        "<title>one vectorized environment, five backends</title>",
        STYLE,
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker>',
        "</defs>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="{GROUND}"/>',
        text(96, 32, "your program", size=14, style=f'{centre} font-weight="bold"'),
        text(642, 32, "sub-environments", size=14, style=f'{centre} font-weight="bold"'),
        box(318, 110, 152, 92, BLUE),
        text(394, 140, "one vectorized", size=15, style=f'{centre} font-weight="bold"'),
        text(394, 160, "environment", size=15, style=f'{centre} font-weight="bold"'),
        text(394, 184, "identical trajectories", size=11, style=centre),
        text(257, 136, "actions", size=11, style=centre),
        arrow(200, 144, 314, 144),
        arrow(314, 168, 200, 168),
        text(257, 184, "observations,", size=11, style=centre),
        text(257, 198, "rewards, flags, infos", size=11, style=centre),
        *programs(),
        *places(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    FILE.write_text(picture(), encoding="utf-8")
