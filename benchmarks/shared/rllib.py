"""RLlib's EnvRunners, as a baseline for collectors on a cluster."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from time import perf_counter
from typing import Any

__all__ = ["Sampling", "why_without"]

NEEDS = ("ray", "torch", "pandas", "pyarrow", "lz4", "ormsgpack", "tensorboardX", "skimage", "tree")


def why_without() -> str | None:
    """Return why RLlib is left out; None if it can be used."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if not missing:
        return None
    return f'RLlib is left out: {", ".join(missing)} cannot be found (pip install "ray[rllib]").'


class Sampling:
    """EnvRunners that sample concurrently, each in an actor with its own environments.

    They return episodes, which are not combined.
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        network: Callable[[], Any],
        runners: int,
        num_envs: int,
        steps: int,
    ) -> None:
        from ray.rllib.algorithms.ppo import PPOConfig
        from ray.rllib.core.columns import Columns
        from ray.rllib.core.rl_module.rl_module import RLModuleSpec
        from ray.rllib.core.rl_module.torch import TorchRLModule
        from ray.rllib.env.env_runner_group import EnvRunnerGroup
        from ray.tune.registry import register_env

        class Policy(TorchRLModule):  # type: ignore[misc]  # RLlib has no types
            def setup(self) -> None:
                self.network = network()

            def _forward(self, batch: Any, **_: Any) -> Any:
                return {Columns.ACTION_DIST_INPUTS: self.network(batch[Columns.OBS])}

        logging.getLogger("ray").setLevel(logging.ERROR)
        register_env("theirs", lambda _: make_env())
        self.num_envs = num_envs
        self._steps = steps
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = (
                PPOConfig()
                .environment("theirs")
                .framework("torch")
                .env_runners(
                    num_env_runners=runners,
                    num_envs_per_env_runner=num_envs // runners,
                    rollout_fragment_length=steps,
                )
                .rl_module(rl_module_spec=RLModuleSpec(module_class=Policy))
            )
            self._group = EnvRunnerGroup(config=config, local_env_runner=False)

    def run(self, steps: int) -> float:
        """Collect whole rollouts; return their duration, scaled to ``steps`` steps."""
        deliveries = math.ceil(steps / self._steps)
        start = perf_counter()
        for _ in range(deliveries):
            found = self._group.foreach_env_runner(lambda runner: runner.sample())
            assert sum(len(episode) for each in found for episode in each) >= (
                self._steps * self.num_envs
            )
        return (perf_counter() - start) * steps / (deliveries * self._steps)

    def close(self) -> None:
        self._group.stop()
