"""Data of a vector step: spaces in arrays, infos in columns, action masks."""
