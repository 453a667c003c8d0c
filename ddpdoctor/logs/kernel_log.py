"""The kernel's log as a file (dmesg, journalctl, syslog): Xids with their age, their host, and the restarts since."""

from __future__ import annotations

from dataclasses import field, replace
from datetime import datetime

from ddpdoctor.facts.xids import Xid, xid_in
from ddpdoctor.late_pattern import pattern
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.logs.line_prefix import split_prefix

__all__ = ["KernelLog", "KernelTime", "time_of"]

WORDS = ("Xid (", "Linux version ", "-- Boot ", "-- Reboot --")
"""One of these is in every line that matters here."""

YEAR_SECONDS = 365 * 86400.0
MOST = 5000
"""So many Xids of one file are kept, the newest."""
STEP_BACK_SECONDS = 60.0
"""The kernel's own seconds run a little out of order; by more than this only when the machine was started again."""

_RESTART = pattern(r"^-- (?:Boot [0-9a-f]{32}|Reboot) --|(?:^|[\]:;>] ?)Linux version \d")
_SECONDS = pattern(r"^(?:<\d+>|\w+ *:\w+ *: )?\[\s*(\d+\.\d+)\]|^\d+,\d+,(\d+),[^;]*;")
_ISO = pattern(r"^\[?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d+))?\s?(Z|UTC|[+-]\d\d:?\d\d)?")
_UNIX = pattern(r"^(\d{9,11}\.\d+) ")
_DMESG = pattern(r"^\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) ([ \d]\d) (\d\d:\d\d:\d\d) (\d{4})\]")
_FULL = pattern(r"^[A-Z][a-z]{2} (\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) ")
_CLASSIC = pattern(r"^([A-Z][a-z]{2}) ([ \d]\d) (\d\d:\d\d:\d\d)(?:\.\d+)? ")
_HOST = pattern(r"(?:^|[\d\]Z]|UTC) (?P<host>[A-Za-z0-9][\w.-]*) kernel(?:\[\d+\])?: ")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
LEAP_YEAR = 2000
"""Replaces the year, which classic syslog lines lack."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """A time in seconds, on one of three clocks: since the machine started, of the day, of a day in an unknown year."""

    seconds: float
    clock: str

    def since(self, other: KernelTime) -> float | None:
        """Seconds from `other` to this; None on different clocks."""
        if self.clock != other.clock:
            return None
        gone = self.seconds - other.seconds
        return gone + YEAR_SECONDS if gone < -YEAR_SECONDS / 2 and self.clock == "yearless" else max(0.0, gone)

    def is_far_before(self, other: KernelTime) -> bool:
        """The seconds since the start begin at 0 again: the machine was started again in between."""
        return self.clock == other.clock == "start" and self.seconds + STEP_BACK_SECONDS < other.seconds


@dataclass(slots=True)
class KernelLog:
    """The Xids of one file: give the lines with an Xid or a restart to `take`, and the last line to `finish`."""

    _found: list[tuple[Xid, KernelTime | None, int]] = field(default_factory=list)
    _restarts: int = 0
    _last: KernelTime | None = None

    def take(self, line: str, number: int) -> None:
        """A line, from the beginning of the file on, without colours but with its times; most lines are none of its business."""
        if not any(word in line for word in WORDS):
            return
        stamp = time_of(line)
        if _RESTART.search(line) or (stamp is not None and self._last is not None and stamp.is_far_before(self._last)):
            self._restarts += 1
        self._last = stamp or self._last
        xid = xid_in(line)
        if xid is not None:
            host = _HOST.search(line)
            named = host["host"].partition(".")[0] if host else split_prefix(line).who.host
            xid = replace(xid, line=number, host=named)
            self._found.append((xid, stamp, self._restarts))
            if len(self._found) > MOST:
                self._found.pop(0)

    def finish(self, *last_lines: str) -> tuple[Xid, ...]:
        """The Xids, oldest first, with their ages before the last line of the file; of several the one of the same clock."""
        stamps = [stamp for stamp in map(time_of, last_lines) if stamp is not None]
        end = next((s for s in stamps if self._last is not None and s.clock == self._last.clock), self._last)
        return tuple(
            replace(xid, age_seconds=_age(stamp, end, self._restarts - restarts), restarts=self._restarts - restarts)
            for xid, stamp, restarts in self._found
        )


def _age(stamp: KernelTime | None, end: KernelTime | None, restarts: int) -> float | None:
    """None across a restart when only the seconds since the start are known."""
    if stamp is None or end is None or (restarts and stamp.clock == "start"):
        return None
    return end.since(stamp)


def time_of(line: str) -> KernelTime | None:
    """The time at the beginning of a line, as dmesg, journalctl and syslog write it; None without one."""
    found = _SECONDS.match(line)
    if found is not None:
        return KernelTime(float(found[1]) if found[1] else int(found[2][:18]) / 1e6, "start")
    try:
        if (found := _ISO.match(line)) is not None:
            return KernelTime(_wall(f"{found[1]}T{found[2]}", found[4]), "wall")
        if (found := _UNIX.match(line)) is not None:
            return KernelTime(float(found[1]), "wall")
        if (found := _FULL.match(line)) is not None:
            return KernelTime(_wall(f"{found[1]}T{found[2]}", None), "wall")
        if (found := _DMESG.match(line)) is not None and found[1] in MONTHS:
            month = MONTHS.index(found[1]) + 1
            return KernelTime(_wall(f"{found[4]}-{month:02}-{int(found[2]):02}T{found[3]}", None), "wall")
        if (found := _CLASSIC.match(line)) is not None and found[1] in MONTHS:
            month = MONTHS.index(found[1]) + 1
            return KernelTime(_wall(f"{LEAP_YEAR}-{month:02}-{int(found[2]):02}T{found[3]}", None), "yearless")
    except ValueError:
        return None  # no such day or hour
    return None


def _wall(text: str, zone: str | None) -> float:
    """Seconds of a date and time; without a zone all lines of a file are taken to have the same."""
    offset = 0.0
    if zone and zone[0] in "+-":
        sign = -1 if zone[0] == "-" else 1
        offset = sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1)).total_seconds() - offset
