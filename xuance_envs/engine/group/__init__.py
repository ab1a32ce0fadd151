"""Groups of environments that are stepped in series."""
