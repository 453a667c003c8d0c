"""LAUNCH502: a shell script with Windows line endings."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.launch.words import quote
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import base_name


@cause(
    "LAUNCH502",
    "carriage-returns-in-script",
    Severity.ERROR,
    signatures=(
        r"\$'\\r': command not found",
        r"/bin/(env |bash|sh)\S*\^M: bad interpreter",
        r"Batch script contains DOS line breaks",
        r"can't open file '[^']*\\r'",
    ),
)
def carriage_returns_in_script(launch: Launch) -> Iterator[Finding]:
    r"""A launch script has Windows line endings.

    ## Why it matters
    bash reads the carriage return as part of the last word (`can't open file '…/train.py\r'`, `$'\r': command not
    found`), and a `\` before it no longer continues the line. sbatch refuses the file (`Batch script contains DOS
    line breaks`), and running it by name fails with `/bin/bash^M: bad interpreter`.

    ## Fix
    Convert the line endings with dos2unix or sed.

    With git, `* text=auto` and `*.sh eol=lf` in .gitattributes prevent them.

    ## Example
        $'\r': command not found

        # before
        bash run.sh

        # after
        sed -i 's/\r$//' run.sh
        bash run.sh
    """
    done = set()
    for line in launch.lines:
        row = line.carriage_return
        if row is None or line.file is None or line.file in done:
            continue
        done.add(line.file)
        yield Finding(
            f"{base_name(line.file)} has Windows line endings (line {row})",
            (Evidence(f"launch.lines[{launch.lines.index(line)}].carriage_return", str(row), "no carriage return"),),
            fix_command=f"sed -i 's/\\r$//' {quote(line.file)}",
            where=Where(file=line.file, line=row, column=1),
            label="ends with a carriage return",
        )
