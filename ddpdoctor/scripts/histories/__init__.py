"""Histories: what a script does to each tensor, module, optimizer, file and group, in the order in which it runs."""
