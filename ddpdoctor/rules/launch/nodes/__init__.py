"""LAUNCH: lines of one job, one a node, that do not fit together."""
