"""Groups of environments in threads of this process."""
