"""Environment groups in Ray actors."""
