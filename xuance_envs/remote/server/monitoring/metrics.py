"""Counters of a server in Prometheus's text format."""

from __future__ import annotations

import bisect
import itertools
import time
from collections import defaultdict, deque
from collections.abc import Mapping

from xuance_envs.remote.server.monitoring.logs import dropped_lines

# Upper bounds of the step-time histogram in seconds.
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
WINDOW = 10.0  # seconds over which steps per second are averaged
SAMPLE_INTERVAL = 1.0  # seconds

_DROPPED = "Log lines dropped because the log was not read fast enough."
_FAILURES = "Requests in which an environment raised, crashed or timed out."
_PER_NAME = (
    ("sessions", "name_sessions", "gauge", "Open sessions by token name."),
    ("environments", "name_environments", "gauge", "Environments by token name."),
    ("steps", "name_steps_total", "counter", "Environment steps by token name."),
)


class Metrics:
    """Counters of one server, for its event loop only."""

    def __init__(self) -> None:
        self.sessions = 0
        self.max_sessions = 0
        self.environments = 0
        self.failures = 0
        self._requests: dict[tuple[str, int], int] = defaultdict(int)
        self.steps = 0
        self._step_seconds = 0.0
        self._step_requests = [0] * (len(BUCKETS) + 1)
        # Times with the number of steps until then; the first one is about WINDOW ago.
        self._samples = deque([(time.monotonic(), 0)], round(WINDOW / SAMPLE_INTERVAL))

    def count_request(self, method: str, status: int) -> None:
        self._requests[method, status] += 1

    def count_steps(self, steps: int, seconds: float) -> None:
        self.steps += steps
        self._step_seconds += seconds
        self._step_requests[bisect.bisect_left(BUCKETS, seconds)] += 1

    def sample_steps(self) -> None:
        """Record the number of steps; the server calls this at intervals of SAMPLE_INTERVAL."""
        self._samples.append((time.monotonic(), self.steps))

    def steps_per_second(self) -> float:
        start, steps = self._samples[0]
        return (self.steps - steps) / max(0.1, time.monotonic() - start)

    def text(self, names: Mapping[str, Mapping[str, int]] | None = None) -> str:
        counts = list(itertools.accumulate(self._step_requests))
        lines = [
            *_metric("sessions", "gauge", "Open sessions.", self.sessions),
            *_metric("max_sessions", "gauge", "Maximum open sessions.", self.max_sessions),
            *_metric("environments", "gauge", "Environments in open sessions.", self.environments),
            *_metric("log_lines_dropped_total", "counter", _DROPPED, dropped_lines()),
            *_metric("steps_total", "counter", "Environment steps.", self.steps),
            *_metric("failures_total", "counter", _FAILURES, self.failures),
            *_head("step_seconds", "histogram", "Seconds that environments take per step request."),
            *(
                f'xuance_envs_step_seconds_bucket{{le="{bound}"}} {count}'
                for bound, count in zip((*BUCKETS, "+Inf"), counts, strict=True)
            ),
            f"xuance_envs_step_seconds_sum {self._step_seconds!r}",
            f"xuance_envs_step_seconds_count {counts[-1]}",
            *_head("requests_total", "counter", "Requests by method and status."),
            *(
                f'xuance_envs_requests_total{{method="{method}",status="{status}"}} {count}'
                for (method, status), count in sorted(self._requests.items())
            ),
        ]
        if names is not None:
            for what, metric, kind, text in _PER_NAME:
                lines += _head(metric, kind, text)
                lines += [
                    f'xuance_envs_{metric}{{name="{name}"}} {own[what]}'
                    for name, own in sorted(names.items())
                ]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP xuance_envs_{name} {text}", f"# TYPE xuance_envs_{name} {kind}"]


def _metric(name: str, kind: str, text: str, value: int) -> list[str]:
    return [*_head(name, kind, text), f"xuance_envs_{name} {value}"]
