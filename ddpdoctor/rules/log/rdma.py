"""HOST003, NET029, NET032, NET036: what RDMA's errors and their addresses say; else NET031 names them as candidates."""

from __future__ import annotations

__all__: list[str] = []

RETRIES = (r"with (error|status=)\s?12\b[^\n]*vendor err 129",)
