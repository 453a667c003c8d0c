"""LAUNCH532, LAUNCH533: settings that the program that gets them ignores or refuses."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, Word, is_known
from ddpdoctor.facts.torchrun_options import torchrun_options
from ddpdoctor.facts.visibility import listed
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import option_text, point

CVD = "CUDA_VISIBLE_DEVICES"
_OF_TORCH = (
    *("nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port", "max_restarts", "standalone"),
    *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf"),
)
"""Options that no scheduler has."""


@cause("LAUNCH532", "deepspeed-visible-devices-ignored", Severity.ERROR)
def deepspeed_visible_devices_ignored(launch: Launch) -> Iterator[Finding]:
    """deepspeed ignores CUDA_VISIBLE_DEVICES because of --num_gpus, and uses the first GPUs.

    ## Why it matters
    With `--num_gpus`, `--num_nodes`, `--include` or `--exclude` deepspeed removes CUDA_VISIBLE_DEVICES and uses the
    GPUs from 0 up: two jobs that were meant for different GPUs share the same ones, and run out of memory.

    ## Fix
    Select the GPUs with `--include=localhost:2,3`.

    Or remove `--num_gpus`.

    ## Example
        Detected VISIBLE_DEVICES=2,3 but ignoring it because one or several of --include/--exclude/--num_gpus/…

        # before
        CUDA_VISIBLE_DEVICES=2,3 deepspeed --num_gpus=2 train.py

        # after
        deepspeed --include=localhost:2,3 train.py

    ## Source
    deepspeed/launcher/runner.py, `main`.
    """
    for line in launch.lines:
        layer = line.layer(LauncherKind.DEEPSPEED)
        value = line.environ.variables.get(CVD) or ""
        if layer is None or layer.is_garbled or layer.given("hostfile") is not None or not is_known(value):
            continue
        given = layer.given("num_gpus") or layer.given("num_accelerators")
        if given is None or not (given.value or "").isdigit() or layer.given("include") is not None:
            continue
        numbers = value.split(",")
        if not all(number.isdigit() for number in numbers) or listed(value) is None:
            continue
        count = int(given.value or "0")
        if [int(number) for number in numbers[:count]] == list(range(count)):
            continue  # the same GPUs
        text = f"{option_text(given)} makes deepspeed ignore {CVD}={value:.20}"
        end = given.word.end if given.is_joined else given.value_word.end
        edits = [SpanEdit(given.word.start, end, f"--include=localhost:{','.join(numbers[:count])}")]
        yield point(launch, line, given.word, text, "--include", edits, label="use --include")


@cause("LAUNCH533", "torch-option-given-to-scheduler", Severity.ERROR, explains=("LAUNCH024", "LAUNCH025", "LAUNCH510"))
def torch_option_given_to_scheduler(launch: Launch) -> Iterator[Finding]:
    """An option of torchrun is written before torchrun, so srun or mpirun gets it.

    ## Why it matters
    The scheduler's launcher rejects the option and starts nothing: `srun: unrecognized option '--nproc_per_node=8'`.

    ## Fix
    Move the option after `torchrun`.

    ## Example
        srun: unrecognized option '--nproc_per_node=8'

        # before
        srun --nodes=2 --nproc_per_node=8 torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py

        # after
        srun --nodes=2 torchrun --nproc_per_node=8 --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
    """
    for line in launch.lines:
        agent, outer = line.agent, line.task_starter
        if agent is None or outer is None or outer not in line.layers:
            continue
        options = (each for each in torchrun_options(launch.version) if each.dest in _OF_TORCH)
        names = {flag for each in options for flag in each.flags}
        wrong = next((each for each in outer.own[1:] if each.text.partition("=")[0] in names), None)
        if wrong is None:
            continue
        name = wrong.text.partition("=")[0]
        text = f"{name} is an option of torchrun, but {outer.name} gets it"
        edits = _moved(line, wrong, agent.own[-1] if len(agent.own) == 1 else agent.own[0])
        yield point(launch, line, wrong, text, f"{name} after torchrun", edits, label="move it after torchrun")


def _moved(line: LaunchLine, word: Word, program: Word) -> list[SpanEdit] | None:
    """The option, where its value is joined, behind the launcher."""
    if "=" not in word.text or not word.raw or program.context or word.context:
        return None
    start = word.start
    while start > 0 and line.source[start - 1] in " \t":
        start -= 1
    return [SpanEdit(start, word.end, ""), SpanEdit(program.end, program.end, f" {word.raw}")]
