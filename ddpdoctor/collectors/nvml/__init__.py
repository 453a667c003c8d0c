"""The child process that queries NVML (`__main__.py`), and its queries."""
