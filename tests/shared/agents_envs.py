"""Multi-agent environments for tests, without any multi-agent library."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

FOREVER = 10**9


class Herd:
    """Parallel environment in PettingZoo's form, with a schedule of agents that join and leave.

    ``plays`` has the first step, counted from 1, and the last step of each agent.
    """

    metadata: Mapping[str, Any] = {"name": "herd"}
    render_mode = "rgb_array"

    def __init__(
        self,
        plays: Mapping[Any, tuple[int, int]] | None = None,
        length: int = 7,
        masks: str | None = None,
        images: bool = False,
        kinds: int = 1,
        numbers: bool = True,
        env_seed: int | None = None,
    ) -> None:
        self.plays = dict(plays or {f"sheep_{i}": (1, FOREVER) for i in range(3)})
        self.possible_agents = list(self.plays)
        self.length, self.masks, self.images, self.numbers = length, masks, images, numbers
        self.state_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.agents: list[Any] = []
        self.rng = np.random.default_rng(env_seed)
        self.kind = {agent: i % kinds for i, agent in enumerate(self.possible_agents)}
        self.given: list[Mapping[Any, Any]] = []
        self.closed = False

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        if self.images:
            space: spaces.Space[Any] = spaces.Box(0, 255, (6, 6, 2), np.uint8)
        else:
            space = spaces.Box(-np.inf, np.inf, (4 + self.kind[agent],), np.float32)
        if self.masks == "observation":
            mask = spaces.Box(0, 1, (self.actions_of(agent),), np.int8)
            return spaces.Dict({"observation": space, "action_mask": mask})
        return space

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        if self.kind[agent] == 2:
            return spaces.Box(-1, 1, (2,), np.float32)
        return spaces.Discrete(self.actions_of(agent))

    def actions_of(self, agent: Any) -> int:
        return 3 + self.kind[agent]

    def state(self) -> np.ndarray:
        return np.array([self.t, self.total])

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t, self.total = 0, float((options or {}).get("total", 0))
        self.agents = [agent for agent, (first, _) in self.plays.items() if first == 1]
        return self.seen(self.agents), self.told(self.agents)

    def step(self, actions: Mapping[Any, Any]) -> Any:
        assert list(actions) == self.agents, (list(actions), self.agents)
        self.given.append(actions)
        self.t += 1
        acted = self.agents
        rewards = {agent: float(self.rng.random()) + np.sum(actions[agent]) for agent in acted}
        self.total += sum(rewards.values())
        terminated = {agent: self.t >= self.plays[agent][1] for agent in acted}
        cut = self.t >= self.length
        truncated = {agent: cut and not terminated[agent] for agent in acted}
        on = [agent for agent in acted if not terminated[agent] and not cut]
        came = [a for a, (first, _) in self.plays.items() if first == self.t + 1 and not cut]
        self.agents = [agent for agent in self.possible_agents if agent in on or agent in came]
        if not on:
            self.agents = []
        shown = acted + [agent for agent in came if agent in self.agents]
        return self.seen(shown), rewards, terminated, truncated, self.told(acted)

    def seen(self, agents: Sequence[Any]) -> dict[Any, Any]:
        return {agent: self.look(agent) for agent in agents}

    def look(self, agent: Any) -> Any:
        if self.images:
            seen = self.rng.integers(0, 256, (6, 6, 2), dtype=np.uint8)
        else:
            seen = self.rng.random(4 + self.kind[agent], np.float32)
        if self.masks == "observation":
            return {"observation": seen, "action_mask": self.mask(agent).astype(np.int8)}
        return seen

    def mask(self, agent: Any) -> np.ndarray:
        mask = self.rng.random(self.actions_of(agent)) < 0.5
        mask[0] = True
        return mask

    def told(self, agents: Sequence[Any]) -> dict[Any, Any]:
        infos: dict[Any, dict[str, Any]] = {agent: {} for agent in agents}
        for agent in agents:
            if self.numbers:
                infos[agent] = {"t": self.t, "luck": float(self.rng.random())}
            if self.masks == "info":
                infos[agent]["action_mask"] = self.mask(agent)
        return infos

    def render(self) -> np.ndarray:
        return np.full((2, 2, 3), self.t, np.uint8)

    def close(self) -> None:
        self.closed = True


MIXED = {"wolf_0": (1, 3), "sheep_0": (1, FOREVER), "sheep_1": (3, 5), "sheep_2": (1, 6)}
"""One agent ends early, one stays, one joins late and leaves, and one ends late."""

ALL_END = {"sheep_0": (1, 2), "sheep_1": (1, 4)}
"""All agents terminate, one after the other."""


class Broken(Herd):
    """A herd whose step returns an invalid result."""

    def __init__(self, broken: str, at: int = 2, **options: Any) -> None:
        super().__init__(**options)
        self.broken, self.at = broken, at

    def step(self, actions: Mapping[Any, Any]) -> Any:
        result = super().step(actions)
        return getattr(self, self.broken)(*result) if self.t == self.at else result

    def reward_array(self, o: Any, r: Any, te: Any, tr: Any, i: Any) -> Any:
        return o, {**r, "sheep_1": np.array([1.0, 2.0])}, te, tr, i

    def reward_missing(self, o: Any, r: Any, te: Any, tr: Any, i: Any) -> Any:
        del r["sheep_1"]
        return o, r, te, tr, i

    def flag_array(self, o: Any, r: Any, te: Any, tr: Any, i: Any) -> Any:
        return o, r, {**te, "sheep_1": np.array([True, False])}, tr, i

    def observation_shape(self, o: Any, r: Any, te: Any, tr: Any, i: Any) -> Any:
        return {**o, "sheep_1": np.zeros(5, np.float32)}, r, te, tr, i

    def observation_missing(self, o: Any, r: Any, te: Any, tr: Any, i: Any) -> Any:
        del o["sheep_1"]
        return o, r, te, tr, i

    def stranger(self, o: Any, r: Any, te: Any, tr: Any, i: Any) -> Any:
        self.agents = [*self.agents, "goat"]
        return o, r, te, tr, i

    def agents_none(self, o: Any, r: Any, te: Any, tr: Any, i: Any) -> Any:
        self.agents = None  # type: ignore[assignment]  # the invalid value to test
        return o, r, te, tr, i

    def agents_twice(self, o: Any, r: Any, te: Any, tr: Any, i: Any) -> Any:
        self.agents = ["sheep_1", "sheep_1"]
        return o, r, te, tr, i

    def agents_that_stay(self, o: Any, r: Any, te: Any, tr: Any, i: Any) -> Any:
        return o, r, dict.fromkeys(te, False), dict.fromkeys(tr, True), i

    def reset_key(self, o: Any, r: Any, te: Any, tr: Any, i: Any) -> Any:
        return o, r, te, tr, {**i, "reset_obs": 1}

    def state_raises(self, *result: Any) -> Any:
        self.state = lambda: 1 // 0  # type: ignore[assignment,method-assign,return-value]
        return result

    def info_string(self, o: Any, r: Any, te: Any, tr: Any, i: Any) -> Any:
        return o, r, te, tr, {**i, "sheep_1": "well"}

    def mask_length(self, o: Any, r: Any, te: Any, tr: Any, i: Any) -> Any:
        i["sheep_1"]["action_mask"] = np.ones(9, bool)
        return o, r, te, tr, i

    def four_values(self, o: Any, r: Any, te: Any, tr: Any, i: Any) -> Any:
        return o, r, te, i

    def raises(self, o: Any, r: Any, te: Any, tr: Any, i: Any) -> Any:
        raise RuntimeError("the fence broke")

    def state_shape(self, *result: Any) -> Any:
        self.state = lambda: np.zeros(3)  # type: ignore[method-assign]
        return result


class Squad:
    """Environment in XuanCe's form ``RawMultiAgentEnv``, with agents that terminate early."""

    metadata: Mapping[str, Any] = {}
    render_mode = None

    def __init__(
        self, env_seed: int | None = None, length: int = 6, lives: Sequence[int] = (9, 9, 3)
    ) -> None:
        self.rng = np.random.default_rng(env_seed)
        self.agents = [f"red_{i}" for i in range(len(lives))]
        self.num_agents = len(self.agents)
        self.lives = dict(zip(self.agents, lives, strict=True))
        self.observation_space = {a: spaces.Box(-9, 9, (4,), np.float32) for a in self.agents}
        self.action_space = {a: spaces.Discrete(3) for a in self.agents}
        self.state_space = spaces.Box(-9, 9, (3,), np.float32)
        self.agent_groups = [self.agents]
        self.max_episode_steps = length
        self.t = 0
        self.closed = False

    def get_env_info(self) -> dict[str, Any]:
        return {
            "state_space": self.state_space,
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "agents": self.agents,
            "num_agents": self.num_agents,
            "max_episode_steps": self.max_episode_steps,
            "num_enemies": 2,
            "num_adversaries": 2,
        }

    def get_groups_info(self) -> dict[str, Any]:
        return {"num_groups": 1, "agent_groups": self.agent_groups, "num_agents_groups": [3]}

    def state(self) -> np.ndarray:
        return np.array([self.t, *self.pulse], np.float32)

    def agent_mask(self) -> dict[str, bool]:
        return {agent: self.t < self.lives[agent] for agent in self.agents}

    def avail_actions(self) -> dict[str, np.ndarray]:
        return {
            a: np.array([True, self.t % 2 == 0, alive]) for a, alive in self.agent_mask().items()
        }

    def reset(self) -> Any:
        self.t = 0
        self.pulse = self.rng.random(2)
        return self.seen(), {"battle_won": False}

    def step(self, actions: Mapping[str, Any]) -> Any:
        assert actions.keys() == set(self.agents)
        self.t += 1
        rewards = {agent: float(self.rng.random() + actions[agent]) for agent in self.agents}
        terminated = {agent: self.t >= self.lives[agent] for agent in self.agents}
        info = {"battle_won": True, "dead_allies": 1, "dead_enemies": 2, "score_reward": 1.5}
        return self.seen(), rewards, terminated, self.t >= self.max_episode_steps, info

    def seen(self) -> dict[str, np.ndarray]:
        mask = self.agent_mask()
        return {a: self.rng.random(4).astype(np.float32) * mask[a] for a in self.agents}

    def render(self, *args: Any) -> np.ndarray:
        return np.zeros((2, 2, 3), np.uint8)

    def close(self) -> None:
        self.closed = True


