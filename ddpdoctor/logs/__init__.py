"""Logs become processes with a history: prefixes, attribution, tracebacks, outcome."""
