"""LAUNCH013 to LAUNCH019: typing errors in words of a launch line."""

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


def _typo_findings(launch: Launch, kind: TypoKind, message: str, label: str, expected: str) -> Iterator[Finding]:
    """The findings of one kind: `message` and `label` are templates with `word`, `characters` and `meant`."""
    for line in launch.lines:
        for layer in line.layers:
            for typo in layer.typos:
                if typo.kind is kind:
                    word = typo.words[0]
                    odd = [f"{c!a}" for c in sorted(set(word.text)) if not c.isascii()] if kind in _ODD else []
                    meant = " ".join(typo.meant)
                    values = {"word": _short(shown(word)), "characters": " ".join(odd), "meant": _short(meant)}
                    yield point(
                        launch,
                        line,
                        word,
                        message.format_map(values),
                        expected,
                        _edits(line, typo),
                        label=label.format_map(values) if len(meant.split()) < 5 else expected,
                    )


def _short(text: str) -> str:
    return text if len(text) <= 32 else text[:31] + "…"


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
        r"dzv_\w{1,40}(?:[^\w\s]\S{0,100})? does not match",
        r"ignored explicit argument 'aster_",
    ),
)
def launcher_option_single_dash(launch: Launch) -> Iterator[Finding]:
    """An option of the launcher has one dash instead of two.

    ## Why it matters
    The launcher fails with `unrecognized arguments: -nproc_per_node=2`. If the first letter is a short option, the
    message misleads: `-rdzv_backend=c10d` is read as `-r` (`dzv_backend=c10d does not match: <^[0123]$>`), and
    `-master_port` as `-m` (`ignored explicit argument 'aster_port=29555'`).

    ## Fix
    Write two dashes.

    ## Example
        error: unrecognized arguments: -nproc_per_node=2

        # before
        torchrun -nproc_per_node=2 train.py

        # after
        torchrun --nproc_per_node=2 train.py

    ## Source
    argparse: `ArgumentParser._get_option_tuples`.
    """
    yield from _typo_findings(launch, TypoKind.SINGLE_DASH, "{word} has only one dash", "use {meant}", "two dashes")


@cause(
    "LAUNCH014", "stray-word-before-script", Severity.ERROR, signatures=(r"can't open file '[^']*/\d+': \[Errno 2\]",)
)
def stray_word_before_script(launch: Launch) -> Iterator[Finding]:
    """A word before the script belongs to no option and is run as the script.

    ## Why it matters
    In `--nproc_per_node 4 8 train.py` the script is 8: every worker fails with `can't open file '…/8': [Errno 2] No
    such file or directory`. In `CUDA_VISIBLE_DEVICES=0, 1 torchrun …` the shell runs a program named 1: `1: command
    not found`.

    ## Fix
    Use one value per option, and no spaces in lists.

    ## Example
        can't open file '/home/me/8': [Errno 2] No such file or directory

        # before
        torchrun --nproc_per_node 4 8 train.py

        # after
        torchrun --nproc_per_node 4 train.py
    """
    message, label = "{word} would be run as the script", "one value per option"
    yield from _typo_findings(launch, TypoKind.STRAY, message, label, "no word here")
    message, label = "{word} ends at the space", "the shell runs the next word"
    yield from _typo_findings(launch, TypoKind.LIST, message, label, "no space in the list")


@cause(
    "LAUNCH015",
    "unicode-dash-in-option",
    Severity.ERROR,
    signatures=(r"can't open file '[^']*[–—][^']*'", r"unrecognized arguments:\s+[–—](?:[^l]|l[^o])"),
)
def unicode_dash_in_option(launch: Launch) -> Iterator[Finding]:
    """An option begins with a typographic dash.

    ## Why it matters
    Web pages and chat programs replace two hyphens by one long dash. The launcher runs the word as the script, and
    one worker fails with `can't open file '…/–nproc_per_node=2'`.

    ## Fix
    Type the two hyphens again.

    ## Example
        can't open file '/home/me/–nproc_per_node=2': [Errno 2] No such file or directory

        # before
        torchrun –nproc_per_node=2 train.py

        # after
        torchrun --nproc_per_node=2 train.py
    """
    message = "{word} begins with {characters}, not --"
    yield from _typo_findings(launch, TypoKind.UNICODE_DASH, message, "use {meant}", "ASCII hyphens")


