"""LAUNCH002, LAUNCH009 to LAUNCH012, LAUNCH052: names of options that the parser of a launcher refuses or misreads."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import ACCELERATE, DEEPSPEED, LauncherKind
from ddpdoctor.facts.launch.reading import Given, ParseProblem, ParseProblemKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, Word
from ddpdoctor.facts.torchrun_options import NEWEST, Option, Version, torchrun_options
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.arguments.intended_values import meant_by
from ddpdoctor.rules.launch.pointing import after, before, option_text, point, remove, replace_word, shown

__all__ = ["READERS", "table"]

DEFAULTS = {"nnodes": "1", "rdzv_backend": "c10d", "num_processes": "1", "num_gpus": "1", "num_machines": "1"}
"""Values for an option without one, on one node."""
READERS = (LauncherKind.TORCHRUN, LauncherKind.LEGACY, LauncherKind.ACCELERATE, LauncherKind.DEEPSPEED)


def _problems(launch: Launch, trouble: ParseProblemKind) -> Iterator[tuple[LaunchLine, Layer, ParseProblem]]:
    for line in launch.lines:
        for layer in line.layers:
            if layer.launcher in READERS:
                misspelled = {word.start for typo in layer.typos for word in typo.words}
                for problem in layer.reading.problems:
                    if problem.trouble is trouble and problem.word.start not in misspelled:
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
    """The launch line has no script.

    ## Why it matters
    torchrun prints twenty lines of usage and `error: the following arguments are required: training_script,
    training_script_args`.

    ## Fix
    Add the script, or `-m MODULE`, after the options of the launcher.

    ## Example
        error: the following arguments are required: training_script, training_script_args

        # before
        torchrun --nproc-per-node=2

        # after
        torchrun --nproc-per-node=2 train.py
    """
    for line, layer, _ in _problems(launch, ParseProblemKind.NO_SCRIPT):
        taken = _script_as_value(layer)
        if layer.typos or len(layer.reading.problems) > 1 or (taken is not None and taken.dest == "nproc_per_node"):
            continue
        if taken is not None:
            value = taken.value_word
            text = f"{shown(taken.word)} reads {shown(value)} as its value"
            edits = [after(taken.word, DEFAULTS[taken.dest])] if taken.dest in DEFAULTS else None
            label = f"add a value for {shown(taken.word)}"
            yield point(launch, line, value, text, "a value before the script", edits, label=label)
            continue
        word = layer.own[-1]
        text, label = f"{layer.name} without a script", "add the script, or -m MODULE"
        yield point(launch, line, word, text, "a script", [after(word, "train.py")], label=label)


def _script_as_value(layer: Layer) -> Given | None:
    """The last option, if its value can only be the script."""
    last = layer.reading.given[-1] if layer.reading.given else None
    return last if last is not None and (last.value or "").endswith(".py") and not last.is_joined else None


@cause(
    "LAUNCH009",
    "launcher-option-unknown",
    Severity.ERROR,
    yields_to=("LAUNCH013", "LAUNCH050", "LAUNCH052"),
    signatures=(r"(torchrun|launch\.py|run\.py|accelerate|deepspeed)[^\n]{0,200}: error: unrecognized arguments: --",),
)
def launcher_option_unknown(launch: Launch) -> Iterator[Finding]:
    """The launcher does not know an option.

    ## Why it matters
    The launcher prints its usage and `error: unrecognized arguments: --gpus`. torchrun, accelerate and deepspeed have
    different names for the same option, and older versions of torchrun have fewer options.

    ## Fix
    Use the launcher's own name of the option.

    ## Example
        error: unrecognized arguments: --num_processes=2

        # before
        torchrun --num_processes=2 train.py

        # after
        torchrun --nproc_per_node=2 train.py
    """
    findings = list(_unknown(launch))
    unread = dict.fromkeys(layer.launcher.value for line in launch.lines for layer in line.unread)
    if unread and not findings:
        not_here(f"{' and '.join(unread)}: options not judged")
    yield from findings


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
            expected, label = meant, f"use {meant}"
            edits = [replace_word(problem.word, f"{meant}{sign}{value}")]
            if layer.given(meant[2:].replace("-", "_")) is not None:
                edits = list(remove(line, problem.word, *_value(line, layer, problem.word)))
        else:
            expected = f"torch {newer[0]}.{newer[1]}" if newer else "one of its own options"
            label = f"needs {expected}" if newer else "not an option of this launcher"
            edits = list(remove(line, problem.word, *_value(line, layer, problem.word)))
        name = layer.launcher.value
        version = f" {launch.torch}" if layer.launcher in READERS[:2] else ""
        is_newer = launch.version > NEWEST and launch.torch_from != "source"
        is_newer = is_newer and layer.launcher in READERS[:2] and meant is None
        severity = Severity.WARNING if is_newer else None  # a torch newer than our table may know it
        message = f"{name}{version} does not know {shown(problem.word):.40}"
        yield point(launch, line, problem.word, message, expected, edits, label=label, severity=severity)


def _newer(flag: str, launcher: LauncherKind) -> Version | None:
    """The torch version that added an option."""
    if launcher not in READERS[:2]:
        return None
    return next((o.since for o in torchrun_options(NEWEST) if flag in o.flags), None)


def _value(line: LaunchLine, layer: Layer, word: Word) -> Iterator[Word]:
    """The word after an unknown option, if it can only be its value and not the script."""
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
    signatures=(r"ambiguous option: --?\w[^\n]{0,300} could match",),
)
def launcher_option_ambiguous(launch: Launch) -> Iterator[Finding]:
    """An abbreviated option matches several options of the launcher.

    ## Why it matters
    The launcher fails with `ambiguous option: --nproc=2 could match --nproc-per-node, --nproc_per_node`: two
    spellings of one option count as two. Before Python 3.12.8 and 3.13.1 argparse also checks the options of the
    script, so `torchrun train.py --log out` fails although --log is meant for train.py.

    ## Fix
    Write the option in full.

    If it is an option of the script, put `--` before the script.

    ## Example
        error: ambiguous option: --nproc=2 could match --nproc-per-node, --nproc_per_node

        # before
        torchrun --nproc=2 train.py

        # after
        torchrun --nproc-per-node=2 train.py

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
            text = f"{layer.name} rejects the script's {shown(problem.word):.20} as ambiguous"
            edits = [before(script, "--")]
            label = "add -- before the script"
            yield point(launch, line, problem.word, text, "-- before the script", edits, label=label)
            continue
        meant = _chosen(problem)
        corrected = None if meant is None else [_renamed(problem.word, meant)]
        text = f"{shown(problem.word):.30} is ambiguous"
        text = f"{text}: {flags}" if len(text) + len(flags) <= 60 else text
        label = f"use {meant}" if meant else "write the option in full"
        yield point(launch, line, problem.word, text, meant or "the option in full", corrected, label=label)


