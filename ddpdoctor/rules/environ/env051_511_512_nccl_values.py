"""ENV051, ENV511, ENV512: values that NCCL reads as something else, or that stop torch."""

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


@cause("ENV051", "nccl-value-not-numeric", Severity.WARNING)
def nccl_value_not_numeric(environ: Environ) -> Iterator[Finding]:
    """A setting of NCCL that takes a number has something else as its value.

    ## Why it matters
    NCCL takes the digits in front and drops the rest without a word: true, yes and on are 0, 4M is 4, and 010 is 8.

    ## Fix
    Write a number: 1 or 0 for a switch, bytes without a unit.

    ## Source
    NCCL src/misc/param.cc: ncclLoadParam, `strtoll(str, NULL, 0)`.
    """
    for name, each, text in _set(environ):
        if each.kind != "number":
            continue
        read, is_whole = read_number(text)
        if is_whole:
            continue
        word = text.strip().lower()
        expected = "1" if word in ON else "0" if word in OFF else "a number"
        command = f"export {name}={expected}" if expected != "a number" and not environ.source(name)[1] else None
        softer = Severity.NOTE if word in OFF else None  # it does what was meant
        wrong = f"is read as {read}" if abs(read) < MAX_NUMBER else "is too large, and NCCL takes its default"
        yield about(environ, name, wrong, expected, severity=softer, command=command)


@cause("ENV511", "nccl-value-ignored", Severity.WARNING)
def nccl_value_ignored(environ: Environ) -> Iterator[Finding]:
    """A setting of NCCL has a value that NCCL does not know.

    ## Why it matters
    NCCL goes on as if the variable were not set: nvl is not NVL, inet is not AF_INET, eth* matches no interface, and a name
    of one letter counts for nothing.

    ## Fix
    Write one of the values that the finding lists, in this spelling.

    ## Source
    NCCL src/graph/paths.cc: ncclGetLevel; src/misc/socket.cc: ncclEnvSocketFamily and ncclFindInterfaces.
    """
    for name, each, text in _set(environ):
        if name in OF_OTHER_RULES or (each.kind == "number" and not read_number(text)[1]):
            continue
        if name in INTERFACES:
            wrong = _bad_list(text)
            if wrong is not None:
                yield about(environ, name, wrong, "names, or beginnings of names, with commas between them")
        elif text[0] in "\"'" and text[-1] == text[0]:
            yield about(environ, name, "has quotes in its value, which NCCL does not take off", "no quotes")
        elif not each.allows(text):
            yield _unknown_value(environ, each, text)


def _bad_list(text: str) -> str | None:
    """What is wrong with a list of interfaces or devices, whatever there is on the node (parseStringList, matchIfList)."""
    if len(text) == 1:
        return "has one character, and NCCL takes that for not set"
    if text.startswith("=^"):
        return "has ^ behind =: NCCL knows ^= only, and takes ^ for a part of the name"
    odd = next((c for c in text if c in "*?;|[]\"'" or c.isspace()), None)
    return None if odd is None else f"has {odd!r}, which NCCL takes for a part of a name"


def _unknown_value(environ: Environ, each: KnownVariable, text: str) -> Finding:
    allowed = ", ".join(each.allowed) or "1 or 0"
    right = text.strip().upper()
    command = None
    if right in each.allowed and not environ.source(each.name)[1]:
        command = f"export {each.name}={right}"
    if each.kind == "number":
        softer = Severity.NOTE  # it is read, and lies outside of what the documentation names
        return about(environ, each.name, "is none of the values that NCCL documents", allowed, severity=softer)
    exact = ", spelt like this" if right in each.allowed else ""
    return about(environ, each.name, "is a value that NCCL ignores", allowed + exact, command=command)


@cause("ENV512", "torch-value-invalid", Severity.ERROR, signatures=(r"Invalid value for environment variable: TORCH_",))
def torch_value_invalid(environ: Environ) -> Iterator[Finding]:
    """A variable of torch has a value that torch refuses.

    ## Why it matters
    init_process_group ends with "Invalid value for environment variable", import torch.distributed with "The value of
    TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL."

    ## Fix
    Write one of the values that the finding names.

    ## Source
    torch c10d/Utils.hpp: getCvarInt and getCvarBool; c10d/debug.cpp: setDebugLevelFromEnvironment.
    """
    for name, text in environ.variables.items():  # an empty value is refused too
        each = TABLE.get(name)
        if each is None or each.family != "torch":
            continue
        if each.kind == "boolean" and (not text or not each.allows(text)):
            yield about(environ, name, "is no truth value of torch", "1, 0, true, false, yes or no")
        elif each.kind == "integer" and not _starts_with_digits(text):
            yield about(environ, name, "is no number", "a number")
        elif each.kind == "word" and text.upper() not in each.allowed:
            yield about(environ, name, "is no word of torch", ", ".join(each.allowed))


def _starts_with_digits(text: str) -> bool:
    """Whether std::stoi takes it: it reads the digits in front, and refuses a text without."""
    digits = text.lstrip(" \t\n\v\f\r")
    return digits[:1].isdecimal() or (digits[:1] in ("+", "-") and digits[1:2].isdecimal())


def _set(environ: Environ) -> Iterator[tuple[str, KnownVariable, str]]:
    for name, text in environ.settings.items():
        each = TABLE.get(name)
        if each is not None and each.family == "nccl" and each.removed is None and text.strip():
            yield name, each, text
