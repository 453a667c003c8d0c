"""torch's TCPStore without torch: wire format, client and server."""
