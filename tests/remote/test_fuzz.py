"""Random malformed requests cause no 5xx status, no hang and no memory growth."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import httpx
import msgpack
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from serving import API_PREFIX, ServedProcess, wait_until

ROUTES = (
    "session/create",
    "episode/create",
    "episode/vectorized_reset",
    "episode/vectorized_step",
    "episode/call",
    "episode/states",
)
GROWTH = 64 * 2**10
"""KiB that the server may grow by: allocators keep what they once had."""


@pytest.fixture(scope="module")
def served() -> Iterator[ServedProcess]:
    served = ServedProcess(
        *("--env", "CartPole-v1", "--allow-get", "gravity", "--max-sessions-per-token", "64"),
        *("--max-body", "1", "--max-envs-per-session", "16", "--max-envs", "32"),
        *("--allow-call", "gravity", "--allow-set", "gravity"),
        *("--idle-timeout", "5", "--max-repeats", "50", "--no-access-log"),
    )
    yield served
    assert served.close() in (0, -15)


@pytest.fixture(scope="module")
def client(served: ServedProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=60) as client:
        yield client


def resident_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


class Target:
    """Open session for the requests; without one, the server answers most of them with 404."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self.id = ""

    def renew(self) -> str:
        """Return the session's id; open a new session if the last one was closed."""
        message = {"session_id": self.id, "operation": "get_attr", "name": "gravity"}
        if self._client.post(f"{API_PREFIX}/episode/call", json=message).status_code != 200:
            if self.id:
                self._client.delete(f"{API_PREFIX}/session/{self.id}")
            wait_until(self._has_opened)
            for path in ("create", "vectorized_reset"):
                self._client.post(f"{API_PREFIX}/episode/{path}", json={"session_id": self.id})
        return self.id

    def _has_opened(self) -> bool:
        """Try to open a session; return False if the limit on sessions is reached."""
        answer = self._client.post(f"{API_PREFIX}/session/create", json={})
        if answer.status_code == 429:
            return False
        self.id = answer.json()["session_id"]
        return True


def run(client: httpx.Client, served: ServedProcess, requests: Iterator[httpx.Request]) -> int:
    """Send the requests and return their number."""
    warm, count = 0, 0
    for count, request in enumerate(requests, start=1):
        answer = client.send(request)
        assert answer.status_code < 500, (request.url, request.content[:200], answer.text)
        if count == 50:
            warm = resident_kib(served.pid)
    assert client.get("/healthz").json() == {"status": "ok"}
    assert resident_kib(served.pid) - warm < GROWTH
    return count


# --- by hand ------------------------------------------------------------------------------------


def raw(rng: random.Random) -> Any:
    """Return an array's msgpack form, usually with an error."""
    return {
        "$": rng.choice(["array", "array", "array", "scalar", "tuple", "$", 1, None]),
        "dtype": rng.choice(
            ["int64", "int64", "float32", "object", "V8", "float128", "", 8, "<i8"]
        ),
        "shape": rng.choice(
            [[1], [], [-1], [2**62, 4], [10**9] * 9, [0, 2**39], "1", [1.0], [None], {}, [1] * 40]
        ),
        "data": rng.choice([bytes(8), b"", bytes(7), b"\xff" * 8, [0], [math.nan], "AAAA", None]),
    }


def value(rng: random.Random, depth: int = 0) -> Any:
    simple = [
        *(None, True, 0, 1, -1, 2**63, -(2**63), 0.5, math.nan, math.inf, "", "x" * 300, "\ud800"),
        *(b"", b"\x00" * 9, [], {}, [0], ["NaN"], raw(rng), {"$": "dict", "items": [[[], 0]]}),
        *({"$": "int", "data": "f" * 999}, msgpack.Timestamp(0), msgpack.ExtType(7, b"x"), {"": 0}),
    ]
    kind = rng.random()
    if depth > 6 or kind < 0.7:
        return rng.choice(simple)
    if kind < 0.85:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(["a", "$", "x"]): value(rng, depth + 1) for _ in range(rng.randrange(3))}


