"""Who is missing, as the others tell it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.probe import hosts
from ddpdoctor.probe.missing_ranks import cut_off_host

PLACE = cast(Any, SimpleNamespace(rank=0))


def _closed(one: str, other: str) -> Observation:
    return Observation(Kind.LINK_BLOCKED, f"{other} to {one}", host=one, peer=other, node_rank=int(one[-1]))


@pytest.mark.parametrize(
    ("links", "unreported", "lost"),
    [
        (["n2-n0", "n2-n1"], {"n2": [4, 5]}, ("n2", (4, 5), 2)),
        (["n2-n0"], {"n2": [2]}, ("n2", (2,), 2)),
        (["n2-n0", "n2-n1"], {}, None),
        (["n2-n0", "n2-n1"], {"n3": [3]}, None),
        (["n2-n0", "n1-n3"], {"n2": [2]}, None),
    ],
    ids=["nothing came from it", "a pair", "it told what it saw", "another host is late", "two pairs"],
)
def test_a_host_that_nobody_reaches_and_that_tells_nothing_is_gone(
    links: list[str], unreported: dict[str, list[int]], lost: tuple[str, tuple[int, ...], int] | None
) -> None:
    store_keys = cast(Any, SimpleNamespace(unreported=lambda: unreported))
    found = cut_off_host(store_keys, PLACE, [_closed(*each.split("-")) for each in links])
    assert (found and (found.host, found.ranks, found.node_rank)) == lost
    assert found is None or found.kind is Kind.HOST_LOST


def test_a_resolver_that_has_not_answered_yet_says_nothing_of_gloos_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*rest: object, **more: object) -> list[object]:
        time.sleep(0.5)
        return []

    monkeypatch.setattr(hosts, "RESOLVER_SECONDS", 0.01)
    monkeypatch.setattr("socket.getaddrinfo", late)
    assert hosts.gloo_address({}) == ("", "")
