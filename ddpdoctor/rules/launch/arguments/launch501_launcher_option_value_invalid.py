"""LAUNCH501: values that the parser of the launcher refuses, whatever they mean."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.plan import Plan, PlanSetting
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.reading import ParseProblem, ParseProblemKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.typo import TypoKind
from ddpdoctor.facts.launch.words import SpanEdit, is_known
from ddpdoctor.facts.submission import Submission
from ddpdoctor.facts.torchrun_options import Option
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.arguments.launch002_009_to_012_052_option_errors import READERS, table
from ddpdoctor.rules.launch.arguments.launch020_021_042_043_047_option_values import bad, source
from ddpdoctor.rules.launch.pointing import after, agents, point, remove, replace_word, shown
from ddpdoctor.rules.launch.submitted import at_mark, launchers_of, mark_of

KINDS = {"int": "a whole number", "float": "a number", "flag": "1 or 0"}
TROUBLES = (
    ParseProblemKind.EXPECTED_VALUE,
    ParseProblemKind.IGNORED_VALUE,
    ParseProblemKind.INVALID_VALUE,
    ParseProblemKind.INVALID_CHOICE,
)
OTHER_CAUSES = ("nproc_per_node", "master_port")
"""Options whose wrong values have their own causes: LAUNCH020, ENV015."""
IN_ENVIRON = ("standalone", "master_port")
"""Variables whose wrong values have their own causes: ENV010, ENV015."""
AT_LEAST_ZERO = ("max_restarts", "shutdown_timeout")
NOT_REMOVED = ("node_rank", "machine_rank")
"""Without them the line means something else."""


@cause(
    "LAUNCH501",
    "launcher-option-value-invalid",
    Severity.ERROR,
    yields_to=("ENV015", "LAUNCH013", "LAUNCH020"),
    signatures=(
        r"(?:torchrun|accelerate|deepspeed|launch\.py)\b[^\n]{0,60}: error: argument --[\w/-]+: "
        r"(invalid (int|float) value|invalid choice|expected one argument)",
        r"\brun\.py: error: argument --(nproc|nnodes|node|rdzv|max|monitor|start|role|log|tee|master|local)[\w/-]*: "
        r"(invalid (int|float) value|invalid choice|expected one argument)",
        r"error: argument \S*--\w[\w/-]*: ignored explicit argument '",
        r"max_restarts must be >= 0",
    ),
)
def launcher_option_value_invalid(launch: Launch) -> Iterator[Finding]:
    """An option of the launcher has a value that its parser rejects, or no value.

    ## Why it matters
    The launcher prints twenty lines of usage and `error: argument --node-rank/--node_rank: invalid int value: 'one'`,
    `invalid choice: 'thread'`, `ignored explicit argument 'true'` or `expected one argument`. A PET_ variable with
    such a value stops even `torchrun --help`.

    ## Fix
    Use a value that the option accepts.

    A flag such as --standalone accepts none, and accelerate needs its subcommand first.

    ## Example
        error: argument --node-rank/--node_rank: invalid int value: 'one'

        # before
        torchrun --nnodes=2 --node-rank=one --master-addr=HOST0 train.py

        # after
        torchrun --nnodes=2 --node-rank=1 --master-addr=HOST0 train.py

    ## Source
    argparse: `ArgumentParser._get_values`; torch/distributed/argparse_util.py: `env`, `check_env`.
    """
    for line in launch.lines:
        for layer in line.layers:
            if layer.launcher in READERS and not layer.typos:
                yield from _in_words(launch, line, layer)
            for typo in layer.typos:
                if typo.kind is TypoKind.NO_COMMAND:
                    meant = " ".join(typo.meant)
                    text = f"{shown(typo.words[0])} without a subcommand"
                    edits = [after(typo.words[0], typo.meant[-1])]
                    yield point(launch, line, typo.words[0], text, meant, edits, label=f"use {meant}")
    for line, layer, plan in agents(launch):
        yield from _in_settings(launch, line, layer, plan)


def _in_words(launch: Launch, line: LaunchLine, layer: Layer) -> Iterator[Finding]:
    options = {flag: option for option in table(layer, launch.version) for flag in option.flags}
    for problem in layer.reading.problems:
        if problem.trouble not in TROUBLES or _is_of_pdsh(line, problem.value):
            continue
        option = options[problem.option.partition("/")[0]]
        is_torchs = layer.launcher in (LauncherKind.TORCHRUN, LauncherKind.LEGACY)
        if is_torchs and option.dest in OTHER_CAUSES and _has_a_cause(option, problem):
            continue
        expected, edits = _correction(line, option, problem)
        text = _message(problem)
        yield point(launch, line, problem.word, text, expected, edits, label=f"expected {expected}")


def _is_of_pdsh(line: LaunchLine, value: str) -> bool:
    """pdsh replaces %n by the number of the host, and %h by its name."""
    return re.search("%[nh]", value) is not None and any(each.name in ("pdsh", "clush") for each in line.layers)


def _has_a_cause(option: Option, problem: ParseProblem) -> bool:
    missing = problem.trouble is ParseProblemKind.EXPECTED_VALUE
    return missing if option.dest == "nproc_per_node" else not missing


def _message(problem: ParseProblem) -> str:
    if problem.trouble is ParseProblemKind.EXPECTED_VALUE:
        return f"{shown(problem.word)} has no value"
    if problem.trouble is ParseProblemKind.IGNORED_VALUE:
        return f"{shown(problem.word)}: this option has no value"
    return f"{problem.option} does not accept {problem.value!r:.30}"


def _correction(line: LaunchLine, option: Option, problem: ParseProblem) -> tuple[str, list[SpanEdit] | None]:
    """What was expected, and the edit if only one makes sense."""
    word = problem.word
    if problem.trouble is ParseProblemKind.IGNORED_VALUE:
        flag, sign, value = word.text.partition("=")
        is_off = sign and value.lower() in ("0", "false", "no", "off", "f", "n")
        return "no value", list(remove(line, word)) if is_off else [replace_word(word, flag)] if sign else None
    expected = " or ".join(option.choices) if option.choices else KINDS.get(option.kind, "a value")
    number = re.fullmatch(r".*?(?<!\d)(\d+)(\.0*)?", problem.value)
    if (
        problem.trouble is ParseProblemKind.INVALID_VALUE
        and option.kind == "int"
        and number
        and "=" not in problem.value
    ):
        prefix = word.text[: len(word.text) - len(problem.value)]
        return expected, [replace_word(word, prefix + number[1])]
    if problem.trouble is ParseProblemKind.INVALID_CHOICE and problem.value.lower() in option.choices:
        prefix = word.text[: len(word.text) - len(problem.value)]
        return expected, [replace_word(word, prefix + problem.value.lower())]
    if option.default is None or option.dest in NOT_REMOVED:
        return expected, None
    return expected, _given_default(line, option, problem)


def _given_default(line: LaunchLine, option: Option, problem: ParseProblem) -> list[SpanEdit]:
    """Write the default if the value is missing; remove the option if the value is wrong."""
    word = problem.word
    if problem.trouble is ParseProblemKind.EXPECTED_VALUE:
        return [replace_word(word, f"{word.text}={option.default}")]
    own = next((w for w in line.argv if w.end < word.start and w.text == problem.option), None)
    joined = word.text.startswith("-") and "=" in word.text
    return list(remove(line, *([] if joined or own is None else [own]), word))


def _in_settings(launch: Launch, line: LaunchLine, layer: Layer, plan: Plan) -> Iterator[Finding]:
    """Values of PET_ variables, and numbers below zero."""
    for option in table(layer, launch.version):
        setting = plan.settings.get(option.dest)
        if setting is None or setting.value is None or option.kind not in KINDS:
            continue
        if option.dest in AT_LEAST_ZERO and (_integer(setting.value) or 0) < 0:
            text = f"{source(setting, option.dest)} is {setting.value:.20}, below 0"
            yield bad(launch, line, layer, option.dest, setting, text, "0 or more", "0", "use 0 or more")
        elif setting.origin == "variable" and option.dest not in IN_ENVIRON and _is_refused(option, setting):
            expected = KINDS[option.kind]
            text = f"{source(setting, option.dest)}={setting.value:.20} is not {expected}"
            yield point(launch, line, layer.program, text, expected, label="reads this variable")


def _is_refused(option: Option, setting: PlanSetting) -> bool:
    value = setting.value or ""
    if option.kind == "float":
        return not re.fullmatch(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?\s*|\s*(inf|nan)\s*", value.lower())
    return _integer(value) is None


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


@launcher_option_value_invalid.look
def ranks_that_are_no_numbers(submission: Submission) -> Iterator[Finding]:
    """A pod makes its node rank of something that is not a number, such as the name of a Deployment's pod."""
    for task, layer in launchers_of(submission):
        given = layer.given("node_rank")
        value = None if given is None else given.value
        if given is not None and value and is_known(value) and re.fullmatch(r"(?=[\w.-]*[A-Za-z_])[\w.-]+", value):
            text = f"--node-rank={value:.20} on {task.host:.40} is not a number"
            mark = mark_of(task, given.value_word)
            yield at_mark(submission, mark, text, seen=value, expected="a number", label="not a number in this pod")
            return
