"""The child process that talks to NVML (`__main__.py`), and what it asks."""
