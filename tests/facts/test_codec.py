"""The codec: what is written is read back, and a wrong file is told where it is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.facts.codec import FactsError, decode, encode
from ddpdoctor.facts.device import Device
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.net import Address, Interface, Net
from ddpdoctor.facts.record import SCHEMA, Facts


def _facts(**sections: Any) -> Facts:
    return Facts(schema=SCHEMA, collected_at="2026-11-21T00:00:00Z", hostname="node-01", **sections)


def test_what_is_written_is_read_back() -> None:
    net = Net(hostname="n", interfaces=(Interface("eth0", mtu=9000, addresses=(Address("10.0.0.1", 24, "ipv4"),)),))
    facts = _facts(net=net, gaps=(Gap("gpu", "no driver", Why.NOT_HERE),))
    assert decode(Facts, json.loads(json.dumps(encode(facts)))) == facts


OF_64_BITS = st.integers(-(2**63), 2**63 - 1)


@given(
    st.builds(
        Device,
        index=OF_64_BITS,
        uuid=st.none() | st.text(),
        memory_total_bytes=st.none() | OF_64_BITS,
    )
)
def test_any_device_survives_the_round_trip(device: Device) -> None:
    assert decode(Device, json.loads(json.dumps(encode(device)))) == device


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"net": {"interfaces": [{"name": 3}]}}, "$.net.interfaces[0].name: expected str, got int 3"),
        ({"net": {"interfaces": [{}]}}, "$.net.interfaces[0].name: missing"),
        ({"net": []}, "$.net: expected dict, got list"),
        ({"gaps": [{"path": "x", "reason": "y", "why": "bored"}]}, "expected one of not_here, needs_root, unanswered"),
        ({"net": {"colour": 1}}, "$.net.colour: unknown field"),
        ({"gpu": {"devices": [{"index": True}]}}, "$.gpu.devices[0].index: expected int, got bool"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(patch: dict[str, Any], message: str) -> None:
    with pytest.raises(FactsError) as error:
        decode(Facts, encode(_facts()) | patch)
    assert message in str(error.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_random_json_is_refused_never_crashes(value: Any) -> None:
    with pytest.raises(FactsError):
        decode(Facts, value)
