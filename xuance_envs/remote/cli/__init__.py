"""Commands of ``python -m xuance_envs`` for servers."""


class CommandError(Exception):
    """An error that the user can fix, such as a bad argument; printed without a traceback."""
