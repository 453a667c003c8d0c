"""A Docker Compose file executed on an imagined machine: each service is a host with the service's name.

Source: the Compose specification (compose-spec/compose-spec, spec.md and 12-interpolation.md).
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence

from ddpdoctor.facts.launch.record import StartedScript
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.facts.submission import ComposeHost
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.evaluator.cluster import Allocation
from ddpdoctor.launch.evaluator.execution_budget import Budget
from ddpdoctor.launch.evaluator.imagined_run import ImaginedRun, Launched, Place
from ddpdoctor.launch.evaluator.launches import run_placed
from ddpdoctor.launch.evaluator.manifests import by_master, counted, plan_of_launched
from ddpdoctor.launch.evaluator.placed_commands import PlacedCommand
from ddpdoctor.launch.evaluator.pods import SET_BY_OPERATORS
from ddpdoctor.launch.evaluator.scalars import Expansion, Manifest
from ddpdoctor.launch.evaluator.values import NOT_KNOWN, Value
from ddpdoctor.launch.lookup import NO_FILES, FileLookup
from ddpdoctor.launch.manifests.yaml_nodes import At, number, text_of
from ddpdoctor.launch.program_names import SHELLS
from ddpdoctor.light_dataclass import dataclass

__all__ = ["ComposeService", "hosts_of_compose", "names_of", "run_of_compose", "services_of"]

MOST_STATEMENTS = 8_000
MOST_SERVICES = 64
MOST_COPIES = 16
MOST_ROWS = 1_000
"""Of an `env_file`."""
MOST_EXTENDED = 16
"""Services that extend one another."""
HOST = "docker-host"
_INTERPOLATION = re.compile(r"\$(?:\$|\{[^}]{0,400}\}|[A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class ComposeService:
    """One service: its name, the node of its settings, and the names by which the others reach it."""

    name: str
    at: At
    names: tuple[str, ...]
    layers: tuple[At, ...] = ()
    """Its own settings, and those of the services that it extends, the nearest first."""

    def get(self, *path: str) -> At | None:
        """A setting of its own, or of a service that it extends."""
        return next((found for each in self.layers if (found := each.get(*path)) is not None), None)

    @property
    def is_on_host(self) -> bool:
        """Whether it uses the network of the machine, where all such services are one host."""
        return text_of(self.get("network_mode")) == "host"


def services_of(roots: Sequence[At]) -> tuple[ComposeService, ...]:
    """The services of a Compose file, () for any other file."""
    if len(roots) != 1 or roots[0].get("apiVersion") is not None or roots[0].get("services") is None:
        return ()
    found = []
    for name, at in roots[0].pairs("services"):
        if any(at.get(key) is not None for key in ("image", "build", "command", "extends")):
            layers = tuple(_layers(roots[0], at))
            found.append(ComposeService(name, at, (name, *_more_names(at)), layers))
    return tuple(found[:MOST_SERVICES])


def _layers(root: At, at: At) -> Iterator[At]:
    """The settings of a service and of those that it extends in the same file."""
    for _ in range(MOST_EXTENDED):
        yield at
        name = text_of(at.get("extends")) or text_of(at.get("extends", "service"))
        base = None if name is None or at.get("extends", "file") is not None else root.get("services", name)
        if base is None:
            return
        at = base


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


def hosts_of_compose(services: Sequence[ComposeService]) -> tuple[ComposeHost, ...]:
    """The networks of each service, and the GPUs that it reserves by their ids; services with copies are left out.

    Without `networks` a service is on the network `default`.
    """
    found = []
    for each in services:
        copies = number(each.get("deploy", "replicas")) or number(each.get("scale")) or 1
        if copies > 1 or _UNKNOWN_PARTS & {name for layer in each.layers for name, _ in layer.pairs()}:
            continue
        at = each.get("networks")
        listed = [] if at is None else [text_of(item) or "" for item in at.items()] or [name for name, _ in at.pairs()]
        networks = None if each.get("network_mode") is not None else frozenset(listed or ["default"])
        ids = next((ids for device in _devices(each) if (ids := device.get("device_ids")) is not None), None)
        devices = () if ids is None else tuple(text for item in ids.items() if (text := text_of(item)) is not None)
        is_literal = not any("$" in text for text in (*devices, *(networks or ())))
        if is_literal:
            place = at or each.at
            found.append(
                ComposeHost(each.name, each.names, networks, place.mark, devices, None if ids is None else ids.mark)
            )
    return tuple(found)


_UNKNOWN_PARTS = {"extra_hosts", "external_links", "links"}
"""Settings that add names which are not those of the services."""


def _devices(service: ComposeService) -> Iterator[At]:
    """The devices that a service reserves."""
    devices = service.get("deploy", "resources", "reservations", "devices")
    yield from devices.items() if devices is not None else ()


def run_of_compose(
    services: Sequence[ComposeService], text: str, file: str, version: Version, files: FileLookup = NO_FILES
) -> ImaginedRun:
    """What the services start; what joins the same master is one job.

    Args:
        files: the files beside the Compose file, for `env_file` and what `volumes` mounts.
    """
    manifest, budget = Manifest(text, file), Budget(MOST_STATEMENTS)
    found = ImaginedRun(allocation=Allocation(tuple(each.name for each in services), scheduler="Docker Compose"))
    launched: list[Launched] = []
    index = 0
    for service in services:
        copies = number(service.get("deploy", "replicas")) or number(service.get("scale")) or 1
        if copies > MOST_COPIES:
            found.left_out.append(f"service {service.name}: only {MOST_COPIES} of {copies} copies are simulated")
        for copy in range(min(copies, MOST_COPIES)):
            command = _command(service, index, manifest, _ComposeFiles(service, file, files), copy, copies)
            index += 1
            if command is None:
                continue
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


def _command(
    service: ComposeService, index: int, manifest: Manifest, files: _ComposeFiles, copy: int, copies: int
) -> PlacedCommand | None:
    """What a service executes; None where its image decides that."""
    argv: list[Value] = []
    inside = {}
    for key in ("entrypoint", "command"):
        at = service.get(key)
        if at is None:
            continue
        text = text_of(at)
        if text is not None:
            value = manifest.value(at)
            argv += [value.with_text(word) for word in _split(_interpolated(text))]
            continue
        for item in at.items():
            value = manifest.value(item)
            argv.append(value.with_text(_interpolated(value.text)))
            inside[argv[-1].text] = manifest.inside(item, Expansion(NOT_KNOWN))
    if not argv or (service.get("command") is None and argv[0].text.rpartition("/")[2] in SHELLS and len(argv) < 3):
        return None
    environ, is_open = _environ(service, manifest, files)
    host = HOST if service.is_on_host else service.name if copies == 1 else f"{service.name}-{copy + 1}"
    at = service.get("command") or service.get("entrypoint") or service.at
    is_alias = service.is_on_host or len(service.names) > 1 or copies > 1
    return PlacedCommand(
        place=Place(
            host,
            0 if service.is_on_host else index,
            gpus=_gpus(service),
            hostname=UNKNOWN if is_alias else None,
            unset=frozenset() if is_open else SET_BY_OPERATORS - environ.keys(),
        ),
        argv=tuple(argv),
        environ=environ,
        origin=manifest.origin(at),
        folder=text_of(service.get("working_dir")),
        allocation=Allocation((host,)),
        files=files,
        inside=inside,
    )


def _split(text: str) -> list[str]:
    """The words of a command, as Compose splits them: quotes only, no shell. Unpaired quotes end it."""
    try:
        return shlex.split(text)
    except ValueError:
        return []


@dataclass(frozen=True)
class _ComposeFiles:
    """What a service's folder mounts show of the files beside the Compose file, by their paths in the container."""

    service: ComposeService
    file: str
    files: FileLookup

    def script(self, path: str) -> StartedScript | None:
        return None

    def text(self, path: str) -> str | None:
        here = self._here(posixpath.normpath(path))
        return None if here is None else self.beside(here)

    def is_folder(self, path: str) -> bool:
        here = self._here(posixpath.normpath(path))
        return here is not None and self.files.is_folder(posixpath.join(posixpath.dirname(self.file), here))

    def beside(self, path: str) -> str | None:
        """The text of a file that the Compose file names."""
        return self.files.text(posixpath.normpath(posixpath.join(posixpath.dirname(self.file), path)))

    def _here(self, path: str) -> str | None:
        for source, target in self._mounts():
            if path == target or path.startswith(target.rstrip("/") + "/"):
                return posixpath.join(source, path[len(target) :].lstrip("/")) if path != target else source
        return None

    def _mounts(self) -> Iterator[tuple[str, str]]:
        """`./app:/app:ro`, `{type: bind, source: ./app, target: /app}`."""
        at = self.service.get("volumes")
        for item in at.items() if at is not None else ():
            source, _, rest = (text_of(item) or "").partition(":")
            target = rest.partition(":")[0]
            if text_of(item) is None:
                source, target = text_of(item.get("source")) or "", text_of(item.get("target")) or ""
            if source.startswith((".", "/")) and target.startswith("/"):
                yield source, posixpath.normpath(target)


