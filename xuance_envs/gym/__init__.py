"""One environment at a time, and XuanCe's names for many.

This package is not OpenAI's ``gym``: absolute imports keep the two apart.
"""
