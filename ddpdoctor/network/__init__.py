"""Sockets, names and torch's TCPStore protocol: each thing once."""
