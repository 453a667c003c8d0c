"""Redaction: removes secrets and host names before any data leaves the process."""
