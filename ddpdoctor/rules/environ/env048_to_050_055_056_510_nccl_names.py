"""ENV048 to ENV050, ENV055, ENV056, ENV510: names of settings that are old, removed, or unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.launchers import TORCHRUN
from ddpdoctor.facts.setting_names import SYNONYMS, nearest, of_a_plugin
from ddpdoctor.facts.settings_table import TABLE, KnownVariable
from ddpdoctor.facts.variables import MEANINGS, PET_OPTIONS
from ddpdoctor.facts.versions import Versions, numbers
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.environ.settings import about, uses_plugin, value

__all__ = [
    "cuda_variable_misspelt",
    "nccl_variable_deprecated",
    "nccl_variable_removed",
    "nccl_variable_unknown",
    "torch_variable_renamed",
    "torch_variable_unknown",
]

NEWEST = "2.30.7"
"""The newest NCCL that the table covers."""
OLDEST = (2, 19, 3)
"""The NCCL of torch 2.2, the oldest torch that we support."""
_SHELL_WORD = re.compile(r"[\w@%+:,./-]+", re.ASCII)
TORCHS = ("TORCH_NCCL_", "TORCH_DISTRIBUTED_", "TORCH_FR_", "GLOO_", "TORCH_GLOO_")


@cause("ENV048", "nccl-variable-deprecated", Severity.NOTE)
def nccl_variable_deprecated(environ: Environ, versions: Versions | None = None) -> Iterator[Finding]:
    """A deprecated NCCL variable is set.

    ## Why it matters
    It still works, but a later release will ignore it without a message.

    ## Fix
    Use the variable that the finding names instead.

    ## Example

        NCCL_CHECKS_DISABLE=0 is deprecated since NCCL 2.2.12 (use NCCL_CHECK_POINTERS)

        # before
        export NCCL_CHECKS_DISABLE=0
        # after
        export NCCL_CHECK_POINTERS=1

    ## Source
    NCCL documentation, environment variables.
    """
    here = _nccl(versions)
    for name, known in _set(environ):
        if known.deprecated is None or (here and known.deprecated != "-" and here < numbers(known.deprecated)):
            continue
        if name == "NCCL_LAUNCH_MODE" and (value(environ, name) or "").upper() != "GROUP":
            continue  # PARALLEL is NCCL's default
        if "NCHANNELS" in name and uses_plugin(environ):
            continue  # vendors of network plugins prescribe these
        since = "" if known.deprecated == "-" else f" since NCCL {known.deprecated}"
        yield about(environ, name, f"is deprecated{since}{_replacement(known)}", _instead(known))


@cause("ENV049", "nccl-variable-removed", Severity.WARNING)
def nccl_variable_removed(environ: Environ, versions: Versions | None = None) -> Iterator[Finding]:
    """A variable is set that this NCCL no longer reads.

    ## Why it matters
    NCCL ignores it without a message: a former workaround no longer has any effect.

    ## Fix
    Remove it, or use its replacement.

    ## Example

        NCCL_TREE_THRESHOLD=0 is not read by NCCL after 2.5 (use NCCL_ALGO)

        # before
        export NCCL_TREE_THRESHOLD=0
        # after
        unset NCCL_TREE_THRESHOLD

    ## Source
    NCCL's sources: the releases whose code still has the name.
    """
    here = _nccl(versions) or OLDEST
    for name, known in _set(environ):
        if known.removed is not None and here > numbers(known.removed):
            yield about(
                environ, name, f"is not read by NCCL after {known.removed}{_replacement(known)}", _instead(known)
            )


@cause("ENV050", "nccl-variable-unknown", Severity.WARNING)
def nccl_variable_unknown(environ: Environ, versions: Versions | None = None) -> Iterator[Finding]:
    """A variable with NCCL's prefix, or nearly so, is not one that NCCL reads.

    ## Why it matters
    NCCL never reports unknown names: a misspelled one has no effect, and neither has NCCL_TIMEOUT, which does not
    exist.

    ## Fix
    Correct the name; to set the timeout of collectives, use the timeout= argument of init_process_group.

    ## Example

        NCCL_SOCKET_IFNAMES=eth0 has no effect on NCCL; did you mean NCCL_SOCKET_IFNAME?

        # before
        export NCCL_SOCKET_IFNAMES=eth0
        # after
        export NCCL_SOCKET_IFNAME=eth0

    ## Source
    The texts of the libnccl that the job would load, which contain every name that it reads; without it NCCL's documentation and
    sources up to 2.30.7. Names of plugins are left out.
    """
    here = _nccl(versions)
    library = versions.nccl if versions is not None else None
    read = library.reads if library is not None else None
    for name in environ.settings:
        if name in (read or ()):
            continue  # the installed library has the name, whatever the table knows
        if name in TABLE:
            if not uses_plugin(environ) and _is_newer(TABLE[name], here):
                wrong = f"is read since NCCL {TABLE[name].since}; this is NCCL {'.'.join(map(str, here))}"
                yield about(environ, name, wrong, "a newer NCCL", severity=Severity.NOTE)
            continue
        meant = _meant(name)
        if meant and _family(meant[0]) == "nccl" and not name.startswith(TORCHS):
            yield _misspelt(environ, name, meant, "NCCL")
        elif name.startswith("NCCL_") and not of_a_plugin(name):
            if meant:
                yield _misspelt(environ, name, meant, "NCCL")
            else:
                wrong = f"is unknown to NCCL up to {NEWEST} (no effect, unless a plugin reads it)"
                if read is not None and environ.source(name)[1] is None and library is not None:
                    wrong = f"is not read by the installed NCCL {library.version or ''} (no effect, unless a plugin reads it)"
                yield about(environ, name, wrong, "a name that NCCL reads", severity=Severity.NOTE)


@cause(
    "ENV055",
    "torch-variable-renamed",
    Severity.NOTE,
    signatures=(
        r"Environment variable NCCL_(ASYNC_ERROR_HANDLING|BLOCKING_WAIT|DESYNC_DEBUG|ENABLE_TIMING) is deprecated",
    ),
)
def torch_variable_renamed(environ: Environ) -> Iterator[Finding]:
    """A variable of torch is set by its name from before torch 2.2.

    ## Why it matters
    torch still reads it and warns `Environment variable NCCL_… is deprecated`. The new name starts with TORCH_ and
    wins if both are set.

    ## Fix
    Use the new name that the finding gives.

    ## Example

        NCCL_BLOCKING_WAIT=1 was renamed to TORCH_NCCL_BLOCKING_WAIT

        # before
        export NCCL_BLOCKING_WAIT=1
        # after
        unset NCCL_BLOCKING_WAIT; export TORCH_NCCL_BLOCKING_WAIT=1

    ## Source
    torch c10d/ProcessGroupNCCL.hpp: each name with its older one.
    """
    for name, known in _set(environ):
        if known.is_renamed and not (name == "NCCL_ASYNC_ERROR_HANDLING" and TORCHRUN in environ.launchers):
            command = None
            if environ.source(name)[1] is None and (environ.get(name) or "").isalnum():
                command = f"unset {name}; export {known.replaced_by}={environ.get(name)}"
            wrong = f"was renamed to {known.replaced_by}"
            yield about(environ, name, wrong, f"{known.replaced_by}", command=command)


@cause("ENV056", "torch-variable-unknown", Severity.NOTE)
def torch_variable_unknown(environ: Environ) -> Iterator[Finding]:
    """A variable looks like one of torch.distributed's or Gloo's, but torch does not read it.

    ## Why it matters
    Tutorials use names such as TORCH_DISTRIBUTED_INIT_METHOD, which torch does not read. A misspelled name has no
    effect either.

    ## Fix
    Correct the name, or pass the value as an argument of init_process_group or of the launcher.

    ## Example

        TORCH_NCCL_BLOCKING_WAITS=1 has no effect on torch; did you mean TORCH_NCCL_BLOCKING_WAIT?

        # before
        export TORCH_NCCL_BLOCKING_WAITS=1
        # after
        export TORCH_NCCL_BLOCKING_WAIT=1

    ## Source
    The names in the libraries and Python files of torch 2.13 to 2.15.
    """
    for name in environ.variables:
        meant = _meant(name)
        if name in TABLE or (meant and _family(meant[0]) == "nccl" and not name.startswith(TORCHS)):
            continue
        if meant and (name.startswith(TORCHS) or _family(meant[0]) == "torch") and not name.startswith("NCCL_"):
            yield _misspelt(environ, name, meant, "torch")
        elif name.startswith("TORCH_NCCL_"):
            yield about(environ, name, "has no effect (unknown to torch up to 2.15)", "a name that torch reads")


@cause("ENV510", "cuda-variable-misspelt", Severity.WARNING)
def cuda_variable_misspelt(environ: Environ) -> Iterator[Finding]:
    """A variable's name looks like a misspelled variable of CUDA or the container runtime.

    ## Why it matters
    No program reads it and none reports it: CUDA_VISIBLE_DEVICE hides no GPU, so two jobs share one.

    ## Fix
    Correct the name.

    ## Example

        CUDA_VISIBLE_DEVICE=0 has no effect on CUDA; did you mean CUDA_VISIBLE_DEVICES?

        # before
        export CUDA_VISIBLE_DEVICE=0
        # after
        unset CUDA_VISIBLE_DEVICE; export CUDA_VISIBLE_DEVICES=0

    ## Source
    CUDA programming guide, environment variables; NVIDIA container toolkit, environment variables.
    """
    for name in environ.variables:
        meant = _meant(name)
        if name not in TABLE and meant and _family(meant[0]) == "cuda":
            yield _misspelt(environ, name, meant, "CUDA")


def _set(environ: Environ) -> Iterator[tuple[str, KnownVariable]]:
    return ((name, TABLE[name]) for name, text in environ.settings.items() if name in TABLE and text)


def _nccl(versions: Versions | None) -> tuple[int, ...]:
    """The NCCL that would be loaded, () if unknown."""
    version = versions.nccl.version if versions is not None and versions.nccl is not None else None
    return numbers(version or "")


def _is_newer(known: KnownVariable, nccl: tuple[int, ...]) -> bool:
    return bool(nccl) and known.family == "nccl" and known.since is not None and nccl < numbers(known.since)


def _instead(known: KnownVariable) -> str:
    return known.replaced_by or "unset"


def _replacement(known: KnownVariable) -> str:
    return f" (use {known.replaced_by})" if known.replaced_by else ""


def _meant(name: str) -> tuple[str, ...]:
    """What an unknown name was probably meant to be, the most likely first."""
    if name in TABLE or name in MEANINGS or name in PET_OPTIONS:
        return ()
    return (SYNONYMS[name],) if name in SYNONYMS else nearest(name)


def _family(meant: str) -> str:
    """The program that reads the variable; "" if it is not a variable."""
    known = TABLE.get(meant.partition("=")[0])
    return known.family if known is not None else ""


def _misspelt(environ: Environ, name: str, meant: tuple[str, ...], reader: str) -> Finding:
    text = environ.settings[name]
    command = None
    if environ.source(name)[1] is None and meant[0] in TABLE and _SHELL_WORD.fullmatch(text) and name.isidentifier():
        command = f"unset {name}; export {meant[0]}={text}"
    return about(
        environ, name, f"has no effect on {reader}; did you mean {' or '.join(meant)}?", meant[0], command=command
    )
