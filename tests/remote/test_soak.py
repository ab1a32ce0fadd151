"""Send a day's number of expensive requests in five minutes."""

from __future__ import annotations

import threading
import time

import pytest
from serving import ServedProcess

from benchmarks.shared.attacks import Attacker, watched_health

SECONDS = 300
GROWTH = 400
"""MiB that the server may grow by with its default limits; without them it was to 4.8 GB."""

PATIENCE = 2.5
"""Seconds that nobody else waits, on a machine that others use, too; without limits, 28."""


def resident_mib(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) // 1024


@pytest.mark.long
def test_memory_and_others_answers_through_five_minutes_of_it() -> None:
    tokens = [f"token-{k}" for k in range(4)]
    served = ServedProcess(
        *("--env", "CartPole-v1", "--no-access-log", "--allow-option", "a", "--max-envs", "256"),
        XUANCE_ENVS_TOKENS=",".join([*tokens, "other"]),
    )
    until = time.monotonic() + SECONDS
    before, most = resident_mib(served.pid), 0
    attackers = [Attacker(served.url, number, token) for number, token in enumerate(tokens)]

    def attack(attacker: Attacker) -> None:
        while time.monotonic() < until:
            attacker.attack()

    threads = [threading.Thread(target=attack, args=(attacker,)) for attacker in attackers]
    try:
        for thread in threads:
            thread.start()
        with watched_health(served.url) as waits:  # measured in a separate idle process
            while time.monotonic() < until:
                most = max(most, resident_mib(served.pid))
                time.sleep(0.05)
            for thread in threads:
                thread.join()
        for attacker in attackers:
            attacker.close()
    finally:
        ended = served.close()
    longest = max(waits)
    print(f"grew by {most - before} MiB at most; the longest wait was {longest:.2f} s")
    assert most - before < GROWTH
    assert longest < PATIENCE
    assert ended in (0, -15)
