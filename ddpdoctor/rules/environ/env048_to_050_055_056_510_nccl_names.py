"""ENV048 to ENV050, ENV055, ENV056, ENV510: names of settings that are old, gone, or nobody's."""

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
"""The last NCCL that the table knows."""
OLDEST = (2, 19, 3)
"""The NCCL of torch 2.2, the oldest torch that we support."""
_SHELL_WORD = re.compile(r"[\w@%+:,./-]+", re.ASCII)
TORCHS = ("TORCH_NCCL_", "TORCH_DISTRIBUTED_", "TORCH_FR_", "GLOO_", "TORCH_GLOO_")


@cause("ENV048", "nccl-variable-deprecated", Severity.NOTE)
def nccl_variable_deprecated(environ: Environ, versions: Versions | None = None) -> Iterator[Finding]:
    """A deprecated NCCL variable is set.

    ## Why it matters
    It works today. A release that drops it will not say so.

    ## Fix
    Use the variable that replaces it.

    ## Source
    NCCL documentation, environment variables.
    """
    here = _nccl(versions)
    for name, each in _set(environ):
        if each.deprecated is None or (here and each.deprecated != "-" and here < numbers(each.deprecated)):
            continue
        if name == "NCCL_LAUNCH_MODE" and (value(environ, name) or "").upper() != "GROUP":
            continue  # PARALLEL is what NCCL does anyway
        if "NCHANNELS" in name and uses_plugin(environ):
            continue  # the makers of network plugins prescribe these
        since = "" if each.deprecated == "-" else f" since NCCL {each.deprecated}"
        yield about(environ, name, f"is deprecated{since}", _instead(each))


@cause("ENV049", "nccl-variable-removed", Severity.WARNING)
def nccl_variable_removed(environ: Environ, versions: Versions | None = None) -> Iterator[Finding]:
    """A variable is set that this NCCL no longer reads.

    ## Why it matters
    NCCL ignores it without a word: what once worked around a fault does nothing now.

    ## Fix
    Remove it, or use what replaces it.

    ## Source
    NCCL's sources: the releases whose code still has the name.
    """
    here = _nccl(versions) or OLDEST
    for name, each in _set(environ):
        if each.removed is not None and here > numbers(each.removed):
            yield about(environ, name, f"is not read by NCCL after {each.removed}", _instead(each))


@cause("ENV050", "nccl-variable-unknown", Severity.WARNING)
def nccl_variable_unknown(environ: Environ, versions: Versions | None = None) -> Iterator[Finding]:
    """A variable with NCCL's prefix, or nearly so, is none that NCCL reads.

    ## Why it matters
    NCCL never complains about names: a misspelt one has no effect, and so has NCCL_TIMEOUT, which does not exist.

    ## Fix
    Correct the name. The timeout of collectives is the timeout= argument of init_process_group.

    ## Source
    NCCL's documentation and sources up to 2.30.7; names of plugins are left out.
    """
    here = _nccl(versions)
    for name in environ.settings:
        if name in TABLE:
            if not uses_plugin(environ) and _is_newer(TABLE[name], here):
                wrong = f"is read since NCCL {TABLE[name].since}, and this is {'.'.join(map(str, here))}"
                yield about(environ, name, wrong, "a newer NCCL", severity=Severity.NOTE)
            continue
        meant = _meant(name)
        if meant and _family(meant[0]) == "nccl" and not name.startswith(TORCHS):
            yield _misspelt(environ, name, meant, "NCCL")
        elif name.startswith("NCCL_") and not of_a_plugin(name):
            if meant:
                yield _misspelt(environ, name, meant, "NCCL")
            else:
                wrong = f"is no variable of NCCL up to {NEWEST}: it has no effect, unless a plugin reads it"
                yield about(environ, name, wrong, "a name that NCCL knows", severity=Severity.NOTE)


