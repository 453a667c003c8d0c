"""Connects to the store of the job, or hosts it: the first step that fails in practice."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable

from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.network.proof import SecretError, proof_of
from ddpdoctor.network.tcpstore.client import PATIENT_SECONDS, Store, StoreError, StoreLost, connect
from ddpdoctor.network.tcpstore.server import Server
from ddpdoctor.probe.rank_env import OWN_LAUNCHER, RankEnv
from ddpdoctor.probe.store_keys import StoreKeys

__all__ = ["Interrupted", "ProbeFailure", "close_server", "host_store", "reach_store", "report_to_others"]

SURE_SECONDS = 4.0
"""How long to retry after an answer that rarely changes (no such name, no route, another program)."""
REPORTING_SECONDS = 3.0
LEAVING_SECONDS = 2.0
RETRY_SECONDS = 0.1
ATTEMPT_SECONDS = 3.0

_PROBLEMS = {
    Kind.UNRESOLVABLE: "cannot resolve MASTER_ADDR",
    Kind.STRANGER: "found no TCPStore at the master port (another program, or a stopped store)",
    Kind.MASTER_WITHOUT_HOST: "found no machine at MASTER_ADDR",
    Kind.NO_ROUTE: "has no route to MASTER_ADDR",
    Kind.REFUSED: "is refused at the master port (the machine answers, but nothing listens there)",
    Kind.PORT_REJECTED: "is rejected at the master port by a firewall",
    Kind.PORT_DROPPED: "gets no answer from the master port (the machine answers; a firewall drops packets)",
    Kind.UNREACHABLE: "cannot connect to the store of torchrun's agent",
    Kind.SILENT: "gets no answer from the master port (packets dropped, or no such machine)",
}


_KINDS = {
    ConnectOutcome.UNRESOLVED: Kind.UNRESOLVABLE,
    ConnectOutcome.STRANGER: Kind.STRANGER,
    ConnectOutcome.SILENT: Kind.STRANGER,
    ConnectOutcome.NO_HOST: Kind.MASTER_WITHOUT_HOST,
    ConnectOutcome.NO_ROUTE: Kind.NO_ROUTE,
    ConnectOutcome.PROHIBITED: Kind.PORT_REJECTED,
    ConnectOutcome.NO_ANSWER: Kind.SILENT,
}
"""The kind of observation for each outcome of a StoreError; all others are REFUSED."""


class ProbeFailure(Exception):
    """The probe failed; `observations` are those of this rank, empty if another rank reported the failure."""

    def __init__(self, *observations: Observation) -> None:
        super().__init__(*observations)
        self.observations = observations


class Interrupted(Exception):
    """Ctrl-C."""


def reach_store(rank_env: RankEnv, until: float, check: Callable[[], None]) -> StoreKeys:
    """Connect to the store that the job would use, calling `check` between attempts.

    Raises:
        ProbeFailure: it is unreachable, with the reason.
    """
    started = time.monotonic()
    try:
        proof = proof_of(os.environ, "probe store")
    except SecretError as error:
        raise ProbeFailure(rank_env.observe(Kind.BAD_ENVIRONMENT, f"the secret of the job: {error}")) from None
    while True:
        longest = PATIENT_SECONDS if rank_env.uses_agent_store else ATTEMPT_SECONDS
        attempt = min(longest, max(until - time.monotonic(), 0.5))
        try:
            store = connect(rank_env.master_addr, rank_env.master_port, rank_env.prefix, attempt)
            return StoreKeys(store, rank_env, proof)
        except StoreError as error:
            last_error = error
        check()
        now = time.monotonic()
        if now >= until or (
            _is_sure(_kind(last_error), rank_env) and now - started >= min(SURE_SECONDS, until - started)
        ):
            raise ProbeFailure(_explain(rank_env, last_error, now - started))
        time.sleep(RETRY_SECONDS)


def report_to_others(rank_env: RankEnv, seen: Observation) -> None:
    """Tell the ranks that wait for this one why it will not join, if their store is reachable."""
    try:
        store_keys = reach_store(rank_env, time.monotonic() + REPORTING_SECONDS, lambda: None)
        store_keys.publish("evidence", seen)
        store_keys.wake()
        store_keys.store.close()
    except (ProbeFailure, StoreLost):
        return  # the other ranks have not started, or are gone already


def _is_sure(kind: Kind, rank_env: RankEnv) -> bool:
    """Whether waiting would not help: only a store that is not running yet may still start."""
    if rank_env.uses_agent_store and kind is Kind.STRANGER:
        return False  # the agents have used it: it is slow, or suspended
    may_change = (Kind.REFUSED, Kind.SILENT, Kind.PORT_DROPPED)
    return kind not in may_change or rank_env.hosts_store or rank_env.uses_agent_store


def _kind(error: StoreError) -> Kind:
    return Kind.PORT_DROPPED if error.pings else _KINDS.get(error.outcome, Kind.REFUSED)


def _explain(rank_env: RankEnv, error: StoreError, seconds: float) -> Observation:
    kind = _kind(error)
    if rank_env.hosts_store and kind is not Kind.UNRESOLVABLE:
        kind = Kind.MASTER_ELSEWHERE
        message = (
            f"MASTER_ADDR={rank_env.master_addr} is not the machine of {rank_env.name}, which hosts the store ({error})"
        )
    else:
        message = f"{rank_env.name} {_PROBLEMS[kind]} after {seconds:.0f} s: {error}"
    if kind in (Kind.REFUSED, Kind.STRANGER) and rank_env.uses_agent_store:
        slow = "; the agent is stopped, or its resolver is slow"
        message = f"{rank_env.name} {_PROBLEMS[Kind.UNREACHABLE]}: {error}{slow if kind is Kind.STRANGER else ''}"
        return _observe(rank_env, Kind.UNREACHABLE, message)
    observation = _observe(rank_env, kind, message)
    if kind is Kind.REFUSED:  # about rank 0, which is only known to be absent
        return _absent_head(rank_env, observation.value or "", seconds)
    return observation


def _absent_head(rank_env: RankEnv, master: str, seconds: float) -> Observation:
    """Rank 0 is missing; with ddpdoctor's own launcher, all ranks of its node are."""
    count = (rank_env.local_world_size or 1) if rank_env.launcher == OWN_LAUNCHER else 1
    who = "rank 0" if count == 1 else f"node 0 (ranks 0-{count - 1})"
    message = f"{who} did not open the store at {master} within {seconds:.0f} s (seen by {rank_env.name})"
    message += "; it was not started, or was given another port" if rank_env.launcher != OWN_LAUNCHER else ""
    node = None if rank_env.local_world_size is None else 0
    return Observation(
        Kind.REFUSED,
        message,
        tuple(range(count)),
        rank_env.rank,
        rank_env.host_of(0),
        node_rank=node,
        phase="connect",
        value=master,
    )


