"""Reports of measurements: Markdown tables and plots.

Plots need Matplotlib, which is imported when one is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from xuance_envs.errors import counted
from xuance_envs.measure import Throughput

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["markdown_table", "plot_learning", "plot_throughput"]

COLUMNS = 2
PANEL_INCHES = 5.0
BAR_INCHES = 0.34
FRAME_INCHES = 1.7
CURVE_INCHES = 8.0
COLOURS = ("#1f6fb4", "#9aa0a8", "#d9822b")
LIMIT_COLOUR = "#b03030"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """Format a Markdown table with aligned columns, readable in a terminal.

    Args:
        header: column titles.
        rows: cells, one per title in each row.
        words: number of left-aligned text columns; the remaining columns are right-aligned
            numbers.

    Returns:
        The lines of the table, without a trailing newline.

    Raises:
        ValueError: a row does not have one cell per title.
    """
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    rule = ["-" * width for width in widths[:words]]
    rule += ["-" * (width - 1) + ":" for width in widths[words:]]
    lines = []
    for row in (header, rule, *rows):
        cells = list(map(str.ljust, row[:words], widths))
        cells += map(str.rjust, row[words:], widths[words:])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def plot_throughput(
    panels: Mapping[int, Sequence[Throughput]] | Mapping[str, Sequence[Throughput]],
    path: Path,
    *,
    title: str,
    kinds: Mapping[str, str] | None = None,
    limit: str | None = None,
) -> None:
    """Save a plot of throughputs as panels of horizontal bars.

    Bars show medians; the thin lines on them show the interquartile range.

    Args:
        panels: measurements by number of environments or by title. Bars keep their order.
        path: output file. Its folder is created; its suffix selects the format.
        title: title above the panels.
        kinds: category of each name. Each of at most three categories has a color in the legend.
        limit: name of the measurement drawn as a vertical line instead of a bar.

    Raises:
        ModuleNotFoundError: Matplotlib is not installed.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    colours = dict(zip(dict.fromkeys((kinds or {}).values()), COLOURS, strict=False))
    longest = max(len(panel) for panel in panels.values())
    columns = min(len(panels), COLUMNS)
    lines = math.ceil(len(panels) / columns)
    size = (PANEL_INCHES * columns, (BAR_INCHES * longest + FRAME_INCHES) * lines)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title)
    for place, (heading, panel) in enumerate(panels.items(), start=1):
        axis = figure.add_subplot(lines, columns, place)
        bars = [result for result in panel if result.name != limit]
        _draw_bars(axis, bars, [colours[kinds[bar.name]] if kinds else COLOURS[0] for bar in bars])
        for result in panel:
            if result.name == limit:
                axis.axvline(result.median, color=LIMIT_COLOUR, linestyle="--", linewidth=1.2)
        axis.set_xlim(0, 1.4 * max(result.quartiles[1] for result in panel))
        count = counted(heading, "environment") if isinstance(heading, int) else str(heading)
        axis.set_title(count, fontsize="medium")
    legend: list[Patch | Line2D] = [Patch(color=c, label=kind) for kind, c in colours.items()]
    if limit is not None:
        legend.append(Line2D([], [], color=LIMIT_COLOUR, linestyle="--", label=limit))
    if legend:
        figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def plot_learning(
    episodes: Sequence[tuple[int, float]],
    means: Sequence[tuple[int, float]],
    path: Path,
    *,
    title: str,
    goal: float,
) -> None:
    """Save a plot of an agent's learning curve.

    Args:
        episodes: environment steps so far and return of each episode, drawn as dots.
        means: environment steps so far and mean return of the last 100 episodes, drawn as a line.
        path: output file. Its folder is created; its suffix selects the format.
        title: title of the plot.
        goal: target mean return, drawn as a dashed line.

    Raises:
        ModuleNotFoundError: Matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(CURVE_INCHES, CURVE_INCHES / 2), layout="constrained")
    axis = figure.add_subplot()
    axis.set_title(title, fontsize="medium")
    axis.plot(*zip(*episodes, strict=True), ".", color=COLOURS[1], markersize=2, label="episode")
    axis.plot(*zip(*means, strict=True), color=COLOURS[0], label="mean of the last 100")
    axis.axhline(goal, color=LIMIT_COLOUR, linestyle="--", linewidth=1.2, label=f"{goal:g}")
    axis.set_xlabel("environment steps")
    axis.set_ylabel("return")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k" if value else "0")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _draw_bars(axis: Axes, bars: Sequence[Throughput], colours: Sequence[str]) -> None:
    for row, (result, colour) in enumerate(zip(bars, colours, strict=True)):
        low, high = result.quartiles
        error = [[result.median - low], [high - result.median]]
        axis.barh(row, result.median, xerr=error, color=colour, ecolor="#333333", capsize=2)
        label = axis.annotate(
            f"{result.median:,.0f}",
            (high, row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
        )
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8})
    axis.set_yticks(range(len(bars)), [result.name for result in bars])
    axis.invert_yaxis()
    axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k" if value else "0")
    axis.set_xlabel("environment steps per second")
    axis.spines[["top", "right"]].set_visible(False)
