"""`ibstat`, `ibstatus` and `ibv_devinfo`: the RDMA adapters of a machine and the state of their ports."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.tool_output.record import Fields, Hca, Line, Record, Said, decimal

__all__ = ["read_ibstat", "read_ibstatus", "read_ibv_devinfo"]

_STATES = {
    "active": "ACTIVE",
    "down": "DOWN",
    "initializing": "INIT",
    "init": "INIT",
    "initialize": "INIT",
    "armed": "ARMED",
    "port_active": "ACTIVE",
    "port_down": "DOWN",
    "port_init": "INIT",
    "port_armed": "ARMED",
}
_CA = re.compile(r"\s*CA '(\w{1,32})'")
_PORT = re.compile(r"\s*Port (\d{1,3}):\s*$")
_PAIR = re.compile(r"\s*([A-Za-z_](?:[\w \[\].]{0,39}[\w\[\].])?)\s*:\s+(\S(?:.{0,119}\S)?)\s*$")
_STATUS = re.compile(r"\s*Infiniband device '(\w{1,32})' port (\d{1,3}) status")
_HCA = re.compile(r"\s*hca_id:\s*(\S{1,32})")
_DEVINFO_PORT = re.compile(r"\s*port:\s*(\d{1,3})\s*$")
_WIDTH = re.compile(r"(\d{1,2})X")
_SPEED = re.compile(r"([\d.]{1,8}) Gbps")
_RATE = re.compile(r"([\d.]{1,8}) Gb/sec(?: \((\d{1,2})X)?")


def read_ibstat(lines: Sequence[Line]) -> Record:
    """The record of `ibstat`."""
    record, hca, port = Record("ibstat"), None, None
    for number, line in lines:
        begins, numbered = _CA.match(line), _PORT.match(line)
        if begins is not None:
            hca, port = record.hcas.setdefault(begins[1], Hca(number)), None
        elif hca is not None and numbered is not None:
            port = hca.ports.setdefault(int(numbered[1]), {})
        elif hca is not None and (pair := _PAIR.match(line)) is not None:
            _ibstat_value(hca, port, pair[1].lower(), pair[2], number)
    record.about = _about(record)
    return record


def _ibstat_value(hca: Hca, port: Fields | None, name: str, text: str, number: int) -> None:
    if port is None:
        field = {"ca type": "kind", "firmware version": "firmware"}.get(name)
        if field is not None:
            hca.fields[field] = Said(text, number)
    elif name == "state":
        _state(port, text, number)
    elif name == "physical state":
        port["physical_state"] = Said(text, number)
    elif name == "rate" and (rate := decimal(text)) is not None:
        port["rate_gbit_per_s"] = Said(rate, number)
    elif name == "link layer":
        port["link_layer"] = Said(text, number)


def read_ibstatus(lines: Sequence[Line]) -> Record:
    """The record of `ibstatus`."""
    record, port = Record("ibstatus"), None
    for number, line in lines:
        begins = _STATUS.match(line)
        pair = _PAIR.match(line)
        if begins is not None:
            port = record.hcas.setdefault(begins[1], Hca(number)).ports.setdefault(int(begins[2]), {})
        elif port is not None and pair is not None:
            name, text = pair[1].lower(), pair[2]
            rate = _RATE.match(text)
            if name == "state":
                _state(port, text.partition(":")[2], number)
            elif name == "phys state":
                port["physical_state"] = Said(text.partition(":")[2].strip(), number)
            elif name == "rate" and rate is not None and (speed := decimal(rate[1])) is not None:
                port["rate_gbit_per_s"] = Said(speed, number)
                if rate[2]:
                    port["width"] = Said(int(rate[2]), number)
            elif name == "link_layer":
                port["link_layer"] = Said(text, number)
    record.about = _about(record)
    return record


def read_ibv_devinfo(lines: Sequence[Line]) -> Record:
    """The record of `ibv_devinfo`, with or without `-v`."""
    record, hca, port = Record("ibv_devinfo"), None, None
    for number, line in lines:
        begins, numbered, pair = _HCA.match(line), _DEVINFO_PORT.match(line), _PAIR.match(line)
        if begins is not None:
            hca, port = record.hcas.setdefault(begins[1], Hca(number)), None
        elif hca is not None and numbered is not None:
            port = hca.ports.setdefault(int(numbered[1]), {})
        elif hca is not None and pair is not None:
            _devinfo_value(hca, port, pair[1].lower(), pair[2], number)
    for each in record.hcas.values():
        for fields in each.ports.values():
            _rate(fields)
    record.about = _about(record)
    return record


def _devinfo_value(hca: Hca, port: Fields | None, name: str, text: str, number: int) -> None:
    width, speed = _WIDTH.match(text), _SPEED.match(text)
    if port is None:
        field = {"vendor_part_id": None, "fw_ver": "firmware", "vendor_id": None, "board_id": "kind"}.get(name)
        if field is not None:
            hca.fields[field] = Said(text, number)
    elif name == "state":
        _state(port, text.partition(" ")[0], number)
    elif name == "phys_state":
        port["physical_state"] = Said(text.partition(" ")[0], number)
    elif name == "link_layer":
        port["link_layer"] = Said(text, number)
    elif name == "active_width" and width is not None:
        port["width"] = Said(int(width[1]), number)
    elif name == "active_speed" and speed is not None:
        port["lane_gbit_per_s"] = Said(speed[1], number)


def _rate(port: Fields) -> None:
    """The rate is the speed of one lane times the lanes (ibv_devinfo -v)."""
    lane = port.pop("lane_gbit_per_s", None)
    rate = decimal(lane.value) if lane is not None else None
    if lane is not None and rate is not None and "width" in port:
        port["rate_gbit_per_s"] = Said(rate * int(port["width"].value), lane.line)


def _state(port: Fields, text: str, number: int) -> None:
    state = _STATES.get(text.strip().lower())
    if state is not None:
        port["state"] = Said(state, number)


def _about(record: Record) -> str:
    ports = sum(len(hca.ports) for hca in record.hcas.values())
    return f"{ports} RDMA port{'' if ports == 1 else 's'}"
