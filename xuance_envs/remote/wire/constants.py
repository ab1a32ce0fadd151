"""Protocol constants of client and server."""

PROTOCOL_VERSION = 4  # client and server must use the same version
API_PREFIX = "/api/v1"
MAX_SEED = 2**64  # exclusive upper bound of seeds
