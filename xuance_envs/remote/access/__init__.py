"""Who may use a server, and what of it."""
