"""The completion scripts of bash, zsh and fish, and where they are installed.

A script runs the program itself: `ddpdoctor WORDS…` with _DDPDOCTOR_COMPLETE set prints one candidate per line.
If there is none, the shell completes file names, so that launch commands and paths are completed as usual.
"""

from __future__ import annotations

import os
from pathlib import Path

from ddpdoctor.app.request import UsageError

__all__ = ["SCRIPTS", "install", "script"]

SCRIPTS = {
    "bash": r"""_ddpdoctor() {
    local IFS=$'\n'
    COMPREPLY=($(_DDPDOCTOR_COMPLETE=1 ddpdoctor "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _ddpdoctor ddpdoctor""",
    "zsh": r"""#compdef ddpdoctor
_ddpdoctor() {
    local -a found
    found=(${(f)"$(_DDPDOCTOR_COMPLETE=1 ddpdoctor "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -- $found; else _files; fi
}
if [ "$funcstack[1]" = "_ddpdoctor" ]; then _ddpdoctor "$@"; else compdef _ddpdoctor ddpdoctor; fi""",
    "fish": r"""function __ddpdoctor
    set -lx _DDPDOCTOR_COMPLETE 1
    ddpdoctor (commandline -opc)[2..] (commandline -ct) 2>/dev/null
end
complete -c ddpdoctor -a '(__ddpdoctor)'""",
}
FOLDERS = {
    "bash": ".local/share/bash-completion/completions/ddpdoctor",
    "zsh": ".zfunc/_ddpdoctor",
    "fish": ".config/fish/completions/ddpdoctor.fish",
}
"""Where each script is installed below the home folder."""

LOADING = {
    "bash": (".bashrc", "source ~/.local/share/bash-completion/completions/ddpdoctor"),
    "zsh": (".zshrc", "fpath+=(~/.zfunc); autoload -Uz compinit; compinit"),
}
"""The line that a shell needs to find the script, and the file for it; fish needs none."""


def script(shell: str) -> str:
    """The completion script of a shell, by default that of $SHELL.

    Raises:
        UsageError: no such shell.
    """
    return SCRIPTS[_shell(shell)]


def install(shell: str) -> str:
    """Install the script where the shell finds it, and print the path.

    Raises:
        UsageError: no such shell, or a file that cannot be written.
    """
    name = _shell(shell)
    path = Path.home() / FOLDERS[name]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SCRIPTS[name] + "\n", "utf-8")
        if name in LOADING:
            file, line = LOADING[name]
            settings = Path.home() / file
            text = settings.read_text("utf-8", "surrogateescape") if settings.exists() else ""
            if line not in text.splitlines():
                with settings.open("a", encoding="utf-8") as opened:
                    opened.write(("" if not text or text.endswith("\n") else "\n") + line + "\n")
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None
    return f"completion for {name} written to {path}; open a new shell to use it"


def _shell(given: str) -> str:
    name = given or os.path.basename(os.environ.get("SHELL", ""))
    if name not in SCRIPTS:
        raise UsageError(f"{name!r:.40}: no completion for this shell; expected {', '.join(SCRIPTS)}")
    return name
