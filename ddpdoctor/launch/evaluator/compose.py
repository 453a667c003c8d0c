"""A Docker Compose file executed on an imagined machine: each service is a host with the service's name.

Source: the Compose specification (compose-spec/compose-spec, spec.md and 12-interpolation.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.evaluator.cluster import Allocation
from ddpdoctor.launch.evaluator.imagined_run import ImaginedRun, Launched, Place
from ddpdoctor.launch.evaluator.launches import PlacedCommand, run_placed
from ddpdoctor.launch.evaluator.manifests import by_master, counted, plan_of_launched
from ddpdoctor.launch.evaluator.pods import SET_BY_OPERATORS
from ddpdoctor.launch.evaluator.scalars import Expansion, Manifest
from ddpdoctor.launch.evaluator.shell import Budget
from ddpdoctor.launch.evaluator.values import NOT_KNOWN, Value
from ddpdoctor.launch.manifests.yaml_nodes import At, number, text_of
from ddpdoctor.launch.program_names import SHELLS
from ddpdoctor.launch.shell.words import simple_commands
from ddpdoctor.light_dataclass import dataclass

__all__ = ["ComposeService", "names_of", "run_of_compose", "services_of"]

MOST_STATEMENTS = 8_000
MOST_SERVICES = 64
HOST = "docker-host"
_INTERPOLATION = re.compile(r"\$(?:\$|\{[^}]{0,400}\}|[A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class ComposeService:
    """One service: its name, the node of its settings, and the names by which the others reach it."""

    name: str
    at: At
    names: tuple[str, ...]

    @property
    def is_on_host(self) -> bool:
        """Whether it uses the network of the machine, where all such services are one host."""
        return text_of(self.at.get("network_mode")) == "host"


def services_of(roots: Sequence[At]) -> tuple[ComposeService, ...]:
    """The services of a Compose file, () for any other file."""
    if len(roots) != 1 or roots[0].get("apiVersion") is not None or roots[0].get("services") is None:
        return ()
    found = []
    for name, at in roots[0].pairs("services"):
        if any(at.get(key) is not None for key in ("image", "build", "command", "extends")):
            found.append(ComposeService(name, at, (name, *_more_names(at))))
    return tuple(found[:MOST_SERVICES])


def _more_names(at: At) -> Iterator[str]:
    for key in ("container_name", "hostname"):
        text = text_of(at.get(key))
        if text:
            yield text
    for _, network in at.pairs("networks"):
        yield from (text_of(alias) or "" for alias in network.items("aliases"))


def names_of(roots: Sequence[At], services: Sequence[ComposeService]) -> frozenset[str] | None:
    """All names that resolve between the services; None where other networks may add some."""
    if any(text_of(network.get("external")) == "true" for _, network in roots[0].pairs("networks")):
        return None
    if any(each.at.get("extra_hosts") or each.at.get("external_links") or each.at.get("extends") for each in services):
        return None
    return frozenset(name for each in services for name in each.names)


def run_of_compose(services: Sequence[ComposeService], text: str, file: str, version: Version) -> ImaginedRun:
    """What the services start; what joins the same master is one job."""
    manifest, budget = Manifest(text, file), Budget(MOST_STATEMENTS)
    found = ImaginedRun(allocation=Allocation(tuple(each.name for each in services), scheduler="Docker Compose"))
    launched: list[Launched] = []
    for index, service in enumerate(services):
        command = _command(service, index, manifest)
        if command is None:
            continue
        copies = number(service.at.get("deploy", "replicas")) or number(service.at.get("scale")) or 1
        if copies > 1:
            found.left_out.append(f"service {service.name}: only 1 of {copies} copies is simulated")
        run = run_placed(command, version, budget)
        found.left_out += run.left_out
        launched += [each.launched for each in counted(run.launched, "", 0)]
    found.add_groups(list(_jobs(launched, version)))
    found.left_out += budget.described(file, text)
    return found


def _jobs(launched: Sequence[Launched], version: Version) -> Iterator[list[Launched]]:
    """Launchers that wait for others are one job, and so are ranks that variables number; everything else is alone."""
    agents, ranks = [], []
    for each in launched:
        plan = plan_of_launched(each, version)
        if plan is not None and plan.is_multinode and not plan.is_standalone:
            agents.append((each, plan))
        elif plan is None and "RANK" in each.environ and "WORLD_SIZE" in each.environ:
            ranks.append(each)
        else:
            yield [each]
    if agents:
        yield from by_master([each for each, _ in agents], [plan for _, plan in agents])
    if ranks:
        yield ranks


def _command(service: ComposeService, index: int, manifest: Manifest) -> PlacedCommand | None:
    """What a service executes; None where its image decides that."""
    argv: list[Value] = []
    inside = {}
    for key in ("entrypoint", "command"):
        at = service.at.get(key)
        if at is None:
            continue
        text = text_of(at)
        if text is not None:
            words = simple_commands(_interpolated(text))
            value = manifest.value(at)
            argv += [value.with_text(word.text) for command in words[:1] for word in command.words]
            continue
        for item in at.items():
            value = manifest.value(item)
            argv.append(value.with_text(_interpolated(value.text)))
            inside[argv[-1].text] = manifest.inside(item, Expansion(NOT_KNOWN))
    if not argv or (service.at.get("command") is None and argv[0].text.rpartition("/")[2] in SHELLS and len(argv) < 3):
        return None
    environ, is_open = _environ(service, manifest)
    host = HOST if service.is_on_host else service.name
    at = service.at.get("command") or service.at.get("entrypoint") or service.at
    return PlacedCommand(
        place=Place(
            host,
            0 if service.is_on_host else index,
            gpus=_gpus(service.at),
            hostname=UNKNOWN if service.is_on_host or len(service.names) > 1 else None,
            unset=frozenset() if is_open else SET_BY_OPERATORS - environ.keys(),
        ),
        argv=tuple(argv),
        environ=environ,
        origin=manifest.origin(at),
        allocation=Allocation((host,)),
        inside=inside,
    )


def _interpolated(text: str) -> str:
    """Compose replaces variables of the machine that it runs on, which are not known; `$$` is a dollar sign."""
    return _INTERPOLATION.sub(lambda match: "$" if match[0] == "$$" else UNKNOWN, text)


def _environ(service: ComposeService, manifest: Manifest) -> tuple[dict[str, Value], bool]:
    """The variables of a service, and whether a file that is not read may set more."""
    found: dict[str, Value] = {}
    for name, value in service.at.pairs("environment"):
        if name != "<<":
            found[name] = _value(manifest, value, text_of(value) or UNKNOWN)
    for item in service.at.items("environment"):
        name, sign, text = (text_of(item) or "").partition("=")
        found[name] = _value(manifest, item, text if sign else UNKNOWN)
    return found, service.at.get("env_file") is not None


def _value(manifest: Manifest, at: At, text: str) -> Value:
    return Value(_interpolated(text), (manifest.origin(at),))


def _gpus(at: At) -> int | None:
    """The GPUs that a service reserves."""
    for device in at.items("deploy", "resources", "reservations", "devices"):
        ids = list(device.items("device_ids"))
        return len(ids) or number(device.get("count"))
    visible: Mapping[str, str] = {name: text_of(value) or "" for name, value in at.pairs("environment")}
    listed = visible.get("NVIDIA_VISIBLE_DEVICES", "")
    return listed.count(",") + 1 if re.fullmatch(r"\d+(,\d+)*", listed) else None
