"""Outputs of tools are judged like a machine: sick ones name the cause, the GPU and the line; healthy ones have no finding."""

from __future__ import annotations

import json

import pytest

from ddpdoctor.app.request import Request
from ddpdoctor.app.rule_selection import rules_for
from ddpdoctor.app.tool_files import AREAS, ToolReport, examine_tool_files
from ddpdoctor.findings import Severity
from ddpdoctor.tool_output.readers import records_of
from tests.tool_output import outputs
from tests.tool_output.outputs import nvlink_status, smi_query, smi_table, smi_xml, topology

RULES = rules_for(Request(), AREAS)


def judged(**files: str) -> ToolReport:
    """The report about texts by file name."""
    return examine_tool_files(list(files.items()), RULES)


def last(text: str, old: str, new: str) -> str:
    """The text with its last `old` replaced: that of the last GPU."""
    head, found, tail = text.rpartition(old)
    assert found, old
    return head + new + tail


SICK = {
    "table: uncorrected errors": (
        last(smi_table(), "Off |                    0 |", "Off |                   12 |"),
        "GPU018",
        1,
        "00000000:11:00.0",
    ),
    "table: ERR! in every cell": (
        last(smi_table(), "| N/A   31C    P0             70W /  700W", "| ERR!  ERR! ERR!           ERR! /  700W"),
        "GPU004",
        1,
        "00000000:11:00.0",
    ),
    "query: uncorrected errors": (
        last(
            smi_query(),
            "DRAM Uncorrectable            : 0\n        Aggregate",
            "DRAM Uncorrectable            : 3\n        Aggregate",
        ),
        "GPU018",
        1,
        "DRAM Uncorrectable            : 3",
    ),
    "query: remapping pending": (
        last(smi_query(), "Pending                           : No\n", "Pending                           : Yes\n"),
        "GPU024",
        1,
        "Pending                           : Yes",
    ),
    "query: remapping failed": (
        last(smi_query(), "Remapping Failure Occurred        : No", "Remapping Failure Occurred        : Yes"),
        "GPU023",
        1,
        "Failure Occurred        : Yes",
    ),
    "query: recovery action": (
        last(smi_query(), "Recovery Action                   : None", "Recovery Action                   : Reset"),
        "GPU009",
        1,
        "Recovery Action",
    ),
    "query: a repair is pending": (
        smi_query(1).replace(
            "        Volatile\n", "        Channel Repair Pending            : Yes\n        Volatile\n"
        ),
        "GPU501",
        0,
        "Channel Repair Pending",
    ),
    "query: a reset is required": (
        smi_query(1).replace(
            "GPU Recovery Action                   : None",
            "GPU Reset Status\n        Reset Required                    : Yes",
        ),
        "GPU009",
        0,
        "Reset Required",
    ),
    "query: slowed down by heat": (
        last(smi_query(), "HW Thermal Slowdown           : Not Active", "HW Thermal Slowdown           : Active"),
        "GPU029",
        1,
        "HW Thermal Slowdown           : Active",
    ),
    "query: slowed down by the power brake": (
        last(smi_query(), "HW Power Brake Slowdown       : Not Active", "HW Power Brake Slowdown       : Active"),
        "GPU030",
        1,
        "HW Power Brake Slowdown       : Active",
    ),
    "query: no spare rows": (
        last(smi_query(), "None                          : 0 bank(s)", "None                          : 1 bank(s)"),
        "GPU025",
        1,
        "None                          : 1 bank",
    ),
    "query: fabric in progress": (
        last(
            smi_query(),
            "State                             : Completed",
            "State                             : In Progress",
        ),
        "TOPO019",
        1,
        "In Progress",
    ),
    "query: a narrow slot": (
        last(smi_query(), "Max                       : 16x", "Max                       : 8x"),
        "TOPO026",
        1,
        "Max                       : 8x",
    ),
    "query: a low power limit": (
        last(
            smi_query(), "Current Power Limit               : 700.00 W", "Current Power Limit               : 350.00 W"
        ),
        "GPU036",
        1,
        "350.00 W",
    ),
    "query: corrupted InfoROM": (
        smi_query() + "WARNING: infoROM is corrupted at gpu 0000:11:00.0\n",
        "GPU028",
        1,
        "infoROM is corrupted",
    ),
    "xml: remapping pending": (
        last(smi_xml(), "<remapped_row_pending>No", "<remapped_row_pending>Yes"),
        "GPU024",
        1,
        "<remapped_row_pending>Yes",
    ),
    "xml: ECC off": (last(smi_xml(), "<current_ecc>Enabled", "<current_ecc>Disabled"), "GPU022", 1, "current_ecc"),
    "csv: remapping pending": (outputs.SMI_CSV, "GPU024", 1, "GPU-00000001"),
    "topo: a GPU with fewer links": (topology(weak=5), "TOPO011", 5, "GPU5"),
    "nvlink: an inactive link": (nvlink_status(8, down=(3, 7)), "TOPO011", 3, "Link 7: <inactive>"),
    "nvlink: links of the only GPU that is shown": (
        nvlink_status(4, down=(3, 7)).partition("GPU 3")[1] + nvlink_status(4, down=(3, 7)).partition("GPU 3")[2],
        "TOPO011",
        3,
        "Link 7: <inactive>",
    ),
    "nvlink: all links inactive": (
        "GPU 6: NVIDIA A100-SXM4-80GB (UUID: GPU-6)\nNVML: Unable to retrieve NVLink information as all links are inactive\n",
        "TOPO011",
        6,
        "all links are inactive",
    ),
    "query: the fabric has no resources": (
        last(
            smi_query(),
            "Status                            : Success",
            "Status                            : Insufficient Resources",
        ),
        "TOPO020",
        1,
        "Insufficient Resources",
    ),
    "driver mismatch": (
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.90\n",
        "VERSION006",
        None,
        "version mismatch",
    ),
    "driver not loaded": (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        "GPU002",
        None,
        "has failed",
    ),
    "no device": ("No devices were found\n", "GPU511", None, "No devices"),
    "a lost GPU": (
        "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU\n",
        "GPU007",
        None,
        "is lost",
    ),
    "ibstat: a port is down": (outputs.IBSTAT, "NET037", None, "State: Down"),
    "ibstatus: a port is down": (outputs.IBSTATUS, "NET037", None, "1: DOWN"),
    "ibv_devinfo: a port is down": (outputs.IBV_DEVINFO, "NET037", None, "PORT_DOWN"),
    "dcgmi diag": (outputs.DCGM_DIAG, "GPU510", 3, "Fail - GPU: 3"),
    "dcgmi diag -j": (outputs.DCGM_JSON, "GPU510", 5, '"memory"'),
    "dcgmi health": (outputs.DCGM_HEALTH, "GPU510", 2, "NVLINK system"),
    "lspci: a narrow adapter": (outputs.LSPCI, "NET510", None, "LnkSta:\tSpeed 16GT/s (downgraded), Width x8"),
    "lspci: ACS": (outputs.LSPCI, "TOPO001", None, "ACSCtl:"),
    "nccl-tests: slow": (
        outputs.NCCL_TESTS.replace("4300.0  249.71  436.99", "43000   24.971  43.699").replace(
            "4298.0  249.82  437.19", "42980   24.982  43.719"
        ),
        "PROBE015",
        None,
        "43.699",
    ),
    "nccl-tests: wrong values": (
        outputs.NCCL_TESTS.replace("436.99      0", "436.99     17"),
        "PROBE017",
        None,
        "436.99     17",
    ),
    "NCCL topology": (outputs.NCCL_TOPOLOGY, "TOPO011", 1, "0000:0"),
    "collect_env: an old driver": (outputs.COLLECT_ENV, "VERSION005", None, "470.82.01"),
    "ulimit": (outputs.ULIMIT, "HOST004", None, "open files"),
    "env": (outputs.ENVIRONMENT, "ENV511", None, "NCCL_P2P_LEVEL=nvl"),
    "scontrol": (outputs.SCONTROL_NODE, "HOST510", None, "IDLE+DRAIN"),
    "kubectl": (outputs.KUBECTL_NODE, "HOST511", None, "nvidia.com/gpu:     7"),
    "kubectl: the YAML of a node": (
        'status:\n  allocatable:\n    cpu: "48"\n    nvidia.com/gpu: "0"\n  capacity:\n    nvidia.com/gpu: "16"\n',
        "HOST511",
        None,
        'nvidia.com/gpu: "0"',
    ),
    "dcgmi nvlink beside the models": (
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n"
        f"|  NvLink Link Status  |\nGPUs:\n    gpuId 0:\n        {'U ' * 18}\n    gpuId 1:\n        U D {'U ' * 16}\n",
        "TOPO011",
        1,
        "U D U",
    ),
    "ibdiagnet": (
        "-I- Stage                     Warnings   Errors     Comment\n"
        "-I- Discovery                 0          0\n-I- Links Check               0          3\n",
        "NET511",
        None,
        "Links Check",
    ),
    "fabric manager": (outputs.FABRIC_MANAGER, "TOPO510", None, "failed to initialize NVSwitch"),
}
"""By title: the text, the cause that must be found, the GPU, and a part of the line that the finding points at."""

