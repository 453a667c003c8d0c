"""The files that variables make NCCL and CUDA open: nccl.conf, topology and graph files, the pipe of the MPS daemon."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping

from ddpdoctor.facts.environ import ConfFile, NamedPath
from ddpdoctor.facts.variables import is_relevant
from ddpdoctor.system.machine import Root

__all__ = ["look"]

MAX_BYTES = 1023
"""setEnvFile truncates names and values to this length."""
OPENED = {
    "NCCL_CONF_FILE": "",
    "NCCL_TOPO_FILE": "",
    "NCCL_GRAPH_FILE": "",
    "CUDA_MPS_PIPE_DIRECTORY": "/control",
}
"""Variables, and the suffix that is appended to their value to get the path."""
_PCI = re.compile(r"<pci\s[^<>]*>")
_ATTRIBUTE = re.compile(r'\b(\w+)="([^"]*)"')


def look(root: Root, environ: Mapping[str, str]) -> tuple[tuple[ConfFile, ...], tuple[NamedPath, ...]]:
    """NCCL's files, highest precedence first, and the files that its settings name."""
    mine = environ.get("NCCL_CONF_FILE") or (f"{environ['HOME']}/.nccl.conf" if environ.get("HOME") else None)
    files = [_conf_file(root, path) for path in (mine, "/etc/nccl.conf") if path is not None]
    confs = tuple(file for file in files if file is not None)
    settings = {n: v for file in reversed(confs) for n, v in file.variables.items()} | dict(environ)
    return confs, tuple(
        _named(root, name, settings[name] + suffix) for name, suffix in OPENED.items() if settings.get(name)
    )


def _conf_file(root: Root, path: str) -> ConfFile | None:
    """The variables of a file as setEnvFile in NCCL's src/misc/param.cc reads them; None when it cannot be read."""
    if not os.path.isfile(root.at(path)):
        return None
    try:
        text = root.text(path)
    except OSError:
        return None
    from ddpdoctor.privacy.redaction import redact_variable  # imported only if there is such a file

    variables: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.removesuffix("\r").partition("=")
        if not equals or line.lstrip().startswith("#") or not is_relevant(name.removeprefix("export ").strip()):
            continue
        value = redact_variable(name, value[:MAX_BYTES])
        variables.setdefault(name[:MAX_BYTES], value)  # setenv(…, overwrite=0): the first one is kept
    return ConfFile(path, variables)


def _named(root: Root, name: str, path: str) -> NamedPath:
    bus_ids: tuple[str, ...] = ()
    if name == "NCCL_TOPO_FILE" and os.path.isfile(root.at(path)):
        text = root.line(path) or ""
        parts = (dict(_ATTRIBUTE.findall(tag)) for tag in _PCI.findall(text))
        # PCI class 03: display and 3D controllers, which include GPUs.
        bus_ids = tuple(p["busid"].lower() for p in parts if p.get("class", "").startswith("0x03") and "busid" in p)
    return NamedPath(name, path, root.exists(path), bus_ids, _is_answered(root.at(path)))


def _is_answered(path: str) -> bool | None:
    """Whether a process reads a named pipe: opening one without a reader fails. Nothing is written."""
    try:
        if not stat.S_ISFIFO(os.stat(path).st_mode):
            return None
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        return False if error.errno == errno.ENXIO else None
    return True
