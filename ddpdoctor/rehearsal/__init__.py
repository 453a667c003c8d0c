"""The user's own script, run for a few steps on CPU and under observation, before any GPU is used.

`hook` is loaded into the ranks before user code; `supervisor` starts them, reads what they do, and ends the rehearsal.
"""
