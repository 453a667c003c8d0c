"""The newest CUDA version that each branch of NVIDIA's driver supports.

Source: the table "CUDA Toolkit and Corresponding Driver Versions" in NVIDIA's CUDA Toolkit release notes, as of CUDA 13.1.
"""

from __future__ import annotations

__all__ = ["cuda_of_driver"]

_BRANCHES = (
    (590, 13010),
    (580, 13000),
    (575, 12090),
    (570, 12080),
    (565, 12070),
    (560, 12060),
    (555, 12050),
    (550, 12040),
    (545, 12030),
    (535, 12020),
    (530, 12010),
    (525, 12000),
    (520, 11080),
    (515, 11070),
    (510, 11060),
    (495, 11050),
    (470, 11040),
    (465, 11030),
    (460, 11020),
    (455, 11010),
    (450, 11000),
    (440, 10020),
    (418, 10010),
    (410, 10000),
)


def cuda_of_driver(version: str) -> int | None:
    """12040 for driver 550.90.12, in the form of nvmlSystemGetCudaDriverVersion; None for a branch that is not in the table."""
    branch = version.partition(".")[0]
    if not branch.isdecimal() or len(branch) > 4 or int(branch) >= _BRANCHES[0][0] + 10:
        return None
    return next((cuda for number, cuda in _BRANCHES if int(branch) >= number), None)
