"""Sessions and their environments, in worker processes."""
