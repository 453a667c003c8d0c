"""Lists every `WARN` of NCCL's public source as rows of tests/nccl/warnings.tsv: file, function, releases, format.

    git clone https://github.com/NVIDIA/nccl && python tests/nccl/extract_warnings.py nccl > tests/nccl/warnings.tsv

The source itself is not committed. Formats are the string literals of the call; `PRIu64` and its relatives read as `llu`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

MINORS = {18: 6, 19: 4, 20: 5, 21: 5, 22: 3, 23: 4, 24: 3, 25: 1, 26: 6, 27: 7, 28: 9, 29: 7, 30: 7}
RELEASES = tuple(f"2.{minor}.{patch}" for minor, patch in MINORS.items())
"""The last public tag of each minor version from 2.18 on."""

_CALL = re.compile(r"\bWARN\s*\(")
_TOKEN = re.compile(
    r'"((?:[^"\\\n]|\\.)*)"|\b(PRI[a-zA-Z0-9]+)\b|([(),])|//[^\n]*|/\*.*?\*/|\\\n|[^"(),/\\]+|.', re.DOTALL
)
_NAME = re.compile(r"\s*#?\s*[a-z]\w*\s*(?:\\\n\s*)?")
_FUNCTION = re.compile(
    r"^(?!#|\s|//|typedef|struct|NCCL_PARAM|DEFINE_|template)[^\n;={}]*?\b(~?\w+)\([^\n;]*(?:\{|,|\)|\()\s*$",
    re.MULTILINE,
)
_MACRO = re.compile(r"^#define\s+(\w+)\(", re.MULTILINE)
_ESCAPES = {r"\"": '"', r"\n": " ", r"\t": " ", r"\\": "\\"}


def main(repository: Path) -> None:
    """Print one row per format, sorted by file and text."""
    rows: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
    for release in RELEASES:
        for file, text in _sources(repository, f"v{release}-1"):
            for function, wording in _warnings(text):
                rows[(file, function, wording)].add(release)
    print("file\tfunction\tfirst\tlast\tformat")
    for (file, function, wording), releases in sorted(rows.items()):
        ordered = [release for release in RELEASES if release in releases]
        print(file, function, ordered[0], ordered[-1], wording, sep="\t")


def _sources(repository: Path, tag: str) -> Iterator[tuple[str, str]]:
    listed = _git(repository, "ls-tree", "-r", "--name-only", tag, "src").splitlines()
    for path in listed:
        if path.endswith((".cc", ".h", ".cu", ".cuh", ".hpp", ".cpp")) and "windows" not in path:
            yield path.removeprefix("src/"), _git(repository, "show", f"{tag}:{path}")


def _git(repository: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *words], capture_output=True, check=True)
    return done.stdout.decode("utf-8", "replace")


def _warnings(text: str) -> Iterator[tuple[str, str]]:
    starts = sorted((m.start(), m[1]) for known in (_FUNCTION, _MACRO) for m in known.finditer(text))
    for call in _CALL.finditer(text):
        line = text[text.rfind("\n", 0, call.start()) + 1 : call.start()]
        if "//" in line or "#define WARN" in line or "#define VWARN" in line:
            continue
        wording = _format(text[call.end() : call.end() + 2000])
        if wording:
            yield next((name for at, name in reversed(starts) if at < call.start()), ""), wording


def _format(text: str) -> str:
    """The adjacent string literals of the first argument; "" if it is no literal."""
    parts, depth = [], 0
    for token in _TOKEN.finditer(text):
        literal, inttypes, mark = token[1], token[2], token[3]
        if literal is not None:
            parts.append(literal)
        elif inttypes:
            parts.append("ll" + inttypes[3].lower())
        elif _NAME.fullmatch(token[0]) and not depth:
            parts.append("%s")  # a parameter of the macro that the call stands in
        elif mark == "(":
            depth += 1
        elif mark == ")" and depth:
            depth -= 1
        elif mark and not depth:
            break
    joined = re.sub(r'\\["nt\\]', lambda m: _ESCAPES[m[0]], "".join(parts))
    return re.sub(r"\s+", " ", joined).strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
