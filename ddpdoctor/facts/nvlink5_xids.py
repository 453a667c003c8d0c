"""NVIDIA's table of the NVLink 5 Xids, 144 to 150: what the registers in the kernel's line mean, as data.

`149, NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x021425c6 0x00000000 …)` is the unit, the severity, the link, IntrInfo and the error
status. Bits 25 to 20 of IntrInfo are the reason of a lost link. Its low bits are the unit: ten of them before the driver R575
(V1), seven since (V2); for RLW_RXPIPE the next bit asks for a second action.

Source: docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, "XID 144-150 Decode", 95 rules, as of November 2026.
"""

from __future__ import annotations

from enum import Enum
from functools import cache

from ddpdoctor.late_pattern import pattern
from ddpdoctor.light_dataclass import dataclass

__all__ = ["NvlinkAction", "NvlinkFault", "nvlink_fault", "rules"]


class NvlinkAction(Enum):
    """NVIDIA's resolution bucket of a rule."""

    RESET = "RESET_GPU"
    IGNORE = "IGNORE"
    WITH_154 = "XID_154_EVAL"
    UNKNOWN = "not in NVIDIA's table"


@dataclass(frozen=True, slots=True)
class NvlinkFault:
    """One line of an NVLink 5 Xid: its unit, its severity and link as printed, and the action of NVIDIA's table."""

    unit: str
    is_fatal: bool
    link: int | None
    action: NvlinkAction


@dataclass(frozen=True, slots=True)
class NvlinkXidRule:
    """One rule. `status` is None if it holds for every error status; `second` is the action of the second pattern."""

    code: int
    units: tuple[str, ...]
    reason: int
    status: int | None
    action: NvlinkAction
    second: NvlinkAction | None = None


_TABLE = """\
144 SAW_MVB            0 I 1 4 8 20
144 SAW_MVB            0 R 2 10
145 RLW_CTRL           0 I 80000000
145 RLW_REMAP          0 E 1 2 4 8 10 20
145 RLW_REMAP          0 R 40 80
145 RLW_REMAP          0 I 100 200 80000000
145 RLW_RSPCOL         0 I 1 80000000
145 RLW_RSPCOL         0 R 2
145 RLW_RXPIPE         0 IR 1 2 4
145 RLW_RXPIPE         0 I 8 80000000
145 RLW_SRC_TRACK      0 R 1 10 20
145 RLW_SRC_TRACK      0 I 2 80000000
145 RLW_SRC_TRACK      0 E 4 8
145 RLW_TAGSTATE       0 I 1 10000 80000000
145 RLW_TAGSTATE       0 R 2 20000 100000
146 TLW_CTRL           0 I 1 2 80000000
146 TLW_CTRL           0 R 4
146 TLW_RX/TLW_RX_PIPE0 0 I 1 2 80000000
146 TLW_RX/TLW_RX_PIPE0 0 R 4
146 TLW_RX/TLW_RX_PIPE1 0 I 1 2 80000000
146 TLW_RX/TLW_RX_PIPE1 0 R 4
146 TLW_TX/TLW_TX_PIPE0 0 I 1 2 80000000
146 TLW_TX/TLW_TX_PIPE0 0 R 4
146 TLW_TX/TLW_TX_PIPE1 0 I 1 2 80000000
146 TLW_TX/TLW_TX_PIPE1 0 R 4
147 TREX               0 I 1 80000000
148 NVLPW_CTRL/NVLPW   0 I 80000000
149 NETIR/NETIR_INT    0 R *
149 NETIR_LINK_EVT/NETIR_LINK_DOWN 0,1,2,4,a,f,10,11,12,15,16,20,21,22,23,24,25,2a,2b R *
149 NETIR_LINK_EVT/NETIR_LINK_DOWN 26,28 I *
149 NETIR_BER_EVENT    0 I 0 1 2 3
149 NETIR_MFDE_EVENT   0 R 1 4 5 7
149 NETIR_MFDE_EVENT   0 I 3
150 MSE_DEGRADED       0 R *
150 MSE_WATCHDOG       0 R 0
"""
"""Xid, unit (V1/V2), reasons, action (Reset, Ignore, Evaluate with Xid 154; a second letter is the second action), error statuses
in hexadecimal (`*` any)."""
_ACTIONS = {"R": NvlinkAction.RESET, "I": NvlinkAction.IGNORE, "E": NvlinkAction.WITH_154}
_LINE = pattern(
    r"^\s*(?P<unit>[A-Z][A-Za-z0-9_]+(?: [Dd]egraded)?)\s+(?P<severity>Fatal|Non-?fatal|Link Fatal)\b"
    r"[^(\n\[]{0,60}?(?:Link\s*(?P<link>-?\d+))?\s*[(\[](?P<info>0x[0-9a-fA-F]{1,8})(?:[ ,]+(?P<status>0x[0-9a-fA-F]{1,8}))?"
)
_SECOND_V1, _SECOND_V2 = 1 << 10, 1 << 7
_RXPIPE_V1 = 0b0011000010


@cache
def rules() -> tuple[NvlinkXidRule, ...]:
    """All rules, in NVIDIA's order of units."""
    return tuple(rule for row in _TABLE.splitlines() for rule in _rules_of(*row.split(maxsplit=4)))


def _rules_of(code: str, units: str, reasons: str, actions: str, statuses: str) -> list[NvlinkXidRule]:
    second = _ACTIONS[actions[1]] if len(actions) > 1 else None
    return [
        NvlinkXidRule(
            int(code),
            tuple(units.split("/")),
            int(reason, 16),
            None if s == "*" else int(s, 16),
            _ACTIONS[actions[0]],
            second,
        )
        for reason in reasons.split(",")
        for s in statuses.split()
    ]


def nvlink_fault(code: int, text: str) -> NvlinkFault | None:
    """The fault in the text after the number of an NVLink 5 Xid; None if it has another form."""
    matched = _LINE.match(text)
    if matched is None:
        return None
    unit = matched["unit"].upper().replace(" ", "_")
    info, status = int(matched["info"], 16), int(matched["status"] or "0", 16)
    link = int(matched["link"]) if matched["link"] else None
    return NvlinkFault(matched["unit"], "on" not in matched["severity"], link, _action(code, unit, info, status))


def _action(code: int, unit: str, info: int, status: int) -> NvlinkAction:
    reason = info >> 20 & 0x3F
    for rule in rules():
        if rule.code == code and unit in rule.units and rule.reason == reason and rule.status in (None, status):
            is_v1 = info & 0x3FF == _RXPIPE_V1
            asks = bool(info & (_SECOND_V1 if is_v1 else _SECOND_V2))
            return rule.second if rule.second is not None and asks else rule.action
    return NvlinkAction.UNKNOWN
