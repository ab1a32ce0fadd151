"""XuanCe's DQN learns CartPole on the vector environments of this package.

Needs XuanCe 1.2 to 1.4: pip install xuance. Run: python examples/xuance_dqn.py --timesteps 20000
"""

from __future__ import annotations

import argparse
import time

from xuance_envs.compat.xuance import install


def main() -> None:
    """Puts our vector environments into XuanCe's registry, and runs XuanCe."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timesteps", type=int, default=20_000, help="default: %(default)s")
    args = parser.parse_args()
    try:
        install()  # the line that is added; from here on all is XuanCe's
        import xuance
    except ImportError as error:
        raise SystemExit(f"this example needs XuanCe (pip install xuance): {error}") from error

    # XuanCe picks the class by the name that is under "vectorize" in its configuration.
    settings = argparse.Namespace(
        vectorize="SubprocVecEnv", parallels=8, running_steps=args.timesteps, device="cpu"
    )
    runner = xuance.get_runner("dqn", "classic_control", "CartPole-v1", parser_args=settings)
    start = time.perf_counter()
    runner.run(mode="train")
    print(f"{args.timesteps:,} steps in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
