"""Multi-agent particle environments, by name, until the first episodes end."""

from xuance_envs import make_multi_agent_vec

with make_multi_agent_vec("mpe2:simple_spread_v3", 4, backend="dummy") as envs:
    step = envs.reset(seed=0)
    print(step.obs.shape, envs.agents)
    while step.first is None:
        step = envs.step(envs.sample_actions())
    print(step.rewards.shape, step.episode_over.tolist(), step.next().obs.shape)
