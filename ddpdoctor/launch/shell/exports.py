"""Variables that a script assigns but does not pass to another shell whose text it quotes."""

from __future__ import annotations

import re

from ddpdoctor.facts.launch.programs import REMOTE, LauncherKind
from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.launch.shell.state import ShellState
from ddpdoctor.launch.shell.words import inner_text

__all__ = ["unexported"]

_EVERYWHERE = re.compile(
    r"(SLURM|PMI|OMPI|PBS|LSB|CONDA)_\w+|PATH|HOME|USER|PWD|HOSTNAME|SHELL|TMPDIR|LD_LIBRARY_PATH|PYTHONPATH"
)
"""Variables that are set in every shell of a cluster."""


def unexported(line: LaunchLine, state: ShellState, text: str) -> tuple[str, ...]:
    """The variables that are empty in the shell text of a line: in single quotes, or after a backslash in double ones.

    Args:
        text: the whole script; variables that it exports anywhere are not listed.
    """
    layer = next((each for each in line.layers if each.is_shell_text), None)
    if layer is None or layer.name == "eval" or any(each.launcher is LauncherKind.CONTAINER for each in line.layers):
        return ()
    word = layer.own[-1]
    if word.context or not word.raw:
        return ()
    raw = re.sub(r"'[^']*'", "", inner_text(word).text)
    if re.search(r"(^|[\s;&|])(source|\.|eval|read)\s", raw):
        return ()
    is_remote = any(each.name in REMOTE for each in line.layers)
    named = dict.fromkeys(a or b for a, b in re.findall(r"(?<!\\)\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", raw))
    candidates = state.private | set(state.places) if is_remote else state.private
    set_by_line = {variable.name for each in line.layers for variable in each.variables}
    return tuple(
        name
        for name in named
        if name in candidates
        and name not in set_by_line
        and not _EVERYWHERE.fullmatch(name)
        and not re.search(rf"\b{name}=|\b(for|in) {name}\b|[(\s]{name}(\+\+|--)", raw)
        and (is_remote or not _may_be_exported(name, text))
    )


def _may_be_exported(name: str, text: str) -> bool:
    """It is exported somewhere, or its value uses itself, which only an exported variable would have."""
    own = rf"\b{name}=\S*\$\{{?{name}\b"
    return bool(
        re.search(rf"(?m)\b(export|declare -\w*x|typeset -\w*x|--export|-x|--env)\b.*\b{name}\b|set -a|{own}", text)
    )
