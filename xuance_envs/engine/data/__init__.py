"""What lies in the arrays of a step: observations, actions, rewards, flags and infos."""
