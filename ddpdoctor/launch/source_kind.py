"""What an unnamed text is, by its content: Python, a notebook, a manifest or a shell script."""

from __future__ import annotations

import ast
import json
import re
import warnings

from ddpdoctor.facts.torchrun_options import NEWEST
from ddpdoctor.launch.lookup import NO_FILES
from ddpdoctor.launch.shell.reader import lines_of_shell
from ddpdoctor.launch.shell.text import ShellSource

__all__ = ["suffix_of"]

LONGEST = 1 << 20
"""Job files are not read beyond this; a longer text is recognized by its first line or its keywords only."""
_FIRST = re.compile(r"#!.{0,200}?\b(python|bash|sh|dash|ksh|zsh)")
_MANIFEST = re.compile(r"^(?:apiVersion|kind):", re.MULTILINE)
_PYTHON = re.compile(r"^(?:import|from) +[\w.]+|^def +\w+\(|^class +\w+", re.MULTILINE)


def suffix_of(data: bytes) -> str:
    """The suffix of a file with this content; "" for other content."""
    if b"\0" in data:
        return ""
    text = data.decode("utf-8-sig", "replace")
    first = _FIRST.match(text)
    if first is not None:
        return ".py" if first[1] == "python" else ".sh"
    if text.lstrip()[:1] == "{":
        return _of_json(text)
    if re.search(r"^#SBATCH\b", text, re.MULTILINE):
        return ".sh"
    if _MANIFEST.search(text):
        return ".yaml"
    if _PYTHON.search(text):
        return ".py"
    if len(text) > LONGEST:
        return ""
    if lines_of_shell(ShellSource(text, STANDARD, {}, NEWEST, (), files=NO_FILES)):
        return ".sh"
    return ".py" if _runs_as_python(text) else ""


STANDARD = "-"


def _of_json(text: str) -> str:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return ".json"
    return ".ipynb" if isinstance(data, dict) and ("cells" in data or "worksheets" in data) else ".json"


def _runs_as_python(text: str) -> bool:
    """Python with a call or an assignment: a word alone is an expression, and prose with colons an annotation."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, (ast.Call, ast.Assign)) for node in ast.walk(tree))
