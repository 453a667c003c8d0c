"""What Compose refuses in a file whose settings are all known, and what it replaces before a container sees it.

Source: the Compose specification, 05-services.md ("devices", "depends_on", "volumes") and 12-interpolation.md.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ddpdoctor.facts.refused import Refused, RefusedKind
from ddpdoctor.launch.manifests.yaml_nodes import At, text_of

__all__ = ["refused_services"]

_VARIABLE = re.compile(r"(?<!\$)(?:\$\$)*\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")


def refused_services(root: At) -> Iterator[Refused]:
    """Devices without what they need, names that the file does not have, and variables that Compose empties."""
    services = dict(root.pairs("services"))
    volumes = {name for name, _ in root.pairs("volumes")}
    networks = {name for name, _ in root.pairs("networks")} | {"default"}
    for service in services.values():
        for device in service.items("deploy", "resources", "reservations", "devices"):
            yield from _device(device)
        yield from _names(service, services.keys(), volumes, networks, has_more=root.get("include") is not None)
        yield from _emptied(service)


def _device(device: At) -> Iterator[Refused]:
    count, ids = device.get("count"), device.get("device_ids")
    if device.get("capabilities") is None:
        yield Refused(RefusedKind.VALUE, "the device", "capabilities", "[gpu]", device.mark)
    if count is not None and ids is not None:
        says = "a device has count or device_ids, not both"
        yield Refused(RefusedKind.VALUE, "the device", "count", "one of them", count.mark, "count", says=says)


def _names(
    service: At, services: Iterable[str], volumes: set[str], networks: set[str], *, has_more: bool
) -> Iterator[Refused]:
    if has_more:
        return
    known = set(services)
    depends = [*service.items("depends_on"), *(At(key) for key in _keys(service.get("depends_on")))]
    for at in depends:
        yield from _dangling("depends_on", at, known, "a service")
    for at in (*service.items("networks"), *(At(key) for key in _keys(service.get("networks")))):
        yield from _dangling("networks", at, networks, "a network")
    for at in service.items("volumes"):
        name = (text_of(at) or "").partition(":")[0]
        if ":" in (text_of(at) or "") and re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) and name not in volumes:
            yield from _dangling("volumes", at, volumes, "a volume")


def _keys(at: At | None) -> list[Any]:
    return [key for key, _ in at.node.value if key.id == "scalar"] if at is not None and at.node.id == "mapping" else []


def _dangling(owner: str, at: At, known: set[str], what: str) -> Iterator[Refused]:
    name = (text_of(at) or "").partition(":")[0]
    if name and name not in known and "$" not in name and name != "<<":
        near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
        yield Refused(RefusedKind.DANGLING, owner, name, near[0] if near else what, at.mark, name)


def _emptied(service: At) -> Iterator[Refused]:
    """`$NAME` in a command, where the service sets NAME: Compose replaces it with its own variable."""
    own = {name for name, _ in service.pairs("environment")}
    own |= {(text_of(item) or "").partition("=")[0] for item in service.items("environment")}
    for key in ("command", "entrypoint"):
        at = service.get(key)
        for each in () if at is None else (at, *service.items(key)):
            text = text_of(each) or ""
            found = next((m for m in _VARIABLE.finditer(text) if (m[1] or m[2]) in own), None)
            if found is not None:
                name = found[1] or found[2]
                yield Refused(RefusedKind.VALUE, key, name, f"$${name}", each.mark, f"${name}", says="interpolated")
