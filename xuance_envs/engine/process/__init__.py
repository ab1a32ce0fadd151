"""Groups in worker processes: started, spoken to, watched and ended."""
