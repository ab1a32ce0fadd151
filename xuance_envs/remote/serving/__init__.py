"""How requests reach the server, and what they may cost before anything is done for them."""
