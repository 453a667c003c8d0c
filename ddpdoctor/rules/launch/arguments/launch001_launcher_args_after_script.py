"""LAUNCH001: options of the launcher after the script."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch.layer import Layer, starts_ranks
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.reading import ParseProblemKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, Word
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import point, remove
from ddpdoctor.rules.launch.submitted import at_mark

_TORCHRUN = ("nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port", "standalone", "max_restarts")
_RDZV = ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf")
UNMISTAKABLE = {
    LauncherKind.TORCHRUN: (*_TORCHRUN, *_RDZV),
    LauncherKind.LEGACY: (*_TORCHRUN, *_RDZV),
    LauncherKind.ACCELERATE: (
        "num_processes",
        "num_machines",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "multi_gpu",
    ),
    LauncherKind.DEEPSPEED: ("num_gpus", "num_nodes", "hostfile", "master_addr", "master_port", "include", "exclude"),
}
"""Options that by their names can only be meant for the launcher."""
FLAGS = ("standalone", "multi_gpu")


@cause(
    "LAUNCH001",
    "launcher-args-after-script",
    Severity.ERROR,
    explains=("LAUNCH034", "LAUNCH035", "LAUNCH036", "LAUNCH039", "ENV019", "ENV020"),
    yields_to=("LAUNCH009", "LAUNCH050", "LAUNCH052"),
    signatures=(
        r"unrecognized arguments:[^\n]{0,900}--(nproc[-_]per[-_]node|nnodes|node[-_]rank|master[-_]addr|master[-_]port|rdzv[-_])",
    ),
)
def launcher_args_after_script(launch: Launch) -> Iterator[Finding]:
    """Options of the launcher are written after the script and passed to the script.

    ## Why it matters
    Everything after the script name is passed to the script: `torchrun train.py --nproc-per-node=2` starts one
    process and exits with 0. A script with a strict parser fails with `unrecognized arguments: --nproc-per-node=2`,
    others ignore the option.

    ## Fix
    Put all options of the launcher before the script.

    ## Example
        error[LAUNCH001]: --nproc-per-node=2 after train.py is passed to the script

        # before
        torchrun train.py --nproc-per-node=2

        # after
        torchrun --nproc-per-node=2 train.py

    ## Source
    torch/distributed/run.py: `get_args_parser`, training_script_args is argparse.REMAINDER.
    """
    for line in launch.lines:
        layer = line.starter
        if layer is None or layer.reading.script is None or layer.typos or _inner(line, layer) or _is_lost(layer):
            continue
        options = list(_misplaced(line, layer))
        if options:
            words = [word for option in options for word in option]
            text = " ".join(w.raw or w.text for w in options[0])
            more = ", …" if len(options) > 1 else ""
            verb = "are" if more else "is"
            script = layer.reading.script
            yield point(
                launch,
                line,
                words[0],
                f"{text}{more} after {_short(script)} {verb} passed to the script",
                "before the script",
                _moved(line, script, words),
                label="move before the script",
            )


@launcher_args_after_script.look
def options_in_cmd(submission: Submission) -> Iterator[Finding]:
    """A Dockerfile whose ENTRYPOINT ends with the script: what CMD adds is passed to the script."""
    lists = {each.instruction: each for each in submission.word_lists}
    entry, added = lists.get("ENTRYPOINT"), lists.get("CMD")
    if entry is None or added is None:
        return
    launcher = next((kind for name, kind in _NAMES.items() if name in " ".join(entry.words[:4])), None)
    script = next((at for at, word in enumerate(entry.words) if word.endswith(".py")), None)
    if launcher is None or script is None or not script:
        return
    given = {_dest(word) for word in entry.words[:script]}
    names = [word for word in added.words if _dest(word) in UNMISTAKABLE[launcher] and _dest(word) not in given]
    if names:
        more = ", …" if len(names) > 1 else ""
        name, verb = entry.words[script].rpartition("/")[2], "are" if more else "is"
        text = f"{names[0]:.40}{more} after {name:.20} {verb} passed to the script"
        expected, label = "before the script in ENTRYPOINT", "move before the script"
        yield at_mark(submission, added.at, text, seen=names[0], expected=expected, label=label)


_NAMES = {
    "torchrun": LauncherKind.TORCHRUN,
    "torch.distributed.run": LauncherKind.TORCHRUN,
    "torch.distributed.launch": LauncherKind.LEGACY,
    "accelerate": LauncherKind.ACCELERATE,
    "deepspeed": LauncherKind.DEEPSPEED,
}


def _dest(word: str) -> str:
    """The option that a word names: `--nnodes=2` is nnodes; "" for another word."""
    return word.partition("=")[0][2:].replace("-", "_") if word.startswith("--") else ""


def _short(script: Word) -> str:
    """The script as written, or its file name if the path is long."""
    text = script.raw or script.text
    return text if len(text) <= 20 else text.rpartition("/")[2]


def _is_lost(layer: Layer) -> bool:
    """The launcher does not know an option and reads its value as the script."""
    script = layer.reading.script
    unknown = any(p.trouble is ParseProblemKind.UNRECOGNIZED and not p.after_script for p in layer.reading.problems)
    return unknown and script is not None and not script.text.endswith((".py", ".sh"))


def _inner(line: LaunchLine, layer: Layer) -> bool:
    """The words after it belong to another program: a launcher starts a launcher."""
    return line.program is not layer


def _misplaced(line: LaunchLine, layer: Layer) -> Iterator[tuple[Word, ...]]:
    names = UNMISTAKABLE.get(layer.launcher, ())
    declared = line.script.declares if line.script is not None else ()
    words = layer.reading.arguments
    if not starts_ranks(layer.launcher):
        return
    for i, word in enumerate(words):
        flag, sign, _ = word.text.partition("=")
        dest = flag[2:].replace("-", "_") if flag.startswith("--") else ""
        if dest not in names or layer.given(dest) is not None or _declared(flag, declared):
            continue
        if sign or dest in FLAGS or i + 1 == len(words) or words[i + 1].text.startswith("--"):
            yield (word,)
        else:
            yield (word, words[i + 1])


def _declared(flag: str, declared: tuple[str, ...]) -> bool:
    return flag in declared or flag.replace("-", "_") in {option.replace("-", "_") for option in declared}


def _moved(line: LaunchLine, script: Word, words: list[Word]) -> list[SpanEdit] | None:
    if not all(w.is_literal for w in words):
        return None
    anchor = script
    if script.start > 0 and line.source[: script.start].rstrip().endswith((" -m", " --module")):
        at = line.source[: script.start].rstrip().rfind(" -")
        anchor = Word("", "", at + 1, at + 1, script.context)
    text = " ".join(line.source[w.start : w.end] for w in words)
    return [SpanEdit(anchor.start, anchor.start, text + " "), *remove(line, *words)]
