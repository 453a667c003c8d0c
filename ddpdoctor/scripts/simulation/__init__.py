"""Executes the statements of a script as all ranks of a simulated job: who calls which collective, and where ranks diverge."""
