"""LAUNCH044, LAUNCH045: the keys and values of --rdzv-conf."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.arguments.launch020_021_042_043_047_option_values import bad, told
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
TRUTHS = ("1", "true", "t", "yes", "y", "0", "false", "f", "no", "n")


def _conf(plan: Plan) -> Iterator[tuple[str, str | None]]:
    text = plan.settings["rdzv_conf"].value
    for item in (text or "").strip().split(","):
        name, sign, value = item.partition("=")
        if name.strip() or sign:
            yield name.strip(), value.strip() if sign and value.strip() else None


@cause("LAUNCH044", "rdzv-conf-key-ignored", Severity.WARNING)
def rdzv_conf_key_ignored(launch: Launch) -> Iterator[Finding]:
    """--rdzv-conf has a key that this rendezvous backend never reads.

    ## Why it matters
    Unknown keys are dropped without a word, and each backend has its own: `timeout=5` does nothing under c10d, `join_timeout=5`
    nothing under static. The time that was set is not in force.

    ## Fix
    c10d reads join_timeout, last_call_timeout, close_timeout, read_timeout, is_host and a few more; static reads timeout.
    """
    for line, layer, plan in agents(launch):
        keys = CONF_KEYS.get(plan.backend or "")
        if keys is None:
            continue
        for name, value in _conf(plan):
            if name and value is not None and name not in keys:
                meant = _conf_key(name, plan.backend or "")
                wanted = plan.settings["rdzv_conf"]
                fixed = (wanted.value or "").replace(name, meant) if meant else None
                text = (
                    f"has {name}, which the {plan.backend} backend does not read: expected {meant or ', '.join(keys)}"
                )
                message = told(wanted, "rdzv_conf", text)
                yield bad(launch, line, layer, "rdzv_conf", wanted, message, meant or ", ".join(keys), fixed)


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
    signatures=(r"does not represent a valid (boolean|integer) value", r"must have a value specified"),
)
def rdzv_conf_value_invalid(launch: Launch) -> Iterator[Finding]:
    """--rdzv-conf has an item without a value, or a value that cannot be read.

    ## Why it matters
    `The rendezvous configuration option 'timeout' must have a value specified.`, `… does not represent a valid boolean value.`
    or `… valid integer value.`

    ## Fix
    Write key=value pairs with commas between them: whole seconds for times, true or false for is_host.
    """
    for line, layer, plan in agents(launch):
        if plan.backend not in ("static", "c10d"):
            continue
        for name, value in _conf(plan):
            wrong = _conf_fault(name, value, plan.backend)
            if wrong:
                setting = plan.settings["rdzv_conf"]
                text = told(setting, "rdzv_conf", wrong)
                yield bad(launch, line, layer, "rdzv_conf", setting, text, "key=value", _readable(setting.value or ""))


def _readable(text: str) -> str | None:
    """`key=value` pairs, where they were written with colons or as JSON."""
    pairs = re.findall(r"[\"']?([A-Za-z_]+)[\"']?\s*[:=]\s*[\"']?([\w.]+)[\"']?", text)
    fixed = ",".join(f"{name}={value}" for name, value in pairs)
    return fixed if fixed != text and len(pairs) == len(text.split(",")) else None


def _conf_fault(name: str, value: str | None, backend: str) -> str | None:
    if value is None:
        return f"gives {name!r:.30} no value: expected {name or 'key'}=…"
    if backend == "c10d" and name == "is_host" and value.lower() not in TRUTHS:
        return f"has is_host={value:.30}: expected true or false"
    numbers = INTEGER_KEYS if backend == "c10d" else ("timeout",)
    if name in numbers and not re.fullmatch(r"\s*[+-]?\d+\s*", value):
        return f"has {name}={value:.30}: expected whole seconds"
    return None
