"""Differences between systems, and forks, thread pools and interrupts of this process."""
