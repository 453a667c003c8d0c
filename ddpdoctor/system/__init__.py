"""Starting processes and waiting with a deadline."""
