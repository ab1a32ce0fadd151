"""XuanCe's DQN on CartPole, with the vectorized environments of xuance_envs.

Needs XuanCe 1.2 to 1.4: pip install xuance. Run: python examples/xuance_dqn.py --timesteps 20000
"""

from __future__ import annotations

import argparse
import time

from xuance_envs.compat.xuance import install


def main() -> None:
    """Register the vectorized environments in XuanCe, and run XuanCe."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timesteps", type=int, default=20_000, help="default: %(default)s")
    args = parser.parse_args()
    try:
        install()  # the added line; all code below is XuanCe's
        import xuance
    except ImportError as error:
        raise SystemExit(f"this example needs XuanCe (pip install xuance): {error}") from error

    # XuanCe selects the class by the name in its setting "vectorize".
    settings = argparse.Namespace(
        vectorize="SubprocVecEnv", parallels=8, running_steps=args.timesteps, device="cpu"
    )
    runner = xuance.get_runner("dqn", "classic_control", "CartPole-v1", parser_args=settings)
    start = time.perf_counter()
    runner.run(mode="train")
    print(f"{args.timesteps:,} steps in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
