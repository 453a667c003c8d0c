"""What a worker's output tells: NCCL's transports as its versions print them, warnings, last words; and what would be faster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fakes import library

sys.path.insert(0, str(Path(__file__).parent))

from ranks import causes, shim, start_all

from ddpdoctor.collectors import collect
from ddpdoctor.collectors.transport_capabilities import offers
from ddpdoctor.facts.rdma import Gid, Rdma, RdmaDevice, RdmaPort
from ddpdoctor.probe.announced_calls import AnnouncedCalls
from ddpdoctor.probe.worker_output import WorkerOutput
from ddpdoctor.probe.worker_start import _worker_environ
from ddpdoctor.system.machine import Machine, Root

INFO = "node1:4711:4800 [0] NCCL INFO "


@pytest.mark.parametrize(
    ("line", "transports"),
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", {"1": "P2P/CUMEM"}),
        ("Channel 11/0 : 0[0] -> 7[7] via P2P/CUMEM/read comm 0x55d0 nRanks 08", {"7": "P2P/CUMEM"}),
        ("Channel 00/0 : 0[1b000] -> 1[43000] via P2P/direct pointer", {"1": "P2P/direct"}),
        ("Channel 00/0 : 0[0] -> 2[2] via P2P/indirect/1[1]", {"2": "P2P/indirect"}),
        ("Channel 01/0 : 0[0] -> 1[1] via SHM/direct/direct", {"1": "SHM"}),
        ("Channel 00 : 0[3000] -> 1[4000] via direct shared memory", {"1": "SHM"}),
        ("Channel 00/0 : 7[7] -> 0[0] [receive] via NET/IB/0/GDRDMA/Shared", {"7": "NET/IB"}),
        ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/3(4)/GDRDMA(PCI)", {"8": "NET/IB"}),
        ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0", {"8": "NET/Socket"}),
        ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/1/GDRDMA", {"8": "NET/AWS Libfabric"}),
        ("Channel 00/24 :    0   1   2   3   4   5   6   7", {}),
        ("NCCL_P2P_DISABLE set by environment to 1.", {}),
    ],
)
def test_the_transport_to_a_peer(line: str, transports: dict[str, str]) -> None:
    heard = WorkerOutput(0)
    text = f"{INFO}{line}\n".encode()
    heard.take(text[:20])
    heard.take(text[20:])
    assert (heard.transports, heard.text.strip()) == (transports, "")


def test_of_several_channels_the_one_that_is_no_peer_access_counts() -> None:
    heard = WorkerOutput(0)
    for way in ("P2P/CUMEM", "SHM/direct/direct", "P2P/CUMEM"):
        heard.take(f"{INFO}Channel 00/0 : 0[0] -> 1[1] via {way}\n".encode())
    assert heard.transports == {"1": "SHM"}


def test_what_nccl_s_diagnostics_report_is_kept_and_what_is_well_is_not() -> None:
    heard = WorkerOutput(0)
    heard.take(
        b"n1:77 NCCL DIAG === RAS Diagnostics ===\nn1:77 NCCL DIAG [OK]   NVLink: 18 links per GPU, all active\n"
    )
    heard.take(
        b"n1:77 NCCL DIAG [INFO] ECC: uncorrected volatile errors on rank(s) 1 (worst=2) across 2 ranks in comm 0x1\n"
    )
    heard.take(b"n1:77 NCCL DIAG RAS diagnostics completed in 3.1 ms across 2 ranks\n")
    heard.take(b"n1:77:78 [0] init.cc:7 (devCommSetup) NCCL ATTN slow\n")
    assert heard.warnings == (
        "NCCL DIAG [INFO] ECC: uncorrected volatile errors on rank(s) 1 (worst=2) across 2 ranks in comm 0x1",
        "slow",
    )


def test_the_worker_asks_nccl_for_its_diagnostics_unless_the_user_chose() -> None:
    assert _worker_environ({"RANK": "0"})["NCCL_RUN_RAS_DIAGNOSTICS"] == "1"
    assert _worker_environ({"NCCL_RUN_RAS_DIAGNOSTICS": "0"})["NCCL_RUN_RAS_DIAGNOSTICS"] == "0"


def test_warnings_and_last_words_are_not_lost_in_what_nccl_tells() -> None:
    heard = WorkerOutput(0)
    heard.take(b"n:1:1 [0] transport/net.cc:3 NCCL WARN no socket interface found\n")
    for _ in range(1000):
        heard.take(f"{INFO}Failed to find a plugin, this is no error\n".encode())
    assert heard.warnings == ("no socket interface found",)
    assert "no socket interface found" in heard.last_error_line()
    heard.take(b"terminate called after throwing an exception: closed by peer")
    assert heard.lost_its_peers


def test_nvlink_is_offered_by_uuid_and_far_gpus_are_not(tmp_path: Path) -> None:
    for name, ways in (("h100x8_sxm_healthy", {"NVLink"}), ("l40sx2_cross_numa", {"host memory"})):
        folder = tmp_path / name
        folder.mkdir()
        environ = {"LD_LIBRARY_PATH": str(library.build(library.profile(name), folder))}
        facts = collect(Machine(root=Root(tmp_path), environ=environ), ("gpu", "topo"))
        found = offers(facts.gpu, facts.topo, None)["ways"]
        assert facts.gpu is not None
        assert set(found) == {device.uuid for device in facts.gpu.devices}
        assert {way for row in found.values() for way in row.values()} == ways


def test_an_adapter_is_offered_where_rdma_is_sure_to_work() -> None:
    def network(device: RdmaDevice) -> str:
        return str(offers(None, None, Rdma(devices=(device,)))["network"])

    roce = RdmaPort(1, "ACTIVE", link_layer="Ethernet", gids=(Gid(3, "::ffff:10.0.0.1", "RoCE v2"),))
    assert network(RdmaDevice("mlx5_0", ports=(RdmaPort(1, "ACTIVE", link_layer="InfiniBand"),)))
    assert network(RdmaDevice("mlx5_1", ports=(roce,)))
    assert network(RdmaDevice("rdmap0", driver="efa", ports=(RdmaPort(1, "ACTIVE"),)))
    assert network(RdmaDevice("mlx5_2", is_virtual_function=True, ports=(roce,))) == ""
    assert network(RdmaDevice("mlx5_3", ports=(RdmaPort(1, "DOWN", link_layer="InfiniBand"),))) == ""


@pytest.mark.slow
@pytest.mark.torch
def test_ranks_that_go_by_host_memory_although_nvlink_connects_them(tmp_path: Path) -> None:
    node = library.profile("h100x8_sxm_healthy")
    environ = {
        **shim("shared-memory", 0),
        "SHIM_RANK": "every",
        "SHIM_GPUS": ",".join(gpu["uuid"] for gpu in node["gpus"][:2]),
        "LD_LIBRARY_PATH": str(library.build(node, tmp_path)),
        "NCCL_P2P_DISABLE": "1",
    }
    ranks = start_all(tmp_path, 2, environ=environ)
    ends = [rank.end() for rank in ranks]
    assert [code for code, _ in ends] == [0, 0], ends
    assert causes(ranks[0].report) == [("PROBE016", None)]
    (found,) = ranks[0].report["findings"]
    assert (found["ranks"], found["fix_command"]) == ([0, 1], "unset NCCL_P2P_DISABLE")


@pytest.mark.parametrize(
    ("text", "by_peers"),
    [
        ("terminate called after throwing\n  what():  Connection closed by peer [10.0.0.2]:4711", True),
        (
            "terminate called after throwing\n  what():  [enforce fail at /gloo/transport/tcp/pair.cc:597] op.preamble",
            True,
        ),
        (
            "terminate called after throwing\n  what():  [enforce fail at /gloo/transport/tcp/loop.cc:212] nfds != -1",
            False,
        ),
        ("terminate called after throwing\n  what():  accept: Too many open files", False),
        ("terminate called after throwing an instance of 'std::bad_alloc'", False),
        ("Segmentation fault", False),
    ],
)
def test_an_abort_is_the_fault_of_peers_unless_the_rank_itself_lacks_something(text: str, by_peers: bool) -> None:
    heard = WorkerOutput(0)
    heard.take(text.encode() + b"\n")
    assert heard.lost_its_peers is by_peers


def test_one_call_too_many_or_too_few_is_told() -> None:
    told: list[str] = []
    calls = AnnouncedCalls(told.append)
    calls.expect()
    calls.note("all_reduce")
    calls.expect()
    calls.note("all_reduce")
    calls.note("all_reduce")
    calls.expect()
    calls.expect()
    calls.finish()
    assert told == ["all_reduce", "all_reduce", "all_reduce once more", "nothing"]


def test_where_no_call_is_heard_none_is_missed() -> None:
    told: list[str] = []
    calls = AnnouncedCalls(told.append)
    calls.expect()
    calls.expect()
    calls.finish()
    assert told == []