HEALTHY = {
    "table": smi_table(8),
    "query": smi_query(8),
    "xml": smi_xml(8),
    "csv": outputs.SMI_CSV.replace("0, Yes, No", "0, No, No"),
    "topo": topology(),
    "nvlink": nvlink_status(8),
    "ibstat": outputs.IBSTAT.replace("Down", "Active")
    .replace("Polling", "LinkUp")
    .replace("Rate: 10\n", "Rate: 400\n"),
    "dcgmi diag": outputs.DCGM_DIAG.replace("Fail - GPU: 3", "Pass - All   "),
    "nccl-tests": outputs.NCCL_TESTS,
    "kubectl": outputs.KUBECTL_NODE.replace("gpu:     7", "gpu:     8"),
    "scontrol": outputs.SCONTROL_NODE.replace("IDLE+DRAIN", "MIXED").replace(
        "   Reason=NHC: check_gpu: GPU count 7", "   Comment=7"
    ),
    "fabric manager": outputs.FABRIC_MANAGER.replace("[ERROR]", "[INFO]"),
    "ulimit": outputs.ULIMIT.replace("(-n) 32", "(-n) 1048576"),
}


@pytest.mark.parametrize("title", SICK)
def test_a_sick_output_names_the_cause_and_the_line(title: str) -> None:
    text, code, gpu, words = SICK[title]
    report = judged(file=text)
    found = [finding for finding in report.findings if finding.code == code]
    assert found, ([f.code for f in report.findings], report.outcome.crashed, report.skipped)
    (finding,) = found
    assert finding.where.gpu == gpu
    assert finding.where.file == "file"
    assert finding.where.line is not None
    assert words in text.split("\n")[finding.where.line - 1]
    assert not report.outcome.crashed


