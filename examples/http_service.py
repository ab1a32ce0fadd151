"""Step 256 environments that each call an HTTP service, in threads.

    python examples/http_service.py
    python examples/http_service.py --num-envs 64 --steps 50

Each environment sends its action to a service and waits for the answer, as with a language model
or a simulator on another machine. The service runs in this program. Each of its answers takes a
quarter of a second. Threads wait for all answers at the same time, so a vector step takes little
longer than one answer.
"""

from __future__ import annotations

import argparse
import http.client
import json
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from tqdm import tqdm

from xuance_envs import ThreadVecEnv

SECONDS = 0.25


class Service(BaseHTTPRequestHandler):
    """Guessing game: the answer says whether the secret number is higher or lower."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        time.sleep(SECONDS)
        _, secret, guess = self.path.split("/")
        answer = json.dumps({"sign": int(np.sign(int(secret) - int(guess)))}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024


class GuessingEnv(gymnasium.Env[Any, Any]):
    """Environment whose steps ask the service; its observation is the remaining interval."""

    observation_space = spaces.Box(0, 100, (2,), np.int64)
    action_space = spaces.Discrete(101)

    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = http.client.HTTPConnection(*address)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._secret = int(self.np_random.integers(101))
        self._interval = np.array([0, 100])
        return self._interval, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._connection.request("GET", f"/{self._secret}/{action}")
        sign = json.loads(self._connection.getresponse().read())["sign"]
        low, high = self._interval
        self._interval = (
            np.array([max(low, action + 1), high] if sign > 0 else [low, min(high, action - 1)])
            if sign
            else np.array([action, action])
        )
        return self._interval, -1.0, sign == 0, False, {}

    def close(self) -> None:
        self._connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    with Server(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        make_env = partial(GuessingEnv, server.server_address)
        with ThreadVecEnv([make_env] * args.num_envs) as envs:
            obs, _ = envs.reset(seed=0)
            games, start = 0, time.perf_counter()
            for _ in tqdm(range(args.steps), unit="step"):
                next_obs, _, terminated, _, infos = envs.step(obs.sum(axis=1) // 2)
                obs = next_obs.copy()
                for i in np.flatnonzero(terminated):
                    obs[i] = infos[i]["reset_obs"]
                games += int(terminated.sum())
            seconds = time.perf_counter() - start
        server.shutdown()
    rate = args.num_envs * args.steps / seconds
    print(f"{games} numbers guessed; {rate:,.0f} answers/s ({1 / SECONDS:,.0f} without threads)")


if __name__ == "__main__":
    main()