def _observe(rank_env: RankEnv, kind: Kind, message: str) -> Observation:
    master = f"{rank_env.master_addr}:{rank_env.master_port}"
    return rank_env.observe(kind, message, pid=os.getpid(), phase="connect", value=master)


def host_store(rank_env: RankEnv) -> Server | None:
    """The store of plain env:// ranks, if this is rank 0; None if another process hosts it (reported on joining).

    Raises:
        ProbeFailure: another program uses the port.
    """
    if not rank_env.hosts_store:
        return None
    try:
        return Server(rank_env.master_addr, rank_env.master_port, f"{rank_env.prefix}hosted", as_master=True)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            message = f"{rank_env.name} cannot listen on port {rank_env.master_port}: {error.strerror}"
            raise ProbeFailure(_observe(rank_env, Kind.PORT_TAKEN, message)) from None
    try:
        store = connect(rank_env.master_addr, rank_env.master_port, rank_env.prefix, 1.0)
        if store.check("hosted"):
            store.close()
            return None
        store.close()
        other = "the store of another job"
    except (StoreError, StoreLost):
        other = "another program"
    message = f"{rank_env.name} cannot host the store: {other} listens on port {rank_env.master_port}"
    raise ProbeFailure(_observe(rank_env, Kind.PORT_TAKEN, message))


def close_server(server: Server | None, store_keys: StoreKeys | None, awaited: int, stay_seconds: float = 0.0) -> None:
    """Say goodbye; the host of the store waits briefly until `awaited` ranks have, the others until the store has closed."""
    if store_keys is None:
        return
    store: Store = store_keys.store
    if store.is_lost:
        store.close()
        return
    try:
        gone = store.add("goodbye", 1)
        end = time.monotonic() + LEAVING_SECONDS
        while server is not None and gone < awaited and time.monotonic() < end:
            time.sleep(0.02)
            gone = store.add("goodbye", 0)
        if server is None and stay_seconds:
            store.wait_closed(stay_seconds)
    except StoreLost:
        pass  # the others are gone already: no rank waits for this one
    store.close()
    if server is not None:
        server.close()
