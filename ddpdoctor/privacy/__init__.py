"""Redaction: what must not leave the machine is removed here, once, before anything leaves the process."""