@cause(
    "LAUNCH016",
    "smart-quote-in-option",
    Severity.ERROR,
    signatures=(r"rendezvous endpoint '[^']*[“”‘’][^']*'",),
)
def smart_quote_in_option(launch: Launch) -> Iterator[Finding]:
    """A word of the launch line has typographic quotes.

    ## Why it matters
    For the shell they are ordinary characters and stay in the value: `The hostname of the rendezvous endpoint
    '“127.0.0.1”:29555' must be a dot-separated list of labels, an IPv4 address, or an IPv6 address.`

    ## Fix
    Use ASCII quotes, or none.

    ## Example
        ValueError: The hostname of the rendezvous endpoint '“HOST0”:29400' must be a dot-separated list of labels, …

        # before
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=“HOST0”:29400 train.py

        # after
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
    """
    message = "{word} has typographic quotes"
    yield from _typo_findings(launch, TypoKind.SMART_QUOTE, message, "use {meant}", "ASCII quotes or none")


@cause("LAUNCH017", "no-break-space-in-command", Severity.ERROR)
def no_break_space_in_command(launch: Launch) -> Iterator[Finding]:
    """A space of the launch line is a no-break space or a similar character.

    ## Why it matters
    The shell does not split words there, so an option, its value and the script become one argument. torchrun then
    reports `the following arguments are required: training_script`, although the script is on the line.

    ## Fix
    Type the spaces again.

    ## Example
        error: the following arguments are required: training_script, training_script_args

        # before
        torchrun --nproc_per_node=2<NBSP>train.py

        # after
        torchrun --nproc_per_node=2 train.py
    """
    message = "{word} has {characters} instead of a space"
    yield from _typo_findings(launch, TypoKind.ODD_SPACE, message, "type the spaces again", "ASCII spaces")


@cause(
    "LAUNCH018",
    "arguments-quoted-together",
    Severity.ERROR,
    signatures=(r"unknown option --?[a-z]\S* \S+", r"can't open file '[^']*\.py --?\S[^']*'"),
)
def arguments_quoted_together(launch: Launch) -> Iterator[Finding]:
    """Quotes join several arguments into one.

    ## Why it matters
    The launcher runs an argument with a space as the script: `'--nproc_per_node 2'` gives `unknown option
    --nproc_per_node 2`, and `'train.py --lr 1'` gives `can't open file '…/train.py --lr 1'`. A whole command in a
    quoted variable, `"$CMD"`, is looked up as one program: `command not found`.

    ## Fix
    Remove the quotes.

    In a script, keep several options in a bash array.

    ## Example
        can't open file '/home/me/train.py --lr 1': [Errno 2] No such file or directory

        # before
        torchrun --nproc_per_node=2 'train.py --lr 1'

        # after
        torchrun --nproc_per_node=2 train.py --lr 1
    """
    message = "{word} is quoted as one argument"
    yield from _typo_findings(launch, TypoKind.JOINED, message, "use {meant}", "separate arguments")


@cause("LAUNCH019", "spaces-around-equals", Severity.ERROR, signatures=(r"Unsupported nproc_per_node value: =",))
def spaces_around_equals(launch: Launch) -> Iterator[Finding]:
    """An option has spaces around its =.

    ## Why it matters
    The value of the option is then the equals sign itself, `Unsupported nproc_per_node value: =`, and the launcher
    runs the next word as the script.

    ## Fix
    Write the option, the equals sign and the value without spaces.

    ## Example
        ValueError: Unsupported nproc_per_node value: =

        # before
        torchrun --nproc_per_node = 2 train.py

        # after
        torchrun --nproc_per_node=2 train.py
    """
    message = "{word} is separated from its value by spaces"
    yield from _typo_findings(launch, TypoKind.SPACED_EQUALS, message, "use {meant}", "no spaces")
