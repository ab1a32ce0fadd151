"""Single Gymnasium and Atari environments, and XuanCe's names for vectorized ones.

This package is not OpenAI's ``gym``: absolute imports keep the two apart.
"""
