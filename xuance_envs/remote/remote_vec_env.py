class RemoteVecEnv:
    pass
