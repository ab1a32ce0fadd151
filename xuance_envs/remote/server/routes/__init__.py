"""The paths that the server answers."""
