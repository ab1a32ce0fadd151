"""Worker processes: startup, communication, monitoring and shutdown."""
