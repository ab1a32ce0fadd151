"""Draw the images of episode ends and of parallel stepping, as SVG for light and dark pages.

    python docs/draw_timelines.py

This writes docs/_static/timelines. With --check it only lists the images that are out of date. The
images of episode ends come from real calls: the script steps an environment that ends after three
steps in each autoreset mode, and draws its states and the return values.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

FOLDER = Path(__file__).parent / "_static" / "timelines"
FIRST, SECOND = "var(--color-brand-primary, #2757dd)", "var(--timeline-second, #b35900)"


# --- episode ends ---------------------------------------------------------------------------------


class LoggingEnv(gymnasium.Env):
    """An environment of three-step episodes that observes episode and step, and logs its states."""

    observation_space = gymnasium.spaces.Box(0, 9, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.states: list[str] = []
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.count = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self.observe(), 1.0, self.count == 3, False, {}

    def observe(self) -> Any:
        observation = np.array([self.episode, self.count], np.float32)
        self.states.append(name_of(observation))
        return observation


def name_of(observation: Any) -> str:
    """Name an observation: ``s2`` is the third of episode one, ``t0`` the first of episode two."""
    episode, count = (int(number) for number in observation)
    return f"{'st'[episode]}{count}"


@dataclass(frozen=True)
class Call:
    """One call, with the environment's states during it and the values that it returned."""

    name: str
    states: tuple[str, ...]
    obs: str
    reward: str = ""
    ended: str = ""
    other: str = ""


Calls = Callable[[LoggingEnv], Iterator[tuple[Any, ...]]]


def ours(env: LoggingEnv) -> Iterator[tuple[Any, ...]]:
    from xuance_envs import DummyVecEnv_Gym

    envs = DummyVecEnv_Gym([lambda: env])
    yield "reset()", envs.reset()[0][0]
    for action in ("a0", "a1", "a2", "b0", "b1"):
        obs, rewards, terminated, _, infos = envs.step([0])
        yield f"step({action})", obs[0], rewards[0], terminated[0], infos[0].get("reset_obs")


def of_gymnasium(env: LoggingEnv, mode: str) -> Iterator[tuple[Any, ...]]:
    from xuance_envs.compat.gymnasium import SyncVectorEnv

    envs = SyncVectorEnv([lambda: env], autoreset_mode=gymnasium.vector.AutoresetMode(mode))
    yield "reset()", envs.reset()[0][0]
    after = {"NextStep": ("ignored", "b0"), "SameStep": ("b0", "b1"), "Disabled": ("b0",)}[mode]
    for action in ("a0", "a1", "a2", *after):
        obs, rewards, terminated, _, infos = envs.step(np.array([0]))
        final = infos["final_obs"][0] if "final_obs" in infos else None
        yield f"step({action})", obs[0], rewards[0], terminated[0], final
        if mode == "Disabled" and terminated[0]:
            yield "reset(mask)", envs.reset(options={"reset_mask": terminated})[0][0]


def of_sb3(env: LoggingEnv) -> Iterator[tuple[Any, ...]]:
    from xuance_envs.compat.sb3 import DummyVecEnv

    envs = DummyVecEnv([lambda: env])
    yield "reset()", envs.reset()[0]
    for action in ("a0", "a1", "a2", "b0", "b1"):
        obs, rewards, dones, infos = envs.step(np.array([0]))
        yield f"step({action})", obs[0], rewards[0], dones[0], infos[0].get("terminal_observation")


def recorded_calls(calls: Calls) -> list[Call]:
    """Run the calls on an environment, and record its states and the return values."""
    env, story = LoggingEnv(), []
    for name, obs, *rest in calls(env):
        reward, ended, other = (*rest, None, None, None)[:3]
        story.append(
            Call(
                name,
                tuple(env.states),
                name_of(obs),
                "" if reward is None else f"{float(reward):g}",
                "" if ended is None else "yes" if ended else "no",
                "" if other is None else name_of(other),
            )
        )
        env.states.clear()
    return story


FORMS: dict[str, tuple[str, str, str, Calls]] = {
    "ours": ("xuance_envs, XuanCe", "ended", 'infos[i]["reset_obs"]', ours),
    "next_step": (
        "Gymnasium, NEXT_STEP",
        "terminated",
        "",
        partial(of_gymnasium, mode="NextStep"),
    ),
    "same_step": (
        "Gymnasium, SAME_STEP",
        "terminated",
        'infos["final_obs"][i]',
        partial(of_gymnasium, mode="SameStep"),
    ),
    "disabled": (
        "Gymnasium, DISABLED",
        "terminated",
        "",
        partial(of_gymnasium, mode="Disabled"),
    ),
    "sb3": ("Stable-Baselines3", "dones", 'infos[i]["terminal_observation"]', of_sb3),
}


# --- parallel stepping ----------------------------------------------------------------------------

Bar = tuple[float, float, str]
"""Start, end and label."""

