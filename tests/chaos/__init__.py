"""Fault injection: every command, with faults at random moments, and what must hold afterwards."""