@pytest.mark.parametrize("title", HEALTHY)
def test_a_healthy_output_has_no_finding_and_says_what_was_examined(title: str) -> None:
    report = judged(file=HEALTHY[title])
    assert [f.message for f in report.findings if f.worst is not Severity.NOTE] == []
    assert report.inputs["file"].is_understood
    assert report.topics
    assert not report.outcome.crashed


@pytest.mark.parametrize("title", [*SICK, *HEALTHY])
def test_a_rule_that_reads_what_no_file_shows_does_not_pass(title: str) -> None:
    report = judged(file=SICK[title][0] if title in SICK else HEALTHY[title])
    assert "HOST001" not in report.passed, "no file shows /dev/shm"
    assert "GPU010" not in report.passed, "nvidia-smi does not show whose processes they are"
    assert not any(skip.unanswered for skip in report.skipped)


def test_files_of_one_machine_are_one_machine() -> None:
    report = judged(**{"gpu-07/q.txt": smi_query(8), "gpu-07/topo.txt": topology(weak=5), "gpu-08/q.txt": smi_query(8)})
    assert sorted(machine.host for machine in report.machines) == ["gpu-07", "gpu-08"]
    finding = next(finding for finding in report.findings if finding.code == "TOPO011")
    assert (finding.where.host, finding.where.gpu, finding.where.file) == ("gpu-07", 5, "gpu-07/topo.txt")


def test_output_of_several_hosts_in_one_file_is_judged_host_by_host() -> None:
    healthy, sick = smi_table(), SICK["table: uncorrected errors"][0]
    text = "".join(f"gpu-01: {a}\ngpu-02: {b}\n" for a, b in zip(healthy.split("\n"), sick.split("\n"), strict=True))
    report = judged(file=text)
    (finding,) = [finding for finding in report.findings if finding.code == "GPU018"]
    assert (finding.where.host, finding.where.gpu) == ("gpu-02", 1)
    assert "12" in text.split("\n")[(finding.where.line or 0) - 1]


def test_several_tools_in_one_file_are_read() -> None:
    text = f"$ nvidia-smi\n{smi_table(8)}\n$ nvidia-smi topo -m\n{topology(weak=2)}\n$ ibstat\n{outputs.IBSTAT}"
    report = judged(file=text)
    assert {"TOPO011", "NET037"} <= {finding.code for finding in report.findings}
    assert "nvidia-smi topo -m (8 GPUs)" in (report.inputs["file"].reason or "")


def test_some_gpus_of_a_machine_are_not_all() -> None:
    report = judged(file=smi_query(1, attached=8))
    assert report.inputs["file"].reason == "nvidia-smi -q (1 of 8 GPUs)"


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("============ ROCm System Management Interface ============\nGPU  Temp\n0    35.0c\n", "rocm-smi"),
        ('{"header": {"rank": 0}, "coll_perf": {"coll": "AllReduce", "coll_busbw_gbs": 12.5}}\n', "NCCL Inspector"),
        ('{"schemaVersion": 1, "traceEvents": [\n', "torch profiler"),
        ("| npu-smi 23.0.rc2                 Version: 23.0.rc2 |\n| 0     910B3 | OK |\n", "npu-smi"),
    ],
)
def test_other_accelerators_are_recognised_and_not_judged(text: str, tool: str) -> None:
    report = judged(file=text)
    assert not report.inputs["file"].is_understood
    assert (report.inputs["file"].reason or "").startswith(f"{tool}: ")


