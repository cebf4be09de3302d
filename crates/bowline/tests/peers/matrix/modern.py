"""What the Python servers of the matrix share when they serve revision 2026-07-28 and no other."""

import sys

import mcp_types as types
from mcp.shared.exceptions import MCPError

REVISION = "2026-07-28"
# Asked for on the command line, in front of the port.
ONLY = "modern" in sys.argv[1:]


def port():
    """Returns the port to serve at, or nothing if it is to be stdio."""
    ports = [int(word) for word in sys.argv[1:] if word.isdigit()]
    return ports[0] if ports else None


def refuse(requested):
    """Answers a handshake of the older era."""
    raise MCPError(
        code=types.UNSUPPORTED_PROTOCOL_VERSION,
        message="this server has no handshake",
        data={"supported": [REVISION], "requested": requested},
    )
