"""The settings of torchrun for a line: options, PET_ variables and defaults combined, as `run.py:run` does.

None always means that it is not known from the line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache

from ddpdoctor.facts import addresses
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.plan import Plan, PlanSetting
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.facts.torchrun_options import Option, Version, torchrun_options

__all__ = [
    "ACCELERATE_NAMES",
    "DEFAULT_C10D_PORT",
    "DEFAULT_PORT",
    "is_loopback",
    "parse_endpoint",
    "parse_nnodes",
    "plan_of",
    "plan_of_machines",
    "plan_without_ssh",
    "setting",
]

DEFAULT_PORT = 29500
DEFAULT_C10D_PORT = 29400


@lru_cache(maxsize=64)
def _by_dest(version: Version) -> dict[str, Option]:
    return {option.dest: option for option in torchrun_options(version, legacy=True)}


def setting(layer: Layer, environ: Mapping[str, str], dest: str, version: Version) -> PlanSetting:
    """The value in effect: the last one on the line, else PET_<DEST>, else the default."""
    option = _by_dest(version).get(dest)
    given = layer.given(dest)
    if given is not None:
        value = "1" if given.value is None else given.value
        unknown = UNKNOWN in value
        return PlanSetting(None if unknown else value, "line", given.value_word, unknown)
    if option is None:
        return PlanSetting(None, "default")
    if layer.reading.is_open:
        return PlanSetting(None, "default", None, True)
    name = option.variable
    if name is not None and name in environ:
        value = environ[name]
        return PlanSetting(None if UNKNOWN in value else value, "variable", None, UNKNOWN in value)
    return PlanSetting(option.default, "default")


def plan_of(layer: Layer, environ: Mapping[str, str], version: Version) -> Plan:
    """The settings of the launcher of this layer."""
    settings = {dest: setting(layer, environ, dest, version) for dest in _by_dest(version)}
    nnodes = parse_nnodes(settings["nnodes"].value)
    asked = settings["rdzv_backend"].value
    standalone = _flag(settings["standalone"])
    endpoint = settings["rdzv_endpoint"]
    rewritten = (
        version >= (2, 12)
        and standalone is False
        and asked == "static"
        and endpoint.value == ""
        and settings["master_port"].value is None
        and not settings["master_port"].is_unknown
        and nnodes is not None
        and nnodes[1] == 1
    )
    backend = "c10d" if standalone or rewritten else asked if standalone is False else None
    host, port = _endpoint(settings, backend, bool(standalone or rewritten))
    return Plan(
        nnodes=nnodes,
        nproc=_integer(settings["nproc_per_node"].value),
        asked=asked,
        backend=backend,
        node_rank=_integer(settings["node_rank"].value),
        host=host,
        port=port,
        rdzv_id=None if standalone or rewritten else settings["rdzv_id"].value,
        is_standalone=standalone,
        is_rewritten=rewritten,
        settings=settings,
    )


ACCELERATE_NAMES = {
    "nnodes": "num_machines",
    "node_rank": "machine_rank",
    "master_addr": "main_process_ip",
    "master_port": "main_process_port",
}
"""accelerate's names of torchrun's options for several nodes."""


def plan_of_machines(layer: Layer, config: Mapping[str, str]) -> Plan | None:
    """The settings of `accelerate launch` on several machines, by torchrun's names; None on one, or if a word is
    unknown.

    Args:
        config: the top level of its config file.
    """
    if layer.reading.is_open or (layer.given("config_file") is not None and not config):
        return None
    defaults = {"nnodes": "1", "node_rank": "0", "master_addr": None, "master_port": str(DEFAULT_PORT)}
    names = {dest: ACCELERATE_NAMES[dest] for dest in defaults}
    configured = {dest: config[name] for dest, name in names.items() if name in config}
    settings = _static_settings(layer, names, {**defaults, **configured}, configured)
    settings["rdzv_backend"] = PlanSetting(layer.value("rdzv_backend") or "static", "default")
    count = _integer(settings["nnodes"].value)
    if count is None or count < 2 or settings["rdzv_backend"].value != "static":
        return None
    total = _integer(layer.value("num_processes") or config.get("num_processes"))
    return _static_plan(settings, count, None if total is None else total // count)


def plan_without_ssh(layer: Layer, slots: Mapping[str, int]) -> Plan | None:
    """The settings of `deepspeed --no_ssh`, by torchrun's names; None on one host.

    Args:
        slots: the hosts that it uses of its host file, with the number of their GPUs.
    """
    defaults = {"node_rank": None, "master_addr": None, "master_port": str(DEFAULT_PORT)}
    settings = _static_settings(layer, {dest: dest for dest in defaults}, defaults, ())
    settings["nnodes"] = PlanSetting(str(len(slots)), "default")
    settings["rdzv_backend"] = PlanSetting("static", "default")
    if len(slots) < 2 or layer.reading.is_open:
        return None
    counts = set(slots.values())
    return _static_plan(settings, len(slots), counts.pop() if len(counts) == 1 else None)


def _static_settings(
    layer: Layer, names: Mapping[str, str], defaults: Mapping[str, str | None], configured: Collection[str]
) -> dict[str, PlanSetting]:
    """The settings in effect of a launcher whose options have other names than torchrun's."""
    settings = {}
    for dest, name in names.items():
        given = layer.given(name)
        value = defaults[dest] if given is None else given.value
        unknown = value is not None and UNKNOWN in value
        origin = "line" if given is not None else "variable" if dest in configured else "default"
        settings[dest] = PlanSetting(None if unknown else value, origin, given.value_word if given else None, unknown)
    return settings | {dest: PlanSetting("", "default") for dest in ("rdzv_endpoint", "rdzv_conf")}


