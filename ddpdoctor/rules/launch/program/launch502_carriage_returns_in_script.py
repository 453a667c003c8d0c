"""LAUNCH502: a shell script with the line ends of Windows."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.launch.words import quote
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause


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
    r"""Lines of a launch script end in carriage returns, as editors on Windows write them.

    ## Why it matters
    To bash the carriage return is a letter of the last word: `can't open file '…/train.py\r'`, `$'\r': command not found`, and
    behind a `\` it ends the line that should go on. sbatch refuses the file (`Batch script contains DOS line breaks`), and a
    script that is run by its name ends with `/bin/bash^M: bad interpreter`.

    ## Fix
    Take them away: dos2unix, or sed. With git, `* text=auto` and `*.sh eol=lf` in .gitattributes keep them away.
    """
    seen = set()
    for line in launch.lines:
        row = line.carriage_return
        if row is None or line.file is None or line.file in seen:
            continue
        seen.add(line.file)
        yield Finding(
            f"line {row} of {line.file} ends in a carriage return, which bash takes for a letter: expected a line feed alone",
            (Evidence(f"launch.lines[{launch.lines.index(line)}].carriage_return", str(row), "no carriage return"),),
            fix_command=f"sed -i 's/\\r$//' {quote(line.file)}",
            where=Where(file=line.file, line=row, column=1),
        )