def _looks_at_all(python: str) -> bool:
    """Whether argparse of this Python fails for an ambiguous word after the script."""
    numbers = [int(n) for n in python.split(".")[:3] if n.isdigit()]
    if numbers[:2] in ([3, 12], [3, 13]) and len(numbers) < 3:
        return False
    return numbers < ([3, 12, 8] if numbers[:2] == [3, 12] else [3, 13, 1])


def _chosen(problem: ParseProblem) -> str | None:
    """The option that was meant, if all matches are one option, or the value decides."""
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
    It works because only one option of this torch begins with these letters. The next release may add another one, as
    --node-rank and --numa-binding did for --n.

    ## Fix
    Write the option in full.

    ## Example
        warning[LAUNCH011]: --standal works only as an abbreviation of --standalone

        # before
        torchrun --standal train.py

        # after
        torchrun --standalone train.py
    """
    for line, given in _abbreviated(launch):
        if given.dest != "local_ranks_filter":
            message = f"{given.written} works only as an abbreviation of {given.flag}"
            edits = [
                _renamed(other.word, other.flag)
                for its_line, other in _abbreviated(launch)
                if its_line is line and other.dest != "local_ranks_filter"
            ]
            yield point(launch, line, given.word, message, given.flag, edits, label=f"use {given.flag}")


def _abbreviated(launch: Launch) -> Iterator[tuple[LaunchLine, Given]]:
    for line in launch.lines:
        for layer in line.layers:
            if layer.launcher in READERS:
                for given in layer.reading.given:
                    if given.is_abbreviated and given.word.raw.startswith(given.written):
                        yield line, given


@cause("LAUNCH012", "local-rank-given-to-launcher", Severity.WARNING)
def local_rank_given_to_launcher(launch: Launch) -> Iterator[Finding]:
    """--local_rank is given to torchrun, which hides the output of all other local ranks.

    ## Why it matters
    torchrun reads `--local_rank=0` as an abbreviation of --local_ranks_filter. No process gets a local rank from it,
    and the output of all other ranks, with their errors, is not shown.

    ## Fix
    Remove it; the script reads LOCAL_RANK from the environment.

    ## Example
        warning[LAUNCH012]: --local_rank=0 hides the output of all other local ranks

        # before
        torchrun --nproc_per_node=2 --local_rank=0 train.py

        # after
        torchrun --nproc_per_node=2 train.py
    """
    for line, given in _abbreviated(launch):
        if given.dest == "local_ranks_filter":
            text = f"{option_text(given):.24} hides the output of all other local ranks"
            own = () if given.is_joined else (given.value_word,)
            edits = remove(line, given.word, *own)
            yield point(launch, line, given.word, text, "no such option", edits, label=f"read as {given.flag}")


@cause(
    "LAUNCH052",
    "use-env-given-to-torchrun",
    Severity.ERROR,
    signatures=(r"unrecognized arguments:[^\n]{0,1000}--use[-_]env",),
)
def use_env_given_to_torchrun(launch: Launch) -> Iterator[Finding]:
    """--use_env is given to torchrun, which has no such option.

    ## Why it matters
    torchrun fails with `unrecognized arguments: --use_env`: it is an option of torch.distributed.launch. torchrun
    always sets LOCAL_RANK and never adds --local-rank to the arguments of the script.

    ## Fix
    Remove it from the line.

    ## Example
        error: unrecognized arguments: --use_env

        # before
        torchrun --use_env --nproc_per_node=2 train.py

        # after
        torchrun --nproc_per_node=2 train.py
    """
    for line, layer, problem in _problems(launch, ParseProblemKind.UNRECOGNIZED):
        if (
            problem.word.text.partition("=")[0] in ("--use-env", "--use_env")
            and layer.launcher is LauncherKind.TORCHRUN
        ):
            text = f"torchrun does not know {shown(problem.word)}"
            edits = remove(line, problem.word)
            label = "torchrun always sets LOCAL_RANK"
            yield point(launch, line, problem.word, text, "no such option", edits, label=label)
