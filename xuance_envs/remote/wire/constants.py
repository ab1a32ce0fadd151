"""Protocol constants and rules of client and server."""

PROTOCOL_VERSION = 4  # client and server must use the same version
API_PREFIX = "/api/v1"
MAX_SEED = 2**64  # exclusive upper bound of seeds


def is_token(text: object) -> bool:
    """Return whether a value is a text of only visible ASCII characters."""
    if not isinstance(text, str):
        return False
    return bool(text) and text.isascii() and text.isprintable() and " " not in text