def _static_plan(settings: dict[str, PlanSetting], count: int, nproc: int | None) -> Plan:
    return Plan(
        nnodes=(count, count),
        nproc=nproc,
        asked="static",
        backend="static",
        node_rank=_integer(settings["node_rank"].value),
        host=settings["master_addr"].value,
        port=_integer(settings["master_port"].value),
        rdzv_id="none",
        is_standalone=False,
        is_rewritten=False,
        settings=settings,
    )


def _flag(value: PlanSetting) -> bool | None:
    if value.is_unknown:
        return None
    if value.origin != "variable":
        return value.origin == "line"
    number = _integer(value.value)
    return None if number is None else bool(number)


def _endpoint(
    settings: Mapping[str, PlanSetting], backend: str | None, is_local: bool
) -> tuple[str | None, int | None]:
    if is_local:
        return "localhost", None
    endpoint = settings["rdzv_endpoint"]
    if endpoint.is_unknown or endpoint.value is None or backend is None:
        return None, None
    if endpoint.value == "" and backend == "static":
        port = settings["master_port"]
        number = DEFAULT_PORT if port.value is None and not port.is_unknown else _integer(port.value)
        return settings["master_addr"].value, number
    host, number = parse_endpoint(endpoint.value)
    if backend == "c10d":
        return host or "localhost", DEFAULT_C10D_PORT if number is None and ":" not in endpoint.value else number
    return host, number


def parse_endpoint(text: str) -> tuple[str, int | None]:
    """Host and port of `host[:port]`, as `rendezvous/utils.py:parse_rendezvous_endpoint` splits it; None for an invalid
    port.
    """
    text = text.strip()
    host, sign, port = text.rpartition(":")
    if not sign:
        return text, None
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        return host.strip(), None
    return host.strip().strip("[]"), int(port)


def parse_nnodes(text: str | None) -> tuple[int, int] | None:
    """MIN and MAX of `--nnodes`, None when it is unknown or invalid."""
    if text is None:
        return None
    parts = text.split(":")
    low, high = _integer(parts[0]), _integer(parts[-1])
    if len(parts) > 2 or low is None or high is None:
        return None
    return (low, high) if 0 < low <= high else None


def is_loopback(host: str | None) -> bool:
    """The name or address points each node at itself."""
    return host is not None and addresses.is_loopback(host)


def _integer(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
