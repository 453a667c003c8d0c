"""LAUNCH: lines of one job, one per node, that do not fit together."""
