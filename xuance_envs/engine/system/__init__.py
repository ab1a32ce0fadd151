"""Forks, thread pools and interrupts of this process."""
