"""LAUNCH554: a configuration file or host file that an option of the launcher names does not exist."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import instead, point

LONGEST = 58
_LOCAL_ONLY = "deepspeed only warns `Unable to find hostfile` and trains on the GPUs of this machine alone."


@cause(
    "LAUNCH554",
    "launcher-file-not-found",
    Severity.ERROR,
    signatures=(
        r"The passed configuration file `[^`]{1,300}` does not exist",
        r"Open RTE was unable to open the hostfile",
    ),
)
def launcher_file_not_found(launch: Launch) -> Iterator[Finding]:
    """The configuration file or host file of the launcher does not exist.

    ## Why it matters
    accelerate fails with ``The passed configuration file `x.yaml` does not exist``, and mpirun with `Open RTE was unable
    to open the hostfile`. deepspeed only warns `Unable to find hostfile` and trains on this machine alone.

    ## Fix
    Use the path of an existing file.

    It is relative to the folder where the launcher starts.

    ## Example
        FileNotFoundError: The passed configuration file `fdsp.yaml` does not exist.

        # before
        accelerate launch --config_file fdsp.yaml train.py

        # after
        accelerate launch --config_file fsdp.yaml train.py

    ## Source
    accelerate/commands/config/config_args.py (`load_config_from_file`), deepspeed/launcher/runner.py (`fetch_hostfile`).
    """
    for line in launch.lines:
        if line.file is not None:
            continue  # it is written for another machine, or writes the file itself
        for missing in line.missing_files:
            given = missing.given
            layer = next(layer for layer in line.layers if given in layer.reading.given)
            state, label = instead(missing.kind)
            text = f"{given.value:.40} {state}"
            if missing.kind is None and line.cwd is not None and len(text) + len(line.cwd) < LONGEST:
                text += f" in {line.cwd}"
            finding = point(launch, line, given.value_word, text, "an existing file", label=label)
            yield replace(finding, why=_LOCAL_ONLY if layer.launcher is LauncherKind.DEEPSPEED else "")
