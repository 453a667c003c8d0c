"""Tracebacks in logs, whole, interleaved or cut off."""
