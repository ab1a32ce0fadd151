"""XuanCe's DQN learns CartPole; only the entries of its registry are ours.

Needs XuanCe 1.2 or later: pip install xuance. Run: python examples/xuance_dqn.py
"""

from __future__ import annotations

import argparse

import xuance_envs


def main() -> None:
    """Puts our vector environments into XuanCe's registry, and runs XuanCe."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timesteps", type=int, default=20_000, help="default: %(default)s")
    args = parser.parse_args()
    try:
        import xuance
        from xuance.environment import REGISTRY_VEC_ENV
    except ImportError as error:
        raise SystemExit(f"this example needs XuanCe (pip install xuance): {error}") from error

    # XuanCe picks the class by the name that is under "vectorize" in its configuration.
    REGISTRY_VEC_ENV["DummyVecEnv"] = xuance_envs.DummyVecEnv
    REGISTRY_VEC_ENV["SubprocVecEnv"] = xuance_envs.SubprocVecEnv

    settings = argparse.Namespace(
        vectorize="SubprocVecEnv", parallels=8, running_steps=args.timesteps, device="cpu"
    )
    runner = xuance.get_runner("dqn", "classic_control", "CartPole-v1", parser_args=settings)
    runner.run(mode="train")


if __name__ == "__main__":
    main()
