"""LAUNCH044, LAUNCH045: the keys and values of --rdzv-conf."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isfinite

from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.arguments.launch020_021_042_043_047_option_values import bad, source
from ddpdoctor.rules.launch.pointing import agents

INTEGER_KEYS = (
    "join_timeout",
    "last_call_timeout",
    "close_timeout",
    "heartbeat_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "read_timeout",
)
CONF_KEYS = {"c10d": (*INTEGER_KEYS, "is_host", "store_type"), "static": ("timeout", "rank")}
NEWER_KEYS = {"c10d": {"cas_backoff_max_seconds": (2, 15)}}
"""Keys that a backend reads since a version of torch."""
TRUTHS = ("1", "true", "t", "yes", "y", "0", "false", "f", "no", "n")


def _conf(plan: Plan) -> Iterator[tuple[str, str | None]]:
    text = plan.settings["rdzv_conf"].value
    for item in (text or "").strip().split(","):
        name, sign, value = item.partition("=")
        if name.strip() or sign:
            yield name.strip(), value.strip() if sign and value.strip() else None


@cause("LAUNCH044", "rdzv-conf-key-ignored", Severity.WARNING)
def rdzv_conf_key_ignored(launch: Launch) -> Iterator[Finding]:
    """--rdzv-conf has a key that this rendezvous backend does not read.

    ## Why it matters
    Each backend has its own keys and silently ignores all others: `timeout=5` has no effect with c10d,
    `join_timeout=5` none with static. The timeout that you set is not used.

    ## Fix
    Use a key that the backend reads.

    c10d reads join_timeout, last_call_timeout, close_timeout, read_timeout, is_host and a few more; static reads
    timeout.

    ## Example
        warning[LAUNCH044]: --rdzv-conf key timeout is ignored by the c10d backend

        # before
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 --rdzv-conf=timeout=60 train.py

        # after
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 --rdzv-conf=join_timeout=60 train.py
    """
    for line, layer, plan in agents(launch):
        keys = CONF_KEYS.get(plan.backend or "")
        if keys is None:
            continue
        keys += tuple(k for k, since in NEWER_KEYS.get(plan.backend or "", {}).items() if launch.version >= since)
        for name, value in _conf(plan):
            if name and value is not None and name not in keys:
                meant = _conf_key(name, plan.backend or "")
                conf = plan.settings["rdzv_conf"]
                fixed = (conf.value or "").replace(name, meant) if meant else None
                message = f"{source(conf, 'rdzv_conf')} key {name:.20} is ignored by the {plan.backend} backend"
                label = f"use {meant}" if meant else f"not a key of {plan.backend}"
                allowed = meant or ", ".join(keys)
                yield bad(launch, line, layer, "rdzv_conf", conf, message, allowed, fixed, label)


def _conf_key(name: str, backend: str) -> str | None:
    if backend == "static":
        return "timeout" if "timeout" in name else None
    if name == "timeout":
        return "join_timeout"
    bare = name.replace("_", "").replace("-", "").lower()
    return next((k for k in CONF_KEYS["c10d"] if k.replace("_", "") == bare), None)


@cause(
    "LAUNCH045",
    "rdzv-conf-value-invalid",
    Severity.ERROR,
    signatures=(
        r"does not represent a valid (boolean|integer) value",
        r"must have a value specified",
        r"\bcas_backoff_max_seconds ?\([^)]{0,60}\) (?:is not a valid float value|must be finite and non-negative)",
    ),
)
def rdzv_conf_value_invalid(launch: Launch) -> Iterator[Finding]:
    """--rdzv-conf has a key without a value, or a value that torchrun cannot read.

    ## Why it matters
    torchrun fails with `The rendezvous configuration option 'timeout' must have a value specified.`, `… does not
    represent a valid boolean value.` or `… valid integer value.`

    ## Fix
    Write `key=value` pairs separated by commas.

    Times are whole seconds; is_host is true or false.

    ## Example
        ValueError: The rendezvous configuration option 'join_timeout' does not represent a valid integer value.

        # before
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 --rdzv-conf=join_timeout=60s train.py

        # after
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 --rdzv-conf=join_timeout=60 train.py
    """
    for line, layer, plan in agents(launch):
        if plan.backend not in ("static", "c10d"):
            continue
        for name, value in _conf(plan):
            fault = _conf_fault(name, value, plan.backend, launch.version)
            if fault:
                conf = plan.settings["rdzv_conf"]
                text = f"{source(conf, 'rdzv_conf')} {fault[0]}"
                fixed = _readable(conf.value or "")
                yield bad(launch, line, layer, "rdzv_conf", conf, text, "key=value", fixed, fault[1])


def _readable(text: str) -> str | None:
    """`key=value` pairs, if they were written with colons or as JSON."""
    pairs = re.findall(r"[\"']?([A-Za-z_]+)[\"']?\s*[:=]\s*[\"']?([\w.]+)[\"']?", text)
    fixed = ",".join(f"{name}={value}" for name, value in pairs)
    return fixed if fixed != text and len(pairs) == len(text.split(",")) else None


def _conf_fault(name: str, value: str | None, backend: str, version: Version) -> tuple[str, str] | None:
    """What is wrong with a key and its value, and the text of the caret."""
    if value is None:
        return (f"has the key {name!r:.30} without a value", f"use {name}=…") if name else ("has no key", "use key=…")
    if backend == "c10d" and name == "is_host" and value.lower() not in TRUTHS:
        return f"has is_host={value:.20}, not true or false", "use true or false"
    since = NEWER_KEYS.get(backend, {}).get(name)
    if since is not None and version >= since and not _is_duration(value):
        return f"has an invalid {name}", "use seconds, without a unit"
    numbers = INTEGER_KEYS if backend == "c10d" else ("timeout",)
    if name in numbers and not re.fullmatch(r"\s*[+-]?\d+\s*", value):
        return f"has {name}={value:.20}, not a number", "use whole seconds, without a unit"
    return None


def _is_duration(text: str) -> bool:
    """Whether torch reads it as a finite number of seconds that is not negative."""
    try:
        return isfinite(float(text)) and float(text) >= 0
    except ValueError:
        return False
