"""The records about one machine as facts, with the place of every value."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from ddpdoctor.facts.codec import decode
from ddpdoctor.facts.device import Device
from ddpdoctor.facts.nvlink_models import nvlink_model
from ddpdoctor.facts.partial import Reads, guarded
from ddpdoctor.facts.record import SCHEMA, SECTIONS, Facts
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.tool_output.record import NOT_IN_FILES, Card, Fields, Hca, Record, Said

__all__ = ["FilePlace", "Sourced", "ToolFacts", "facts_of"]

DEVICE_FIELDS = tuple(f.name for f in dataclasses.fields(Device) if f.name not in ("index", "absent"))


class FilePlace(NamedTuple):
    """The file and the line that show a value."""

    file: str
    line: int


class Sourced(NamedTuple):
    """A record and the file that holds it."""

    record: Record
    file: str


@dataclass
class ToolFacts:
    """What files say about one machine. `facts` are plain, `places` is where each path of them is shown.

    `names` are the places of things that evidence mentions by name: `mlx5_3:1` (a port), `2-5` (a pair of GPUs), `ib0`.
    """

    host: str
    facts: Facts
    places: dict[str, FilePlace] = field(default_factory=dict)
    names: dict[str, FilePlace] = field(default_factory=dict)
    unnumbered: dict[int, str] = field(default_factory=dict)
    """The bus ids of GPUs whose index no file shows, by the number that stands for it in the facts."""
    records: tuple[Sourced, ...] = ()

    def guarded(self, reads: Reads) -> Facts:
        """The facts in which a rule that reads an unknown field is skipped."""
        told = {prefix for path in self.places for prefix in _prefixes(path)}
        sections: dict[str, Any] = {
            name: guarded(section, name, told, reads)
            for name in SECTIONS
            if name not in ("environ", "launch") and (section := getattr(self.facts, name)) is not None
        }
        return dataclasses.replace(self.facts, **sections)

    def place_of(self, path: str, seen: str) -> FilePlace | None:
        """The line behind a piece of evidence: of its path, of what it names, or of the nearest record above the path."""
        if path in self.places and "[" in path:
            return self.places[path]
        named = [name for name in self.names if name in seen]
        if named:
            return self.names[max(named, key=len)]
        while path:
            if path in self.places:
                return self.places[path]
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return None


def _prefixes(path: str) -> Iterable[str]:
    """The path and all paths above it, such as `gpu.devices` for `gpu.devices[3].name`."""
    for end, character in enumerate(path):
        if character in ".[" and end:
            yield path[:end]
    yield path


def facts_of(host: str, records: Sequence[Sourced]) -> ToolFacts:
    """The facts that the records of one machine add up to. Of a value that several files show, the first one counts.

    Raises:
        FactsError: a reader made a value of the wrong type.
    """
    builder = _Builder()
    for sourced in records:
        builder.add(sourced)
    return builder.built(host, tuple(records))


class _Builder:
    """Collects the values of one machine as the JSON of facts."""

    def __init__(self) -> None:
        self._tree: dict[str, Any] = {}
        self._places: dict[str, FilePlace] = {}
        self._names: dict[str, FilePlace] = {}
        self._cards: list[tuple[Card, str]] = []
        self._hcas: dict[str, tuple[Hca, str]] = {}
        self._nics: dict[str, tuple[Fields, str]] = {}
        self._interfaces: dict[str, tuple[Fields, str]] = {}
        self._pairs: dict[tuple[int, int], tuple[Fields, str]] = {}
        self._variables: dict[str, tuple[Said, str]] = {}
        self._unnumbered: dict[int, str] = {}
        self._has_order = False

    def add(self, sourced: Sourced) -> None:
        """Add one record."""
        record, file = sourced
        if record.refusal is not None:
            return
        for path, said in record.values.items():
            self._put(path, said, file)
        self._has_order = self._has_order or record.lists_in_order
        for card in record.cards:
            self._add_card(card, file)
        for name, hca in record.hcas.items():
            known, _ = self._hcas.setdefault(name, (Hca(hca.line), file))
            _fill(known.fields, hca.fields)
            for port, fields in hca.ports.items():
                _fill(known.ports.setdefault(port, {}), fields)
        for mine, theirs in ((self._nics, record.nics), (self._interfaces, record.interfaces)):
            for name, fields in theirs.items():
                _fill(mine.setdefault(name, ({}, file))[0], fields)
        for pair, fields in record.pairs.items():
            _fill(self._pairs.setdefault(pair, ({}, file))[0], fields)
        for name, said in record.variables.items():
            self._variables.setdefault(name, (said, file))

    def _add_card(self, card: Card, file: str) -> None:
        known = next((each for each, _ in self._cards if _is_same(each, card)), None)
        if known is None:
            known = Card(card.line, card.index, card.uuid, card.bus_id)
            self._cards.append((known, file))
        known.index = card.index if known.index is None else known.index
        known.uuid, known.bus_id = known.uuid or card.uuid, known.bus_id or card.bus_id
        before = set(known.device) | set(known.node)
        _fill(known.device, card.device)
        _fill(known.node, card.node)
        for name, code in card.absent.items():
            known.absent.setdefault(name, code)
        for link, fields in card.links.items():
            _fill(known.links.setdefault(link, {}), fields)
        for name in {*card.device, *card.node} - before:
            self._places[f"{id(known)}.{name}"] = FilePlace(file, {**card.device, **card.node}[name].line)
        for link in card.links:
            self._places.setdefault(f"{id(known)}[{link}]", FilePlace(file, next(iter(card.links[link].values())).line))
        self._places.setdefault(f"{id(known)}", FilePlace(file, card.line))

    def _put(self, path: str, said: Said, file: str) -> None:
        place = FilePlace(file, said.line)
        if said.value is None or path in self._places:
            self._places.setdefault(path, place)
            return
        *above, last = path.split(".")
        tree = self._tree
        for name in above:
            tree = tree.setdefault(name, {})
        tree[last] = said.value
        self._place(path, said.value, place)

    def _place(self, path: str, value: Any, place: FilePlace) -> None:
        """Record the place of a value and of everything in it."""
        place = self._places.setdefault(path, place)
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            self._place(f"{path}[{key}]" if isinstance(value, list) else f"{path}.{key}", inner, place)

    def built(self, host: str, records: tuple[Sourced, ...]) -> ToolFacts:
        """The facts of everything that was added."""
        if self._cards:
            self._build_cards()
        self._build_adapters()
        self._name_measured_gpus()
        tree = {name: section for name, section in self._tree.items() if name in SECTIONS}
        facts = decode(Facts, {"schema": SCHEMA, "collected_at": "", "hostname": host, **tree})
        places = {path: place for path, place in self._places.items() if not path[0].isdigit()}
        return ToolFacts(host, facts, places, self._names, self._unnumbered, records)

    def _name_measured_gpus(self) -> None:
        """The model of the GPUs that were measured, where another file of this machine shows that all are of one model."""
        probe, devices = self._tree.get("probe"), self._tree.get("gpu", {}).get("devices", ())
        models = {device.get("name") for device in devices}
        if (
            probe
            and "device" not in probe
            and len(models) == 1
            and len(devices) >= probe.get("world_size", len(devices) + 1)
        ):
            probe["device"] = models.pop()
            self._places["probe.device"] = self._places["gpu.devices[0]"]

    def _build_cards(self) -> None:
        cards = [card for card, _ in self._cards]
        indices = _indices(cards)
        if not self._has_order:
            self._unnumbered = {
                i: c.bus_id for i, c in zip(indices, cards, strict=True) if c.index is None and c.bus_id
            }
        ordered = sorted(zip(indices, self._cards, strict=True), key=lambda each: each[0])
        devices, nodes = self._tree.setdefault("gpu", {}), self._tree.setdefault("topo", {})
        devices["is_snapshot"] = True
        devices["devices"] = [self._device(index, card) for index, (card, _) in ordered]
        told = [(index, card) for index, (card, _) in ordered if card.node or card.links or card.index is not None]
        nodes["gpus"] = [self._node(index, card) for index, card in told]
        self._places["gpu.is_snapshot"] = self._places["gpu.devices"] = self._places["topo.gpus"] = FilePlace(
            ordered[0][1][1], ordered[0][1][0].line
        )
        self._places.setdefault("gpu.nvml_error", self._places["gpu.devices"])
        if self._pairs:
            nodes["pairs"] = [
                {"a": a, "b": b, **{name: said.value for name, said in fields.items()}}
                for (a, b), (fields, _) in sorted(self._pairs.items())
            ]
            first_fields, first_file = next(iter(self._pairs.values()))
            self._places["topo.pairs"] = FilePlace(first_file, min((s.line for s in first_fields.values()), default=1))
            for i, ((a, b), (fields, file)) in enumerate(sorted(self._pairs.items())):
                for name, said in {"a": Said(a, 0), "b": Said(b, 0), **fields}.items():
                    line = said.line or next((each.line for each in fields.values()), 1)
                    self._places[f"topo.pairs[{i}].{name}"] = FilePlace(file, line)
                    self._names.setdefault(f"{a}-{b}", FilePlace(file, line))

    def _device(self, index: int, card: Card) -> dict[str, Any]:
        own = {name: said.value for name, said in card.device.items() if name in DEVICE_FIELDS}
        own |= {name: value for name in ("uuid", "bus_id") if (value := getattr(card, name)) is not None}
        absent = {name: NOT_IN_FILES for name in DEVICE_FIELDS if name not in own}
        path = f"gpu.devices[{index}]"
        whole = self._places[f"{id(card)}"]
        self._places[path] = self._places[f"{path}.index"] = self._places[f"{path}.absent"] = whole
        for name in own:
            self._places[f"{path}.{name}"] = self._places.get(f"{id(card)}.{name}", whole)
        for name in card.absent:
            if name not in own:
                self._places.setdefault(f"{path}.{name}", whole)
        return {"index": index, **own, "absent": {**absent, **{n: c for n, c in card.absent.items() if n not in own}}}

    def _node(self, index: int, card: Card) -> dict[str, Any]:
        own: dict[str, Any] = {name: said.value for name, said in card.node.items() if name != "all_links_down"}
        name = card.device.get("name")
        own |= {"name": name.value} if name is not None else {}
        own |= {"bus_id": card.bus_id} if card.bus_id is not None else {}
        handle = card.absent.get("handle")
        own |= {"error": handle} if handle is not None else {}
        links = [
            {"index": link, **{n: said.value for n, said in fields.items()}}
            for link, fields in sorted(card.links.items())
            if "is_active" in fields
        ] or _all_down(card)
        counted = _counted(card)
        own |= {"link_errors": counted} if counted else {}
        path, whole = f"topo.gpus[{index}]", self._places[f"{id(card)}"]
        self._places[path] = self._places[f"{path}.index"] = self._places[f"{path}.error"] = whole
        for field_name in own:
            self._places[f"{path}.{field_name}"] = self._places.get(f"{id(card)}.{field_name}", whole)
        for bridge in own.get("acs_bridges", ()):
            self._names[bridge] = self._places[f"{path}.acs_bridges"]
        if "fabric" in own:
            for each in own["fabric"]:
                self._places[f"{path}.fabric.{each}"] = self._places[f"{path}.fabric"]
        if links:
            own.pop("links", None)
            own["links"] = links
            down = next((link["index"] for link in links if not link["is_active"]), links[0]["index"])
            said = self._places.get(f"{id(card)}.all_links_down", whole)
            self._places[f"{path}.links"] = self._places.get(f"{id(card)}[{down}]", said)
        for errors in counted:
            for counter in errors:
                told = card.links[errors["index"]].get(f"{counter}_errors")
                at = whole if told is None else FilePlace(whole.file, told.line)
                self._places[f"{path}.link_errors[{errors['index']}].{counter}"] = at
        for link in links:
            place = self._places.get(f"{id(card)}[{link['index']}]", whole)
            for each in link:
                self._places[f"{path}.links[{link['index']}].{each}"] = place
        return {"index": index, **own}

    def _build_adapters(self) -> None:
        net: dict[str, Any] = self._tree.setdefault("net", {}) if self._hcas or self._interfaces else {}
        if self._hcas:
            net["rdma"] = {"devices": [self._hca(i, name) for i, name in enumerate(self._hcas)]}
        if self._interfaces:
            net["interfaces"] = [
                self._entry("net.interfaces", i, *self._interfaces[n]) for i, n in enumerate(self._interfaces)
            ]
        if self._nics:
            self._tree.setdefault("topo", {})["nics"] = [
                self._entry("topo.nics", i, *self._nics[name]) for i, name in enumerate(self._nics)
            ]
        if self._variables:
            self._tree["environ"] = {"variables": {name: said.value for name, (said, _) in self._variables.items()}}
            for name, (said, file) in self._variables.items():
                self._places[f"environ.variables.{name}"] = FilePlace(file, said.line)

    def _entry(self, path: str, index: int, fields: Fields, file: str) -> dict[str, Any]:
        for name, said in fields.items():
            self._places[f"{path}[{index}].{name}"] = FilePlace(file, said.line)
            if name == "addresses":
                for i, address in enumerate(said.value):
                    for each in address:
                        self._places[f"{path}[{index}].addresses[{i}].{each}"] = FilePlace(file, said.line)
        if "name" in fields:
            self._names.setdefault(fields["name"].value, FilePlace(file, fields["name"].line))
        return {name: said.value for name, said in fields.items()}

    def _hca(self, index: int, name: str) -> dict[str, Any]:
        hca, file = self._hcas[name]
        path = f"net.rdma.devices[{index}]"
        self._places[f"{path}.name"] = FilePlace(file, hca.line)
        for each, said in hca.fields.items():
            self._places[f"{path}.{each}"] = FilePlace(file, said.line)
        ports = []
        for i, (number, fields) in enumerate(sorted(hca.ports.items())):
            at = next((fields[n].line for n in ("state", "rate_gbit_per_s") if n in fields), hca.line)
            self._names[f"{name}:{number}"] = FilePlace(file, at)
            for each, said in {"number": Said(number, at), **fields}.items():
                self._places[f"{path}.ports[{i}].{each}"] = FilePlace(file, said.line)
            ports.append({"number": number, **{n: said.value for n, said in fields.items()}})
        return {"name": name, **{n: said.value for n, said in hca.fields.items()}, "ports": ports}


def _fill(mine: Fields, theirs: Mapping[str, Said]) -> None:
    for name, said in theirs.items():
        mine.setdefault(name, said)


def _is_same(a: Card, b: Card) -> bool:
    """Whether two records are about one GPU: by the first identity that both have."""
    for name in ("uuid", "bus_id", "index"):
        mine, theirs = getattr(a, name), getattr(b, name)
        if mine is not None and theirs is not None:
            return bool(mine == theirs)
    return False


def _indices(cards: Sequence[Card]) -> list[int]:
    """The NVML index of each GPU: as a tool printed it, otherwise by its minor number, otherwise the next free one."""
    taken = {card.index for card in cards if card.index is not None}
    indices = []
    for card in cards:
        minor = card.device.get("minor")
        index = card.index
        if index is None and minor is not None and minor.value not in taken:
            index = minor.value
        if index is None:
            index = next(i for i in range(len(cards) + len(taken) + 1) if i not in taken)
        taken.add(index)
        indices.append(index)
    return indices


def _all_down(card: Card) -> list[dict[str, Any]]:
    """The links of a GPU of which nvidia-smi says that all are inactive: as many as its model has on its board."""
    name = card.device.get("name")
    model = nvlink_model(name.value) if name is not None else None
    if "all_links_down" not in card.node or model is None or model.bridge_links or model.may_be_alone:
        return []
    return [{"index": link, "is_active": False} for link in range(model.links)]


def _counted(card: Card) -> list[dict[str, Any]]:
    """The error counters of the links of a GPU, of those that have any."""
    found = []
    for link, fields in sorted(card.links.items()):
        errors = {
            name: fields[f"{name}_errors"].value for name in ("replay", "recovery", "crc") if f"{name}_errors" in fields
        }
        if errors:
            found.append({"index": link, **errors})
    return found
