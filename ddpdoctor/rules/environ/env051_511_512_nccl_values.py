"""ENV051, ENV511, ENV512: values that NCCL reads differently than intended, or that stop torch."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.settings_table import MAX_NUMBER, TABLE, KnownVariable, read_number
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.environ.settings import about

__all__ = ["nccl_value_ignored", "nccl_value_not_numeric", "torch_value_invalid"]

OFF = ("false", "no", "off", "n", "f", "disable", "disabled", "none", "null")
ON = ("true", "yes", "on", "y", "t", "enable", "enabled")
OF_OTHER_RULES = ("NCCL_DEBUG", "NCCL_ALGO", "NCCL_PROTO", "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT")
INTERFACES = ("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "NCCL_IB_HCA")
MOST_LISTED = 10
"""A headline lists no more values than this."""


@cause("ENV051", "nccl-value-not-numeric", Severity.WARNING)
def nccl_value_not_numeric(environ: Environ) -> Iterator[Finding]:
    """An NCCL setting that takes a number has another value.

    ## Why it matters
    NCCL reads the leading digits and ignores the rest silently: true, yes, and on are 0, 4M is 4, and 010 is 8.

    ## Fix
    Use a number: 1 or 0 for a switch, bytes without a unit.

    ## Example

        NCCL_IB_DISABLE=true is read as 0

        # before
        export NCCL_IB_DISABLE=true
        # after
        export NCCL_IB_DISABLE=1

    ## Source
    NCCL src/misc/param.cc: ncclLoadParam, `strtoll(str, NULL, 0)`.
    """
    for name, known, text in _set(environ):
        if known.kind != "number":
            continue
        read, is_whole = read_number(text)
        if is_whole:
            continue
        word = text.strip().lower()
        expected = "1" if word in ON else "0" if word in OFF else "a number"
        command = f"export {name}={expected}" if expected != "a number" and not environ.source(name)[1] else None
        softer = Severity.NOTE if word in OFF else None  # the effect is the intended one
        wrong = f"is read as {read}" if abs(read) < MAX_NUMBER else "is too large; NCCL uses its default"
        yield about(environ, name, wrong, expected, severity=softer, command=command)


@cause("ENV511", "nccl-value-ignored", Severity.WARNING)
def nccl_value_ignored(environ: Environ) -> Iterator[Finding]:
    """An NCCL setting has a value that NCCL does not know.

    ## Why it matters
    NCCL continues as if the variable were not set: nvl is not NVL, inet is not AF_INET, eth* matches no interface,
    and a name of one letter is ignored.

    ## Fix
    Use one of the values that the finding lists, spelled the same way.

    ## Example

        NCCL_SOCKET_FAMILY=inet is ignored by NCCL (known: AF_INET, AF_INET6)

        # before
        export NCCL_SOCKET_FAMILY=inet
        # after
        export NCCL_SOCKET_FAMILY=AF_INET

    ## Source
    NCCL src/graph/paths.cc: ncclGetLevel; src/misc/socket.cc: ncclEnvSocketFamily and ncclFindInterfaces.
    """
    for name, known, text in _set(environ):
        if name in OF_OTHER_RULES or (known.kind == "number" and not read_number(text)[1]):
            continue
        if name in INTERFACES:
            wrong = _bad_list(text)
            if wrong is not None:
                yield about(environ, name, wrong, "names or prefixes, separated by commas")
        elif text[0] in "\"'" and text[-1] == text[0]:
            yield about(environ, name, "has quotes in its value, which NCCL does not remove", "no quotes")
        elif not known.allows(text):
            yield _unknown_value(environ, known, text)


def _bad_list(text: str) -> str | None:
    """What is wrong with a list of interfaces or devices on any node (parseStringList, matchIfList)."""
    if len(text) == 1:
        return "has one character; NCCL treats that as not set"
    if text.startswith("=^"):
        return "starts with =^; NCCL knows only ^= and reads ^ as part of the name"
    odd = next((c for c in text if c in "*?;|[]\"'" or c.isspace()), None)
    return None if odd is None else f"has {odd!r}, which NCCL reads as part of a name"


def _unknown_value(environ: Environ, known: KnownVariable, text: str) -> Finding:
    allowed = ", ".join(known.allowed) or "1 or 0"
    right = text.strip().upper()
    command = None
    if right in known.allowed and not environ.source(known.name)[1]:
        command = f"export {known.name}={right}"
    if known.kind == "number":
        softer = Severity.NOTE  # NCCL reads it, but the documentation does not name it
        wrong = f"is not a documented value (documented: {allowed})"
        return about(environ, known.name, wrong, allowed, severity=softer)
    listed = f" (known: {allowed})" if len(known.allowed) <= MOST_LISTED else ""
    return about(environ, known.name, f"is ignored by NCCL{listed}", allowed, command=command)


@cause("ENV512", "torch-value-invalid", Severity.ERROR, signatures=(r"Invalid value for environment variable: TORCH_",))
def torch_value_invalid(environ: Environ) -> Iterator[Finding]:
    """A variable of torch has a value that torch rejects.

    ## Why it matters
    init_process_group fails with `Invalid value for environment variable`, and `import torch.distributed` with `The
    value of TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL.`

    ## Fix
    Use one of the values that torch accepts; the message lists them.

    ## Example

        RuntimeError: The value of TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL.

        # before
        export TORCH_DISTRIBUTED_DEBUG=1
        # after
        export TORCH_DISTRIBUTED_DEBUG=INFO

    ## Source
    torch c10d/Utils.hpp: getCvarInt and getCvarBool; c10d/debug.cpp: setDebugLevelFromEnvironment.
    """
    for name, text in environ.variables.items():  # torch rejects an empty value as well
        known = TABLE.get(name)
        if known is None or known.family != "torch":
            continue
        if known.kind == "boolean" and (not text or not known.allows(text)):
            yield about(environ, name, "is not a boolean of torch", "1, 0, true, false, yes, or no")
        elif known.kind == "integer" and not _starts_with_digits(text):
            yield about(environ, name, "is not a number", "a number")
        elif known.kind == "word" and text.upper() not in known.allowed:
            allowed = ", ".join(known.allowed)
            yield about(environ, name, f"is rejected by torch (allowed: {allowed})", allowed)


def _starts_with_digits(text: str) -> bool:
    """Whether std::stoi accepts it: it reads the leading digits, and rejects a text without any."""
    digits = text.lstrip(" \t\n\v\f\r")
    return digits[:1].isdecimal() or (digits[:1] in ("+", "-") and digits[1:2].isdecimal())


def _set(environ: Environ) -> Iterator[tuple[str, KnownVariable, str]]:
    for name, text in environ.settings.items():
        known = TABLE.get(name)
        if known is not None and known.family == "nccl" and known.removed is None and text.strip():
            yield name, known, text