def _interpolated(text: str) -> str:
    """Compose replaces variables of the machine that it runs on, which are not known; `$$` is a dollar sign."""
    return _INTERPOLATION.sub(lambda match: "$" if match[0] == "$$" else UNKNOWN, text)


def _environ(service: ComposeService, manifest: Manifest, files: _ComposeFiles) -> tuple[dict[str, Value], bool]:
    """The variables of a service, and whether a file that is not read may set more."""
    found: dict[str, Value] = {}
    is_open = False
    given = service.get("env_file")
    listed = [] if given is None else [given] if text_of(given) is not None else list(given.items())
    for item in listed:
        text = files.beside(text_of(item) or text_of(item.get("path")) or "")
        is_open |= text is None
        found |= {name: Value(value, (manifest.origin(item),)) for name, value in _rows_of_environ(text or "")}
    for at in reversed([at for each in service.layers if (at := each.get("environment")) is not None]):
        for name, value in at.pairs():
            found[name] = _value(manifest, value, text_of(value) or UNKNOWN)
        for item in at.items():
            name, sign, text = (text_of(item) or "").partition("=")
            found[name] = _value(manifest, item, text if sign else UNKNOWN)
    return found, is_open


def _rows_of_environ(text: str) -> Iterator[tuple[str, str]]:
    """`NAME=value` rows of an `env_file`, without comments, `export` and quotes."""
    for row in text.splitlines()[:MOST_ROWS]:
        match = re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)", row)
        if match:
            value = match[2].strip()
            is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            yield match[1], value[1:-1] if is_quoted else re.sub(r"\s#.*", "", value).rstrip()


def _value(manifest: Manifest, at: At, text: str) -> Value:
    return Value(_interpolated(text), (manifest.origin(at),))


def _gpus(service: ComposeService) -> int | None:
    """The GPUs that a service reserves."""
    for device in _devices(service):
        ids = list(device.items("device_ids"))
        return len(ids) or number(device.get("count"))
    environ = service.get("environment")
    visible = {} if environ is None else {name: text_of(value) or "" for name, value in environ.pairs()}
    listed = visible.get("NVIDIA_VISIBLE_DEVICES", "")
    return listed.count(",") + 1 if re.fullmatch(r"\d+(,\d+)*", listed) else None
