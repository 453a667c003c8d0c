"""PROBE: faults that show only when ranks run: missing, dead, stopped, busy, late, or wrong ranks, and slow links."""
