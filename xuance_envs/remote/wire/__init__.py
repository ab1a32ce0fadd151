"""What travels between client and server, and how it is written."""
