"""Executes shell text for one imagined process at a time: nothing is run, written or contacted."""
