"""Expressions of a script, evaluated for each rank of a simulated job."""
