from xuance_envs.remote.server.server import Server as Server
