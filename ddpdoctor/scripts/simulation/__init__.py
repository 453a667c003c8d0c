"""Statements of a script, executed by all ranks of a simulated job: who calls which collective, and where ranks diverge."""
