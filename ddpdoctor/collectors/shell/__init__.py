"""Shell scripts: their launch lines, with what is certain of the variables there."""

from __future__ import annotations

from ddpdoctor.collectors.shell.reader import lines_of_shell, shell_error
from ddpdoctor.collectors.shell.text import Source

__all__ = ["Source", "lines_of_shell", "shell_error"]
