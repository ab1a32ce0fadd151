"""Backend whose workers run in Ray actors."""
