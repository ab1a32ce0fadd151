"""The state of an environment as bytes, put into another one that the same function made."""
