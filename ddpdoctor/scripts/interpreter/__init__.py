"""Evaluates the expressions of a script as each rank of a simulated job."""
