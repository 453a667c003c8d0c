"""Executes a script as all ranks of a simulated job: which rank calls which collective, and where ranks diverge."""
