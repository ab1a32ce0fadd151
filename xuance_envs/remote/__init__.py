"""HTTP server that hosts environments for many users, and its clients."""
