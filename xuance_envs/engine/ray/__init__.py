"""Groups in the actors of a Ray cluster."""
