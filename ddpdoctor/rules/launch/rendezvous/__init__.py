"""LAUNCH: where and how the nodes of one line meet."""
