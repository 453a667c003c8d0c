"""LAUNCH: how a launcher reads its words, and what it makes of the values."""