FIELDS = (
    *("env_id", "num_envs", "seed", "kwargs", "auto_reset", "episode_ids", "options", "actions"),
    *("steps", "operation", "name", "args", "values", "mode", "sequence", "share_frames", "odd"),
    *("states", "sources", "fork_rng"),
)
SENSIBLE: dict[str, list[Any]] = {
    "env_id": ["CartPole-v1", None],
    "num_envs": [1, 2],
    "actions": [[0], [1], [7], [0, 1]],
    "operation": ["call", "get_attr", "set_attr", "render", "save", "load", "clone", "drop"],
    "states": [[1], [2, 1], list(range(1, 9))],
    "sources": [["0"], None],
    "name": ["gravity"],
    "episode_ids": [["0"], None],
    "steps": [1, 50],
    "values": [[9.8]],
    "auto_reset": [True, False],
}


def made_by_hand(client: httpx.Client, count: int) -> Iterator[httpx.Request]:
    rng, target = random.Random(0), Target(client)
    for number in range(count):
        if number % 10 == 0:
            target.renew()
        message: Any = {"session_id": target.id if rng.random() < 0.9 else value(rng)}
        for name in rng.sample(FIELDS, rng.randrange(5)):
            sensible = name in SENSIBLE and rng.random() < 0.6
            message[name] = rng.choice(SENSIBLE[name]) if sensible else value(rng)
        body = msgpack.packb(message, unicode_errors="surrogatepass")
        harm = rng.random()
        if harm < 0.1:
            body = body[: rng.randrange(len(body))]
        elif harm < 0.2:
            body = bytes(b ^ (rng.random() < 0.03) * rng.randrange(256) for b in body)
        elif harm < 0.25:
            body = rng.choice([b"\x91", b"\x81\xa1a"]) * rng.randrange(60_000) + b"\xc0"
        elif harm < 0.3:
            body = rng.choice([b"\xdd", b"\xdf", b"\xc6", b"\xdb"]) + b"\xff\xff\xff\xff" + body
        content_type = rng.choice(["application/msgpack"] * 9 + ["application/json"])
        headers = {"Content-Type": content_type}
        url = f"{API_PREFIX}/{rng.choice(ROUTES)}"
        yield client.build_request("POST", url, content=body, headers=headers)


def test_msgpack_made_by_hand(served: ServedProcess, client: httpx.Client) -> None:
    assert run(client, served, made_by_hand(client, 150)) == 150


@pytest.mark.long
def test_much_msgpack_made_by_hand(served: ServedProcess, client: httpx.Client) -> None:
    assert run(client, served, made_by_hand(client, 4000)) == 4000


# --- from the OpenAPI document ------------------------------------------------------------------


def fuzz_from_the_document(served: ServedProcess, client: httpx.Client, count: int) -> int:
    schemathesis = pytest.importorskip("schemathesis")
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    operations = [result.ok() for result in schema.get_all_operations()]
    each = count // sum(bool(operation.body) for operation in operations) * 4 // 3
    target, sent = Target(client), 0
    warm = resident_kib(served.pid)

    for operation in operations:
        modes = list(schemathesis.GenerationMode)
        cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes])

        @settings(
            max_examples=each,
            phases=[Phase.generate],
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases, aimed=st.booleans())
        def send(case: Any, aimed: bool) -> None:
            nonlocal sent
            if aimed and isinstance(case.body, dict) and "session_id" in case.body:
                case.body["session_id"] = target.renew() if sent % 10 == 0 else target.id
            answer = case.call(base_url=served.url, timeout=60)
            assert answer.status_code < 500, (case.method, case.path, case.body, answer.text)
            sent += 1

        send()
    assert client.get("/healthz").json() == {"status": "ok"}
    assert resident_kib(served.pid) - warm < GROWTH
    return sent


@pytest.mark.slow("hundreds of generated requests")
def test_requests_from_the_openapi_document(served: ServedProcess, client: httpx.Client) -> None:
    assert fuzz_from_the_document(served, client, 50) >= 50


@pytest.mark.long
def test_many_requests_from_the_openapi_document(
    served: ServedProcess, client: httpx.Client
) -> None:
    assert fuzz_from_the_document(served, client, 5000) >= 5000
