"""Causes that a shell or batch file shows as a whole, when it is executed on an imagined cluster."""