SPLITS: dict[str, tuple[str, dict[str, list[Bar]]]] = {
    "in_series_1": (
        "in_series=1: four environments, with one process and one signal each",
        {
            "main process": [(0, 1.2, "wake 4"), (3.8, 5, "read 4")],
            "core 1": [(0.4, 1.6, "0"), (1.9, 3.1, "2")],
            "core 2": [(0.8, 2.0, "1"), (2.3, 3.5, "3")],
        },
    ),
    "in_series_auto": (
        'in_series="auto": one worker per core steps its environments in series',
        {
            "main process": [(0, 0.5, "wake"), (2.9, 3.4, "read")],
            "core 1": [(0.3, 1.5, "0"), (1.5, 2.7, "1")],
            "core 2": [(0.4, 1.6, "2"), (1.6, 2.8, "3")],
        },
    ),
    "caller_steps": (
        "caller_steps=True: the main process steps one share and sends one signal",
        {
            "main process, core 1": [
                *((0, 0.25, ""), (0.25, 1.45, "0")),
                *((1.45, 2.65, "1"), (2.65, 2.9, "")),
            ],
            "core 2": [(0.25, 1.4, "2"), (1.4, 2.6, "3")],
        },
    ),
    "first_ready": (
        "send and recv: the main process does not wait for the slow environment",
        {
            "main process": [
                *((start, start + 0.25, "") for start in (0, 1.3, 2.6, 3.9)),
                (4.45, 4.7, ""),
            ],
            "worker 1": [(0.2, 1.2, "0"), (1.5, 2.5, "0"), (2.8, 3.8, "0"), (4.1, 5, "0")],
            "worker 2": [(0.2, 4.4, "1, slow"), (4.65, 5, "1")],
        },
    ),
}


# --- drawing --------------------------------------------------------------------------------------


def text(x: float, y: float, content: str, anchor: str = "middle", **more: str) -> str:
    attributes = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{attributes}>{escape(content)}</text>'


# A standalone image sets its own colours. Inside a page, it uses the colours of the page.
STYLE = (
    "<style>:root:is(svg) { color: #1f2328 } @media (prefers-color-scheme: dark) "
    "{ :root:is(svg) { color: #e6edf3; --color-brand-primary: #6ea8fe; "
    "--timeline-second: #ffa657 } }</style>"
)


def svg(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {width} {height}" width="{width}" '
        'style="min-width: 36rem; max-width: 100%; height: auto" '
        'font-family="sans-serif" font-size="14" fill="currentColor">\n'
        f"<title>{escape(title)}</title>\n{STYLE}\n" + "\n".join(parts) + "\n</svg>\n"
    )


def colour(state: str) -> str:
    return FIRST if state.startswith("s") else SECOND


def drawn_end(title: str, ended: str, other: str, story: Sequence[Call]) -> str:
    """Draw an episode end: the environment's states above, the return values below."""
    rows = [("returns obs[i]", "obs"), ("reward", "reward"), (ended, "ended")]
    rows += [(other, "other")] if other else []
    left, column = 40 + 7.5 * max(15, *(len(name) for name, _ in rows)), 92
    width, height = round(left) + column * len(story) + 10, 96 + 26 * len(rows)
    labels = [text(left - 24, 22, "call", "end", opacity="0.7")]
    labels.append(text(left - 24, 60, "environment", "end", opacity="0.7"))
    parts, last = [], None
    for number, call in enumerate(story):
        x = left + column * (number + 0.5)
        parts.append(text(x, 22, call.name, font_size="12.5"))
        for k, state in enumerate(call.states):
            at = x + (k - (len(call.states) - 1) / 2) * 36
            if last is not None and last[1][0] == state[0]:
                line = f'<line x1="{last[0] + 15:g}" y1="55" x2="{at - 15:g}" y2="55"'
                parts.append(f'{line} stroke="{colour(state)}" stroke-width="2"/>')
            parts.append(
                f'<circle cx="{at:g}" cy="55" r="15" fill="none" stroke="{colour(state)}" '
                'stroke-width="2"/>'
            )
            parts.append(text(at, 60, state))
            last = at, state
        for k, (_, attribute) in enumerate(rows):
            value = getattr(call, attribute)
            is_state = attribute in ("obs", "other") and value
            style = {"fill": colour(value), "font_weight": "bold"} if is_state else {}
            if value == "yes":
                style = {"font_weight": "bold"}
            parts.append(text(x, 104 + 26 * k, value, **style))
    labels += [
        text(left - 24, 104 + 26 * k, name, "end", opacity="0.7")
        for k, (name, _) in enumerate(rows)
    ]
    rule = f'<line x1="10" y1="82" x2="{width - 10}" y2="82" stroke="currentColor" opacity="0.25"/>'
    return svg(f"Episode end: {title}", width, height, [*labels, rule, *parts])


def drawn_split(title: str, lanes: dict[str, list[Bar]]) -> str:
    """Draw each process's working times, from left to right."""
    left, unit, lane = 170, 110, 34
    width, height = left + unit * 5 + 10, 30 + lane * len(lanes)
    parts = [text(left, 17, "time →", "start", opacity="0.7", font_size="12.5")]
    for k, (name, bars) in enumerate(lanes.items()):
        y = 26 + lane * k
        parts.append(text(left - 16, y + 19, name, "end", opacity="0.7"))
        fill = SECOND if name == "main process" else FIRST
        for start, end, label in bars:
            own = SECOND if not label else fill
            parts.append(
                f'<rect x="{left + unit * start:g}" y="{y}" width="{unit * (end - start):g}" '
                f'height="26" rx="4" fill="{own}" fill-opacity="0.18" stroke="{own}"/>'
            )
            parts.append(text(left + unit * (start + end) / 2, y + 18, label, font_size="12.5"))
    return svg(title, width, height, parts)


def pictures() -> Iterator[tuple[str, str]]:
    """Yield each file name with its image."""
    for name, (title, ended, other, calls) in FORMS.items():
        yield f"{name}.svg", drawn_end(title, ended, other, recorded_calls(calls))
    for name, (title, lanes) in SPLITS.items():
        yield f"{name}.svg", drawn_split(title, lanes)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only list outdated images")
    check = parser.parse_args().check
    FOLDER.mkdir(parents=True, exist_ok=True)
    stale = []
    for name, content in pictures():
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            stale.append(name)
            if not check:
                path.write_text(content, encoding="utf-8")
    if stale:
        print("out of date:" if check else "drawn:", *stale)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
