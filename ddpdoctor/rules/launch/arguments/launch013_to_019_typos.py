"""LAUNCH013 to LAUNCH019: typos, one decision over the same words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.typo import Typo, TypoKind
from ddpdoctor.facts.launch.words import UNKNOWN, SpanEdit, escape
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.launch.typos import DASHES
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import before, point, remove, replace_word, shown


def _found(launch: Launch, kind: TypoKind, says: str, expected: str) -> Iterator[Finding]:
    for line in launch.lines:
        for layer in line.layers:
            for typo in layer.typos:
                if typo.kind is kind:
                    word = typo.words[0]
                    seen = "".join(f" {c!a}" for c in sorted(set(word.text)) if not c.isascii()) if kind in _ODD else ""
                    message = says.format(word=shown(word), odd=seen.strip(), meant=" ".join(typo.meant))
                    yield point(launch, line, word, message, expected, _edits(line, typo))


_ODD = (TypoKind.ODD_SPACE, TypoKind.SMART_QUOTE, TypoKind.UNICODE_DASH)


def _edits(line: LaunchLine, typo: Typo) -> list[SpanEdit] | None:
    word = typo.words[0]
    if typo.kind is TypoKind.JOINED and typo.meant[0] == "-c":
        return [before(word, "-c")]
    if typo.kind is TypoKind.JOINED and re.fullmatch(r'"\$(\w+|\{\w+\})"', word.raw):
        return [SpanEdit(word.start, word.end, escape(word.raw[1:-1], word.context))]
    if any(UNKNOWN in w.text for w in typo.words):
        return _dashes(typo)
    if not typo.meant:
        return list(remove(line, *typo.words))
    return [replace_word(typo.words[0], *typo.meant), *remove(line, *typo.words[1:])]


def _dashes(typo: Typo) -> list[SpanEdit] | None:
    """Two hyphens before an option whose value only the shell knows."""
    word = typo.words[0]
    if typo.kind not in (TypoKind.SINGLE_DASH, TypoKind.UNICODE_DASH) or not word.is_literal:
        return None
    wrong = len(word.raw) - len(word.raw.lstrip(DASHES))
    return [SpanEdit(word.start, word.start + wrong, "--")] if wrong else None


@cause(
    "LAUNCH013",
    "launcher-option-single-dash",
    Severity.ERROR,
    signatures=(
        r"unrecognized arguments: -(nproc|nnodes|node)",
        r"dzv_\w+=?\S* does not match",
        r"ignored explicit argument 'aster_",
    ),
)
def launcher_option_single_dash(launch: Launch) -> Iterator[Finding]:
    """An option of the launcher has one dash instead of two.

    ## Why it matters
    `-nproc_per_node=2` ends in `unrecognized arguments: -nproc_per_node=2`. Where the first letter is a real short option the
    message misleads: `-rdzv_backend=c10d` is read as `-r dzv_backend=c10d` (`dzv_backend=c10d does not match: <^[0123]$>`), and
    `-master_port` as `-m` (`ignored explicit argument 'aster_port=29555'`).

    ## Fix
    Write two dashes.

    ## Source
    argparse: `ArgumentParser._get_option_tuples`.
    """
    yield from _found(launch, TypoKind.SINGLE_DASH, "{word} has one dash: expected {meant}", "two dashes")


@cause(
    "LAUNCH014", "stray-word-before-script", Severity.ERROR, signatures=(r"can't open file '[^']*/\d+': \[Errno 2\]",)
)
def stray_word_before_script(launch: Launch) -> Iterator[Finding]:
    """A word that belongs to no option stands before the script and is taken for the script.

    ## Why it matters
    An option takes one value: in `--nproc_per_node 4 8 train.py` the 8 becomes the script, every worker ends with `can't open
    file '…/8': [Errno 2] No such file or directory`, and train.py is only its argument. In `CUDA_VISIBLE_DEVICES=0, 1 torchrun …`
    the shell starts a program of the name 1: `1: command not found`.

    ## Fix
    Give one value per option and remove the other word; write lists without blanks.
    """
    yield from _found(
        launch, TypoKind.STRAY, "{word} is taken for the script: expected one value per option", "no word here"
    )
    says = "{word} ends at the blank, and the shell takes the next word for the program: expected {meant}"
    yield from _found(launch, TypoKind.LIST, says, "no blank in the list")


@cause(
    "LAUNCH015",
    "unicode-dash-in-option",
    Severity.ERROR,
    signatures=(r"can't open file '[^']*[–—][^']*'", r"unrecognized arguments:\s+[–—](?:[^l]|l[^o])"),
)
def unicode_dash_in_option(launch: Launch) -> Iterator[Finding]:
    """An option begins with a typographic dash.

    ## Why it matters
    Web pages and chat programs turn two hyphens into one long dash. The parser sees no option, so the word becomes the script:
    one worker starts and ends with `can't open file '…/–nproc_per_node=2'`.

    ## Fix
    Type the hyphens again.
    """
    yield from _found(launch, TypoKind.UNICODE_DASH, "{word} begins with {odd}: expected {meant}", "ASCII hyphens")


@cause(
    "LAUNCH016",
    "smart-quote-in-option",
    Severity.ERROR,
    signatures=(r"rendezvous endpoint '[^']*[“”‘’][^']*'",),
)
def smart_quote_in_option(launch: Launch) -> Iterator[Finding]:
    """A word of the launch line holds typographic quotes.

    ## Why it matters
    To the shell they are letters like any other and stay in the value: `The hostname of the rendezvous endpoint
    '“127.0.0.1”:29555' must be a dot-separated list of labels, an IPv4 address, or an IPv6 address.`

    ## Fix
    Use ASCII quotes, or none.
    """
    yield from _found(launch, TypoKind.SMART_QUOTE, "{word} holds {odd}: expected {meant}", "ASCII quotes or none")


@cause("LAUNCH017", "no-break-space-in-command", Severity.ERROR)
def no_break_space_in_command(launch: Launch) -> Iterator[Finding]:
    """A blank of the launch line is a no-break space or another character that looks like one.

    ## Why it matters
    The shell does not split words there, so that an option, its value and the script are one argument; torchrun then asks for
    `training_script`, which is plainly there.

    ## Fix
    Type the blanks again.
    """
    yield from _found(launch, TypoKind.ODD_SPACE, "{word} holds {odd}: expected blanks: {meant}", "ASCII blanks")


@cause(
    "LAUNCH018",
    "arguments-quoted-together",
    Severity.ERROR,
    signatures=(r"unknown option --?[a-z]\S* \S+", r"can't open file '[^']*\.py --?\S[^']*'"),
)
def arguments_quoted_together(launch: Launch) -> Iterator[Finding]:
    """Quotes make one argument of several.

    ## Why it matters
    argparse takes an argument with a blank in it for a positional: `'--nproc_per_node 2'` becomes the script (`unknown option
    --nproc_per_node 2`), `'train.py --lr 1'` a file that is not there (`can't open file '…/train.py --lr 1'`). A whole command in
    a quoted variable, `"$CMD"`, is the name of a program: `command not found`.

    ## Fix
    Remove the quotes; in a script keep several options in a bash array.
    """
    yield from _found(launch, TypoKind.JOINED, "{word} is one argument: expected {meant}", "separate arguments")


@cause("LAUNCH019", "spaces-around-equals", Severity.ERROR, signatures=(r"Unsupported nproc_per_node value: =",))
def spaces_around_equals(launch: Launch) -> Iterator[Finding]:
    """There are blanks around the = of an option.

    ## Why it matters
    The option's value is then the sign itself, `Unsupported nproc_per_node value: =`, and the value after it is taken for the
    script.

    ## Fix
    Write the option, the sign and the value without blanks.
    """
    yield from _found(launch, TypoKind.SPACED_EQUALS, "{word} is split from its value: expected {meant}", "no blanks")
