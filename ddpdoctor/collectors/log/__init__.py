"""`log`: reads the output of ranks, launchers and schedulers, compressed or not, of any size."""
