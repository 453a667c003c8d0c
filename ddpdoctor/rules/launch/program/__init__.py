"""LAUNCH: the script that a line names."""
