"""PROBE: what is only seen when ranks run: missing, dead, stopped, elsewhere, late, wrong."""
