"""Commands of ``python -m xuance_envs`` for servers."""