@cause(
    "ENV055",
    "torch-variable-renamed",
    Severity.NOTE,
    signatures=(
        r"Environment variable NCCL_(ASYNC_ERROR_HANDLING|BLOCKING_WAIT|DESYNC_DEBUG|ENABLE_TIMING) is deprecated",
    ),
)
def torch_variable_renamed(environ: Environ) -> Iterator[Finding]:
    """A variable of torch is set under its name from before 2.2.

    ## Why it matters
    torch still reads it and warns; the new name starts with TORCH_ and wins when both are set.

    ## Fix
    Use the new name that the finding gives.

    ## Source
    torch c10d/ProcessGroupNCCL.hpp: each name with its older one.
    """
    for name, each in _set(environ):
        if each.is_renamed and not (name == "NCCL_ASYNC_ERROR_HANDLING" and TORCHRUN in environ.launchers):
            command = None
            if environ.source(name)[1] is None and (environ.get(name) or "").isalnum():
                command = f"unset {name}; export {each.replaced_by}={environ.get(name)}"
            yield about(environ, name, "is the old name", f"{each.replaced_by}", command=command)


@cause("ENV056", "torch-variable-unknown", Severity.NOTE)
def torch_variable_unknown(environ: Environ) -> Iterator[Finding]:
    """A variable is set that looks like torch.distributed's or Gloo's and that torch does not read.

    ## Why it matters
    Names such as TORCH_DISTRIBUTED_INIT_METHOD stand in tutorials, and torch reads none of them; a misspelt one has no
    effect either.

    ## Fix
    Correct the name, or give the value as an argument of init_process_group or of the launcher.

    ## Source
    The names in torch 2.13's libraries and Python files.
    """
    for name in environ.variables:
        meant = _meant(name)
        if name in TABLE or (meant and _family(meant[0]) == "nccl" and not name.startswith(TORCHS)):
            continue
        if meant and (name.startswith(TORCHS) or _family(meant[0]) == "torch") and not name.startswith("NCCL_"):
            yield _misspelt(environ, name, meant, "torch")
        elif name.startswith("TORCH_NCCL_"):
            yield about(
                environ, name, "is no variable of torch up to 2.13: it has no effect", "a name that torch knows"
            )


@cause("ENV510", "cuda-variable-misspelt", Severity.WARNING)
def cuda_variable_misspelt(environ: Environ) -> Iterator[Finding]:
    """A variable is set whose name is nearly one of CUDA's or of the container runtime's.

    ## Why it matters
    Nobody reads it and nobody says so: CUDA_VISIBLE_DEVICE hides no GPU, so that two jobs share one.

    ## Fix
    Correct the name.

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
    """The NCCL that would be loaded, () when that is not known."""
    version = versions.nccl.version if versions is not None and versions.nccl is not None else None
    return numbers(version or "")


def _is_newer(each: KnownVariable, nccl: tuple[int, ...]) -> bool:
    return bool(nccl) and each.family == "nccl" and each.since is not None and nccl < numbers(each.since)


def _instead(each: KnownVariable) -> str:
    return f"{each.replaced_by} instead" if each.replaced_by else "it to be unset"


def _meant(name: str) -> tuple[str, ...]:
    """What a name that nobody reads was probably meant to be, the likeliest first."""
    if name in TABLE or name in MEANINGS or name in PET_OPTIONS:
        return ()
    return (SYNONYMS[name],) if name in SYNONYMS else nearest(name)


def _family(meant: str) -> str:
    """Whose variable it is; "" for what is no variable."""
    found = TABLE.get(meant.partition("=")[0])
    return found.family if found is not None else ""


def _misspelt(environ: Environ, name: str, meant: tuple[str, ...], reader: str) -> Finding:
    text = environ.settings[name]
    command = None
    if environ.source(name)[1] is None and meant[0] in TABLE and _SHELL_WORD.fullmatch(text) and name.isidentifier():
        command = f"unset {name}; export {meant[0]}={text}"
    return about(
        environ, name, f"is read by nobody: {reader} has no such variable; did you mean {' or '.join(meant)}?",
        meant[0], command=command,
    )  # fmt: skip