class Crowd(Herd):
    """A herd whose agents join, end, leave without a flag, and come back, all at random."""

    def step(self, actions: Mapping[Any, Any]) -> Any:
        assert list(actions) == self.agents
        self.t += 1
        acted, chance = self.agents, self.rng.random
        rewards = {agent: float(chance()) + np.sum(actions[agent]) for agent in acted}
        self.total += sum(rewards.values())
        cut = chance() < 0.05
        terminated = {agent: bool(chance() < 0.1) for agent in acted}
        truncated = {agent: bool(cut or chance() < 0.1) for agent in acted}
        on = [agent for agent in acted if not terminated[agent] and not truncated[agent]]
        on = [agent for agent in on if chance() > 0.05]
        came = [a for a in self.possible_agents if on and a not in acted and chance() < 0.2]
        self.agents = [agent for agent in self.possible_agents if agent in on or agent in came]
        return self.seen(acted + came), rewards, terminated, truncated, self.told(acted)


class Silent(Herd):
    """A herd whose agents leave ``agents`` without a flag, alone or all together."""

    def step(self, actions: Mapping[Any, Any]) -> Any:
        observations, rewards, *_, infos = super().step(actions)
        none = dict.fromkeys(actions, False)
        return observations, rewards, none, none, infos


class AllAtOnce(Herd):
    """A herd that ends episodes with ``"__all__"``, as in RLlib; its agents stay in ``agents``."""

    def __init__(
        self, flags: Mapping[str, bool], own: Mapping[str, Any] | None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.flags, self.own = flags, own

    def step(self, actions: Mapping[Any, Any]) -> Any:
        acted = self.agents
        observations, rewards, *_, infos = super().step(actions)
        over = not self.agents
        self.agents = acted
        flags = [
            {
                **{a: over and self.own.get(name) == a for a in acted if self.own is not None},
                "__all__": over and self.flags.get(name, False),
            }
            for name in ("terminated", "truncated")
        ]
        return observations, rewards, *flags, infos


class Staying(Herd):
    """A herd whose agents get a flag when they end, and stay in ``agents`` until they leave."""

    def __init__(
        self, ends: Mapping[Any, int], leaves: Mapping[Any, int] | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.ends, self.leaves = ends, leaves or {}

    def step(self, actions: Mapping[Any, Any]) -> Any:
        acted = self.agents
        observations, rewards, _, truncated, infos = super().step(actions)
        self.agents = [agent for agent in acted if self.leaves.get(agent) != self.t]
        terminated = {agent: self.ends.get(agent) == self.t for agent in acted}
        return observations, rewards, terminated, truncated, infos


class ArrayAgents:
    """A herd or squad whose ``agents`` and ``possible_agents`` are NumPy arrays."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # during unpickling
            raise AttributeError(name)
        value = getattr(self.env, name)
        return np.array(value) if name in ("agents", "possible_agents") else value


class Stateless(Herd):
    """A herd without a state after its agents have left, like PettingZoo's multiwalker_v9."""

    def __init__(self, fails: Any = "raises", **options: Any) -> None:
        super().__init__(**options)
        self.fails = fails

    def state(self) -> Any:
        if self.agents:
            return super().state()
        if isinstance(self.fails, str):
            return np.concatenate([np.zeros(2) for _ in self.agents])
        return self.fails


class Uneven(Herd):
    """A herd whose steps take random times, so that workers reply in any order."""

    def step(self, actions: Any) -> Any:
        time.sleep(np.random.default_rng().random() * 1e-3)
        return super().step(actions)
