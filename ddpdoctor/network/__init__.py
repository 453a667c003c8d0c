"""Sockets, name resolution and torch's TCPStore protocol."""
