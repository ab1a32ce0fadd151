"""What steps environments: knows nothing of VecEnv, XuanCe or Gymnasium's vector API."""
