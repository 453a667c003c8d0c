"""HOST003, NET029, NET032, NET036: signatures of RDMA errors; otherwise, NET031 names these causes as candidates."""

from __future__ import annotations

__all__: list[str] = []

RETRIES = (r"with (error|status=)\s?12\b[^\n]{0,300}vendor err 129",)
