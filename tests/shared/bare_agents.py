"""Comparison of multi-agent environments with bare loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xuance_envs import MultiAgentVecEnv
from xuance_envs.multi_agent.step import MultiAgentStart, MultiAgentStep


def assert_like_bare_loops(
    envs: MultiAgentVecEnv, env_fns: Sequence[Callable[[], Any]], steps: int, seed: int = 5
) -> None:
    """Step a vectorized environment and bare environments, and compare all results bitwise."""
    bare = [fn() for fn in env_fns]
    draw = np.random.default_rng(seed)
    step: Any = envs.reset(seed=seed)
    firsts = [env.reset(seed=seed + i) for i, env in enumerate(bare)]
    assert not step.acted.any()
    assert not step.rewards.any()
    for i, env in enumerate(bare):
        assert_start(envs, step, i, env, *firsts[i])
    for _ in range(steps):
        actions = [
            {agent: draw_action(draw, env.action_space(agent)) for agent in env.agents}
            for env in bare
        ]
        step = envs.step(actions)
        over = []
        for i, (env, given) in enumerate(zip(bare, actions, strict=True)):
            result = env.step(given)
            assert_step(envs, step, i, env, list(given), *result)
            if not env.agents:
                over.append(i)
        assert np.flatnonzero(step.episode_over).tolist() == over
        if not over:
            assert step.first is None
            continue
        assert step.first.env_ids.tolist() == over
        following = step.next()
        for k, i in enumerate(over):
            reset = bare[i].reset()
            assert_start(envs, step.first, k, bare[i], *reset)
            assert_start(envs, following, i, bare[i], *reset)
    for env in bare:
        env.close()


def draw_action(draw: np.random.Generator, space: Any) -> Any:
    if hasattr(space, "n"):
        return np.int64(draw.integers(space.n))
    return draw.random(space.shape).astype(space.dtype)


def assert_start(
    envs: MultiAgentVecEnv, start: MultiAgentStart | MultiAgentStep, i: int, env: Any, *reset: Any
) -> None:
    observations, infos = reset
    assert alive_in(envs, start, i) == env.agents
    for agent in envs.agents:
        assert_observation(envs, start, i, agent, observations.get(agent))
    assert_state(start, i, env)
    assert_infos(envs, start, i, env.agents, infos, observations)


def assert_step(
    envs: MultiAgentVecEnv, step: MultiAgentStep, i: int, env: Any, acted: Any, *result: Any
) -> None:
    observations, rewards, terminated, truncated, infos = result
    assert alive_in(envs, step, i) == list(env.agents)
    for place, agent in enumerate(envs.agents):
        shown = agent in acted or agent in env.agents
        assert_observation(envs, step, i, agent, observations.get(agent) if shown else None)
        assert step.rewards[i, place] == np.float32(rewards.get(agent, 0))
        assert envs.exact_rewards[i, place] == rewards.get(agent, 0)
        assert step.terminated[i, place] == terminated.get(agent, False)
        assert step.truncated[i, place] == truncated.get(agent, False)
        assert step.acted[i, place] == (agent in acted)
    assert_state(step, i, env)
    assert_infos(envs, step, i, acted, infos, observations)


def alive_in(envs: MultiAgentVecEnv, step: Any, i: int) -> list[Any]:
    return [agent for agent, lives in zip(envs.agents, step.alive[i], strict=True) if lives]


def row_of(envs: MultiAgentVecEnv, batch: Any, i: int, agent: Any) -> Any:
    """Return an agent's entry in a batch."""
    group = next(name for name, agents in envs.groups.items() if agent in agents)
    if len(envs.groups) > 1:
        batch = batch[group]
    place = envs.groups[group].index(agent)
    if isinstance(batch, dict):
        return {key: value[i, place] for key, value in batch.items()}
    return batch[i, place]


def assert_observation(envs: Any, step: Any, i: int, agent: Any, expected: Any) -> None:
    got = row_of(envs, step.obs, i, agent)
    parts = got if isinstance(got, dict) else {None: got}
    for key, part in parts.items():
        if expected is None:
            assert not part.any(), (agent, part)
            continue
        wanted = expected if key is None else expected[key]
        assert part.dtype == wanted.dtype
        assert part.tobytes() == wanted.tobytes()


def assert_state(step: Any, i: int, env: Any) -> None:
    if step.state is not None:
        assert step.state[i].tobytes() == np.asarray(env.state()).tobytes()


def assert_infos(envs: Any, step: Any, i: int, present: Any, infos: Any, observations: Any) -> None:
    expected = {agent: dict(infos.get(agent) or {}) for agent in envs.agents if agent in present}
    masks = {agent: info.pop("action_mask", None) for agent, info in expected.items()}
    if step.action_masks is not None:
        for agent in envs.agents:
            mask = masks.get(agent)
            if isinstance(observations.get(agent), dict):
                mask = observations[agent]["action_mask"]
            got = row_of(envs, step.action_masks, i, agent)
            assert got.dtype == np.bool_
            assert got.tolist() == ([True] * len(got) if mask is None else list(mask != 0))
    assert step.infos[i] == expected
    for agent, info in expected.items():
        for key, value in info.items():
            assert type(step.infos[i][agent][key]) is type(value)
