"""Many environments as one, as the caller sees them."""
