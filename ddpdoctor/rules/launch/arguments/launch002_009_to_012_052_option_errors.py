"""LAUNCH002, LAUNCH009 to LAUNCH012, LAUNCH052: what a launcher's parser makes of the names of options."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import ACCELERATE, DEEPSPEED, LauncherKind
from ddpdoctor.facts.launch.reading import Given, ParseProblem, ParseProblemKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, Word, plain
from ddpdoctor.facts.torchrun_options import NEWEST, Option, Version, torchrun_options
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.arguments.intended_values import meant_by
from ddpdoctor.rules.launch.pointing import after, before, point, remove, replace_word, shown

__all__ = ["READERS", "table"]

DEFAULTS = {"nnodes": "1", "rdzv_backend": "c10d", "num_processes": "1", "num_gpus": "1", "num_machines": "1"}
"""What an option without a value can be given on one node."""
READERS = (LauncherKind.TORCHRUN, LauncherKind.LEGACY, LauncherKind.ACCELERATE, LauncherKind.DEEPSPEED)


def _problems(launch: Launch, trouble: ParseProblemKind) -> Iterator[tuple[LaunchLine, Layer, ParseProblem]]:
    for line in launch.lines:
        for layer in line.layers:
            if layer.launcher in READERS:
                slipped = {word.start for typo in layer.typos for word in typo.words}
                for problem in layer.reading.problems:
                    if problem.trouble is trouble and problem.word.start not in slipped:
                        yield line, layer, problem


def table(layer: Layer, version: Version) -> tuple[Option, ...]:
    """The options that the launcher of this layer knows."""
    if layer.launcher is LauncherKind.ACCELERATE:
        return ACCELERATE
    if layer.launcher is LauncherKind.DEEPSPEED:
        return DEEPSPEED
    return torchrun_options(version, legacy=layer.launcher is LauncherKind.LEGACY)


@cause(
    "LAUNCH002",
    "script-missing",
    Severity.ERROR,
    signatures=(r"the following arguments are required: training_script",),
)
def script_missing(launch: Launch) -> Iterator[Finding]:
    """The launch line names no script.

    ## Why it matters
    `error: the following arguments are required: training_script, training_script_args` after twenty lines of usage.

    ## Fix
    Name the script, or -m and a module, behind the launcher's options.
    """
    for line, layer, _ in _problems(launch, ParseProblemKind.NO_SCRIPT):
        taken = _script_as_value(layer)
        if layer.typos or len(layer.reading.problems) > 1 or (taken is not None and taken.dest == "nproc_per_node"):
            continue
        if taken is not None:
            value = taken.value_word
            text = (
                f"{shown(taken.word)} takes {shown(value)} as its value and no script is left: expected a value first"
            )
            edits = [after(taken.word, DEFAULTS[taken.dest])] if taken.dest in DEFAULTS else None
            yield point(launch, line, value, text, "a value before the script", edits)
            continue
        word = layer.own[-1]
        edit = after(word, "train.py")
        yield point(
            launch, line, word, f"no script after {shown(word)}: expected a script or -m module", "a script", [edit]
        )


def _script_as_value(layer: Layer) -> Given | None:
    """The last option, when what it takes for its value is plainly the script."""
    last = layer.reading.given[-1] if layer.reading.given else None
    return last if last is not None and (last.value or "").endswith(".py") and not last.is_joined else None


@cause(
    "LAUNCH009",
    "launcher-option-unknown",
    Severity.ERROR,
    yields_to=("LAUNCH013", "LAUNCH050", "LAUNCH052"),
    signatures=(r"(torchrun|launch\.py|run\.py|accelerate|deepspeed)[^\n]*: error: unrecognized arguments: --",),
)
def launcher_option_unknown(launch: Launch) -> Iterator[Finding]:
    """The launcher does not know an option.

    ## Why it matters
    `error: unrecognized arguments: --gpus` after a long usage text, and the option's value has become the script. torchrun,
    accelerate and deepspeed have different names for the same thing, and older torchrun knows fewer of them.

    ## Fix
    Use the launcher's own name for it.
    """
    found = list(_unknown(launch))
    unread = dict.fromkeys(each.launcher.value for line in launch.lines for each in line.unread)
    if unread and not found:
        not_here(f"{' and '.join(unread)}: options not judged")
    yield from found


def _unknown(launch: Launch) -> Iterator[Finding]:
    for line, layer, problem in _problems(launch, ParseProblemKind.UNRECOGNIZED):
        flag, sign, value = problem.word.text.replace(":", "=", ":" in problem.word.text.partition("=")[0]).partition(
            "="
        )
        if flag in ("--use-env", "--use_env") and layer.launcher is LauncherKind.TORCHRUN:
            continue
        meant = meant_by(flag, layer.launcher, table(layer, launch.version))
        newer = _newer(flag, layer.launcher)
        if meant is not None:
            text = f"expected {meant}"
            edits = [replace_word(problem.word, f"{meant}{sign}{value}")]
            if layer.given(meant[2:].replace("-", "_")) is not None:
                edits = list(remove(line, problem.word, *_value(line, layer, problem.word)))
        else:
            text = f"it came with torch {newer[0]}.{newer[1]}" if newer else "expected one of its own options"
            edits = list(remove(line, problem.word, *_value(line, layer, problem.word)))
        name = layer.launcher.value
        of = f" {launch.torch}" if layer.launcher in READERS[:2] else ""
        is_newer = launch.version > NEWEST and launch.torch_from != "source"
        is_newer = is_newer and layer.launcher in READERS[:2] and meant is None
        severity = Severity.WARNING if is_newer else None  # a torch newer than our table may know it
        message = f"{name}{of} does not know {shown(problem.word)}: {text}"
        yield point(launch, line, problem.word, message, text.removeprefix("expected "), edits, severity=severity)


def _newer(flag: str, launcher: LauncherKind) -> Version | None:
    """The torch version that brought an option."""
    if launcher not in READERS[:2]:
        return None
    return next((o.since for o in torchrun_options(NEWEST) if flag in o.flags), None)


def _value(line: LaunchLine, layer: Layer, word: Word) -> Iterator[Word]:
    """The word behind an unknown option, where it is plainly its value and not the script."""
    script = layer.reading.script
    if "=" in word.text or script is None or layer.reading.arguments == ():
        return
    follows = line.source[word.end : script.start].strip(" \t\\\n") == ""
    if (
        follows
        and not script.text.endswith((".py", ".sh"))
        and layer.reading.arguments[0].text.endswith((".py", ".sh"))
    ):
        yield script


@cause(
    "LAUNCH010",
    "launcher-option-ambiguous",
    Severity.ERROR,
    signatures=(r"ambiguous option: --?\w[^\n]* could match",),
)
def launcher_option_ambiguous(launch: Launch) -> Iterator[Finding]:
    """An abbreviated option matches several options of the launcher.

    ## Why it matters
    `ambiguous option: --nproc=2 could match --nproc-per-node, --nproc_per_node`: the two spellings of one option count as two.
    Before Python 3.12.8 and 3.13.1 argparse looks at the script's own options as well: `torchrun train.py --log out` stops
    although --log is meant for train.py.

    ## Fix
    Write the option in full. For an option of the script put `--` before the script.

    ## Source
    argparse: `ArgumentParser._parse_optional`.
    """
    for line, layer, problem in _problems(launch, ParseProblemKind.AMBIGUOUS):
        flags = ", ".join(problem.matches)
        if problem.after_script:
            if not _looks_at_all(launch.python):
                continue
            script = layer.reading.script
            assert script is not None
            text = (
                f"{shown(problem.word)} is the script's, but {layer.name} stops: could match {flags}; expected -- first"
            )
            yield point(launch, line, problem.word, text, "-- before the script", [before(script, "--")])
            continue
        meant = _chosen(problem)
        edits = None if meant is None else [_renamed(problem.word, meant)]
        text = f"{shown(problem.word)} could match {flags}: expected the option in full"
        yield point(launch, line, problem.word, text, meant or "the option in full", edits)


def _looks_at_all(python: str) -> bool:
    """Whether argparse of this Python certainly stops at an ambiguous word behind the script."""
    numbers = [int(n) for n in python.split(".")[:3] if n.isdigit()]
    if numbers[:2] in ([3, 12], [3, 13]) and len(numbers) < 3:
        return False
    return numbers < ([3, 12, 8] if numbers[:2] == [3, 12] else [3, 13, 1])


def _chosen(problem: ParseProblem) -> str | None:
    """The option that was meant, when all matches are one option, or the value tells."""
    dests = {m.lstrip("-").replace("-", "_") for m in problem.matches}
    if dests == {"master_addr", "master_port"} and problem.value:
        dests = {"master_port" if problem.value.isdigit() else "master_addr"}
    if len(dests) != 1:
        return None
    dest = dests.pop()
    under = "_" in problem.option[2:]
    return next((m for m in problem.matches if m == ("--" + dest if under else "--" + dest.replace("_", "-"))), None)


def _renamed(word: Word, flag: str) -> SpanEdit:
    """Another name for the option, its value as the user wrote it."""
    name = word.text.partition("=")[0]
    if word.raw.startswith(name):
        return SpanEdit(word.start, word.start + len(name), flag)
    return replace_word(word, flag + word.text[len(name) :])


@cause("LAUNCH011", "launcher-option-abbreviated", Severity.WARNING)
def launcher_option_abbreviated(launch: Launch) -> Iterator[Finding]:
    """An option of the launcher is abbreviated.

    ## Why it matters
    It works because exactly one option of today's torch begins so; the next release may add another one, as --node-rank and
    --numa-binding did for --n.

    ## Fix
    Write the option in full.
    """
    for line, given in _abbreviated(launch):
        if given.dest != "local_ranks_filter":
            message = f"{given.written} is accepted as an abbreviation of {given.flag}: expected the option in full"
            edits = [
                _renamed(g.word, g.flag)
                for x, g in _abbreviated(launch)
                if x is line and g.dest != "local_ranks_filter"
            ]
            yield point(launch, line, given.word, message, given.flag, edits)


def _abbreviated(launch: Launch) -> Iterator[tuple[LaunchLine, Given]]:
    for line in launch.lines:
        for layer in line.layers:
            if layer.launcher in READERS:
                for given in layer.reading.given:
                    if given.is_abbreviated and given.word.raw.startswith(given.written):
                        yield line, given


@cause("LAUNCH012", "local-rank-given-to-launcher", Severity.WARNING)
def local_rank_given_to_launcher(launch: Launch) -> Iterator[Finding]:
    """--local_rank is given to torchrun, which shows the output of those local ranks only.

    ## Why it matters
    torchrun takes `--local_rank=0` for an abbreviation of --local_ranks_filter: nobody gets a local rank from it, and the
    output of all other ranks, with their errors, is not shown.

    ## Fix
    Remove it. The script reads LOCAL_RANK from the environment.
    """
    for line, given in _abbreviated(launch):
        if given.dest == "local_ranks_filter":
            text = (
                f"{shown(given.word)} is read as {given.flag}, so only the output of local rank "
                f"{plain(given.value or '')} is shown: expected no such option"
            )
            own = () if given.is_joined else (given.value_word,)
            yield point(launch, line, given.word, text, "no such option", remove(line, given.word, *own))


@cause(
    "LAUNCH052",
    "use-env-given-to-torchrun",
    Severity.ERROR,
    signatures=(r"unrecognized arguments:[^\n]*--use[-_]env",),
)
def use_env_given_to_torchrun(launch: Launch) -> Iterator[Finding]:
    """--use_env is given to torchrun, which has no such option.

    ## Why it matters
    `unrecognized arguments: --use_env`: it belongs to torch.distributed.launch. torchrun always sets LOCAL_RANK and never adds
    --local-rank to the script's arguments.

    ## Fix
    Remove it from the line.
    """
    for line, layer, problem in _problems(launch, ParseProblemKind.UNRECOGNIZED):
        if (
            problem.word.text.partition("=")[0] in ("--use-env", "--use_env")
            and layer.launcher is LauncherKind.TORCHRUN
        ):
            text = f"torchrun does not know {shown(problem.word)}: expected no such option, it always sets LOCAL_RANK"
            yield point(launch, line, problem.word, text, "no such option", remove(line, problem.word))