@pytest.mark.parametrize("text", ["GPU 0: NVIDIA A100 (UUID: GPU-00000000-aaaa)\n", "<nvidia_smi_log>\n"])
def test_a_list_without_any_state_is_not_a_pass(text: str) -> None:
    report = judged(file=text)
    assert not report.inputs["file"].is_understood
    assert not report.findings


def inspector(rate: float, *, count: int = 20, nodes: int = 1, clock: str = "kernel_gpu") -> str:
    """What NCCL's Inspector writes for `count` all_reduces of 8 ranks on gpu-07."""
    lines = [
        {
            "header": {"id": "0x7f8c496ae9f661", "rank": at % 8, "n_ranks": 8, "nnodes": nodes},
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "git_rev": "",
                "hostname": "gpu-07",
                "pid": 163 + at % 8,
            },
            "coll_perf": {
                "coll": "AllReduce",
                "coll_sn": at,
                "coll_msg_size_bytes": 8 << 30,
                "coll_exec_time_us": 61974,
                "coll_timing_source": clock,
                "coll_algobw_gbs": round(rate / 1.75, 6),
                "coll_busbw_gbs": rate - at / 100,
            },
        }
        for at in range(count)
    ]
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def test_bandwidths_of_the_inspector_are_judged_with_the_gpus_of_another_file() -> None:
    slow = examine_tool_files([("i.log", inspector(40.0)), ("gpu-07/q.txt", smi_query(8))], RULES)
    (finding,) = [each for each in slow.findings if each.code == "PROBE015"]
    assert (finding.where.file, finding.where.line) == ("i.log", 1)
    usual = examine_tool_files([("i.log", inspector(470.0)), ("gpu-07/q.txt", smi_query(8))], RULES)
    assert "PROBE015" in usual.passed
    assert usual.inputs["i.log"].is_understood


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (inspector(40.0), "shows no state that can be judged"),
        (inspector(40.0, count=19), "fewer than 20 collectives of one size"),
        (inspector(40.0, clock="kernel_cpu"), "fewer than 20 collectives of one size"),
        (inspector(40.0, nodes=2), "between nodes"),
        (inspector(40.0).replace(',"nnodes":1', ""), "without the number of nodes"),
    ],
)
def test_records_of_the_inspector_alone_are_not_judged(text: str, reason: str) -> None:
    report = examine_tool_files([("i.log", text)], RULES)
    assert not report.findings
    assert not report.inputs["i.log"].is_understood
    assert reason in report.inputs["i.log"].reason


def test_other_forms_of_the_inspector_are_read() -> None:
    flat = '{"id":"abc","rank":1,"n_ranks":8,"nnodes":1,"pid":12,"hostname":"w","coll_perf":{"coll":"AllReduce"}}\n'
    (record,) = records_of(flat)
    assert (record.tool, record.about) == ("NCCL Inspector", "1 record, 1 rank")
    pretty = json.dumps(json.loads(inspector(40.0, count=1)), indent=2) + "\n"
    (record,) = records_of(pretty * 3)
    assert record.about == "3 records, 1 rank"


def link_errors(sick: tuple[int, int] | None = None, *, crc: int = 0) -> str:
    """What `nvidia-smi nvlink -e` prints for two GPUs with four links each; `sick` is the GPU and link that recovered."""
    text = ""
    for gpu in range(2):
        text += f"GPU {gpu}: NVIDIA A100-SXM4-80GB (UUID: GPU-0000000{gpu}-aaaa-bbbb-cccc-ddddeeeeffff)\n"
        for link in range(4):
            recoveries = 7 if sick == (gpu, link) else 0
            text += f"\t Link {link}: Replay Errors: 0\n\t Link {link}: Recovery Errors: {recoveries}\n"
            text += f"\t Link {link}: CRC Errors: {crc}\n\n"
    return text


def test_recoveries_of_a_link_are_judged_and_totals_of_crc_errors_are_not() -> None:
    sick = judged(errors=link_errors((1, 2)))
    (finding,) = sick.findings
    assert (finding.code, finding.where.gpu) == ("TOPO520", 1)
    assert link_errors((1, 2)).split("\n")[(finding.where.line or 0) - 1].strip() == "Link 2: Recovery Errors: 7"
    healthy = judged(errors=link_errors(crc=40))
    assert [code for code in healthy.passed if code.startswith("TOPO")] == ["TOPO520"], (
        "no state of links is in this output"
    )
    assert healthy.topics == ("NVLink recoveries",)
