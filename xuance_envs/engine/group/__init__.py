"""Environments stepped in series, and what is known of one of them."""
