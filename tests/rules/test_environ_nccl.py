"""The rules of NCCL's, torch's and CUDA's settings: production is silent, typos are found, and no text breaks them."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from machines import machine

from ddpdoctor.app.lint_lines import rules_of
from ddpdoctor.app.request import Request
from ddpdoctor.engine import Outcome, judge
from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.facts.setting_names import of_a_plugin
from ddpdoctor.facts.settings_table import TABLE, KnownVariable
from ddpdoctor.facts.variables import is_relevant
from ddpdoctor.rules import load

FAMILIES = ("nccl", "torch_nccl", "cuda_switches", "cuda_devices")
RULES = [each for each in load(("environ",)) if re.search(rf"\.env[\d_to]+_({'|'.join(FAMILIES)})", each.module)]
assert len(RULES) > 20, RULES
MACHINES = ["cpu_vm", "h100x8_sxm_healthy", "a100x8_nvlink_down", "rtx4090x4_pcie", "l40sx2_cross_numa", "h200x1_vm"]

AZURE = {
    "NCCL_TOPO_FILE": "/opt/microsoft/ndv5-topo.xml",
    "NCCL_IB_PCI_RELAXED_ORDERING": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "NCCL_SOCKET_IFNAME": "eth0",
    "UCX_TLS": "rc",
    "UCX_NET_DEVICES": "mlx5_ib0:1",
    "NCCL_DEBUG": "WARN",
}
AWS = {
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_DEVICE_RDMA": "1",
    "FI_EFA_FORK_SAFE": "1",
    "NCCL_PROTO": "simple",
    "NCCL_SOCKET_IFNAME": "^docker,lo,veth",
    "NCCL_TUNER_PLUGIN": "/opt/amazon/ofi-nccl/lib/libnccl-ofi-tuner.so",
    "NCCL_NET_PLUGIN": "aws-ofi",
    "NCCL_BUFFSIZE": "8388608",
    "NCCL_P2P_NET_CHUNKSIZE": "524288",
    "OFI_NCCL_PROTOCOL": "RDMA",
}
TCPX = {
    "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2,eth3,eth4",
    "NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0",
    "NCCL_GPUDIRECTTCPX_FORCE_ACK": "0",
    "NCCL_GPUDIRECTTCPX_TX_BINDINGS": "eth1:8-21,112-125;eth2:8-21,112-125",
    "NCCL_CROSS_NIC": "0",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_NSOCKS_PERTHREAD": "4",
    "NCCL_SOCKET_NTHREADS": "1",
    "NCCL_MAX_NCHANNELS": "8",
    "NCCL_MIN_NCHANNELS": "8",
    "NCCL_DYNAMIC_CHUNK_SIZE": "524288",
    "NCCL_P2P_NET_CHUNKSIZE": "524288",
    "NCCL_P2P_PCI_CHUNKSIZE": "524288",
    "NCCL_P2P_NVL_CHUNKSIZE": "1048576",
    "NCCL_BUFFSIZE": "4194304",
    "NCCL_NET_GDR_LEVEL": "PIX",
    "NCCL_P2P_PXN_LEVEL": "0",
    "NCCL_SOCKET_IFNAME": "eth0",
}
FASTRAK = {
    "NCCL_FASTRAK_CTRL_DEV": "eth0",
    "NCCL_FASTRAK_IFNAME": "eth1,eth2,eth3,eth4,eth5,eth6,eth7,eth8",
    "NCCL_FASTRAK_USE_SNAP": "1",
    "NCCL_FASTRAK_NUM_FLOWS": "2",
    "NCCL_FASTRAK_USE_LLCM": "1",
    "NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE": "/usr/local/nvidia/lib64/a3plus_guest_config.textproto",
    "NCCL_TUNER_PLUGIN": "libnccl-tuner.so",
    "NCCL_TUNER_CONFIG_PATH": "/usr/local/nvidia/lib64/a3plus_tuner_config.textproto",
    "NCCL_PROTO": "Simple,LL128",
    "NCCL_ALGO": "Ring,Tree",
    "NCCL_MIN_NCHANNELS": "4",
    "NCCL_NVLSTREE_MAX_CHUNKSIZE": "131072",
}
GIB = {
    "NCCL_NET": "gIB",
    "NCCL_CROSS_NIC": "0",
    "NCCL_NET_GDR_LEVEL": "PIX",
    "NCCL_P2P_NET_CHUNKSIZE": "131072",
    "NCCL_NVLS_CHUNKSIZE": "524288",
    "NCCL_IB_ADAPTIVE_ROUTING": "1",
    "NCCL_IB_QPS_PER_CONNECTION": "4",
    "NCCL_IB_TC": "52",
    "NCCL_IB_FIFO_TC": "84",
    "NCCL_TUNER_CONFIG_PATH": "/usr/local/gib/configs/tuner_config_a4.txtpb",
}
PRODUCTION = {
    "InfiniBand": {
        "NCCL_DEBUG": "WARN",
        "NCCL_IB_TIMEOUT": "22",
        "NCCL_IB_RETRY_CNT": "7",
        "NCCL_SOCKET_IFNAME": "=bond0",
        "GLOO_SOCKET_IFNAME": "bond0",
        "OMP_NUM_THREADS": "8",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "NCCL_IB_QPS_PER_CONNECTION": "2",
        "NCCL_PXN_DISABLE": "0",
        "NCCL_CROSS_NIC": "1",
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "NVTE_FUSED_ATTN": "1",
    },
    "Ethernet": {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "^docker0,lo", "NCCL_DEBUG_SUBSYS": "INIT,NET"},
    "NVIDIA's images": {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility,video",
        "NCCL_VERSION": "2.26.3-1",
        "CUDA_VERSION": "12.8.1",
        "NVIDIA_REQUIRE_CUDA": "cuda>=9.0",
        "CUDA_HOME": "/usr/local/cuda",
        "CUDA_CACHE_DISABLE": "0",
        "CUDA_MODULE_LOADING": "LAZY",
        "NVIDIA_PRODUCT_NAME": "PyTorch",
        "TORCH_CUDA_ARCH_LIST": "9.0",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
        "UCC_CL_BASIC_TLS": "^sharp",
    },
    "AWS": AWS,
    "Azure": AZURE,
    "Google tcpx": TCPX,
    "Google fastrak": FASTRAK,
    "Google gIB": GIB,
}


def judged(variables: dict[str, str], on: str = "cpu_vm") -> Outcome:
    gathered = {name: value for name, value in variables.items() if is_relevant(name)}
    outcome = judge(machine(on, {"environ": {"variables": gathered}}), RULES)
    assert not outcome.crashed, outcome.crashed
    return outcome


def linted(variables: dict[str, str]) -> Outcome:
    facts = Facts(SCHEMA, "2026-11-21T00:00:00Z", "laptop", environ=Environ(variables=variables))
    rules = [each for each in rules_of(Request()) if each.code.startswith("ENV")]
    outcome = judge(facts, rules)
    assert not outcome.crashed, outcome.crashed
    return outcome


@pytest.mark.parametrize("on", MACHINES)
@pytest.mark.parametrize("kind", PRODUCTION)
def test_settings_of_production_are_silent(kind: str, on: str) -> None:
    assert not [f.message for f in judged(PRODUCTION[kind], on).findings]


@pytest.mark.parametrize("kind", PRODUCTION)
def test_settings_of_production_are_silent_in_lint(kind: str) -> None:
    assert not [f.message for f in linted(PRODUCTION[kind]).findings]


def test_devices_of_one_family_are_silent_where_there_are_such_devices() -> None:
    assert not judged({"NCCL_IB_HCA": "mlx5"}, "h100x8_sxm_healthy").findings


@pytest.mark.parametrize(
    ("variable", "code"),
    [
        ("NCCL_P2P_DISABLE=1", "ENV032"),
        ("NCCL_SHM_DISABLE=1", "ENV033"),
        ("NCCL_IB_DISABLE=1", "ENV034"),
        ("NCCL_NET=Socket", "ENV035"),
        ("NCCL_NET_GDR_LEVEL=LOC", "ENV036"),
        ("NCCL_PROTO=LL128", "ENV037"),
        ("NCCL_DEBUG=TRACE", "ENV038"),
        ("NCCL_IB_TIMEOUT=32", "ENV040"),
        ("NCCL_COMM_ID=h:1", "ENV042"),
        ("NCCL_MAX_NCHANNELS=1", "ENV043"),
        ("NCCL_NVLS_ENABLE=0", "ENV045"),
        ("NCCL_CUMEM_ENABLE=0", "ENV046"),
        ("NCCL_IGNORE_DISABLED_P2P=1", "ENV047"),
        ("NCCL_CHECKS_DISABLE=1", "ENV048"),
        ("NCCL_LL_THRESHOLD=0", "ENV049"),
        ("NCCL_SOCKET_IFNAMES=eth0", "ENV050"),
        ("NCCL_IB_DISABLE=yes", "ENV051"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "ENV052"),
        ("TORCH_DISTRIBUTED_DEBUG=DETAIL", "ENV053"),
        ("TORCH_NCCL_ENABLE_MONITORING=0", "ENV054"),
        ("NCCL_BLOCKING_WAIT=0", "ENV055"),
        ("TORCH_DISTRIBUTED_INIT_METHOD=env://", "ENV056"),
        ("CUDA_LAUNCH_BLOCKING=1", "ENV057"),
        ("CUDA_DEVICE_MAX_CONNECTIONS=1", "ENV058"),
        ("CUDA_PROFILE=1", "ENV059"),
        ("NVIDIA_DRIVER_CAPABILITIES=video", "ENV061"),
        ("CUDA_VISIBLE_DEVICE=0", "ENV510"),
        ("NCCL_P2P_LEVEL=nvl", "ENV511"),
        ("TORCH_NCCL_BLOCKING_WAIT=maybe", "ENV512"),
        ("GLOO_SOCKET_IFNAME==eth0", "ENV026"),
    ],
)
def test_lint_judges_settings_without_a_machine(variable: str, code: str) -> None:
    name, _, value = variable.partition("=")
    assert code in {f.code for f in linted({name: value}).findings}


READ = [each for each in TABLE.values() if each.removed is None and each.deprecated is None and not each.is_renamed]
ABOUT_VALUES = {"ENV050", "ENV051", "ENV056", "ENV510", "ENV511", "ENV512"}


def allowed_value(each: KnownVariable) -> st.SearchStrategy[str]:
    """Values that the documentation allows."""
    if each.kind in ("number", "integer") and ".." in "".join(each.allowed):
        low, _, high = each.allowed[0].partition("..")
        return st.integers(int(low), int(high)).map(str)
    if each.kind in ("truth", "boolean"):
        return st.sampled_from(["0", "1", "true", "FALSE"])
    if each.kind in ("number", "integer") and not each.allowed:
        return st.integers(0, 1 << 40).map(str)
    if each.allowed:
        return st.sampled_from(each.allowed)
    return st.sampled_from(["/tmp/some.file", "some-text", "eth0"])


@settings(max_examples=200)
@given(st.sampled_from(READ).flatmap(lambda each: st.tuples(st.just(each.name), allowed_value(each))))
def test_a_known_name_with_an_allowed_value_gets_no_finding_about_either(setting: tuple[str, str]) -> None:
    outcome = judged(dict([setting]))
    assert not [f.message for f in outcome.findings if f.code in ABOUT_VALUES]


@settings(max_examples=200)
@given(
    st.sampled_from(sorted(TABLE)),
    st.integers(0, 60),
    st.sampled_from(["drop", "add", "replace"]),
    st.sampled_from(string.ascii_uppercase),
)
def test_a_name_with_one_wrong_letter_is_found_and_corrected(name: str, at: int, how: str, letter: str) -> None:
    at %= len(name)
    wrong = {
        "drop": name[:at] + name[at + 1 :],
        "add": name[:at] + letter + name[at:],
        "replace": name[:at] + letter + name[at + 1 :],
    }[how]
    assume(wrong not in TABLE and not of_a_plugin(wrong))
    found = [f for f in judged({wrong: "1"}).findings if f.code in ("ENV050", "ENV056", "ENV510")]
    assert len(found) == 1, [f.message for f in found]
    assert name in found[0].message


STRANGE = st.one_of(
    st.text(max_size=30),
    st.text("01aftrue^=;:,xX -+%\"'~", max_size=20),
    st.sampled_from(["", "0", "1", "-1", "true", "LOC", "9" * 5000, "x" * 70000, "^", "=", "^=", ":", ";", ","]),
)
NEAR = st.builds(lambda name, tail: name + tail, st.sampled_from(sorted(TABLE)), st.text(string.printable, max_size=3))


@settings(max_examples=150)
@given(
    st.dictionaries(st.one_of(st.sampled_from(sorted(TABLE)), NEAR, st.text(max_size=40)), STRANGE, max_size=8),
    st.sampled_from(MACHINES),
    st.booleans(),
)
def test_no_environment_and_no_file_breaks_a_rule(values: dict[str, str], on: str, in_file: bool) -> None:
    held = {"conf_files": [{"path": "/etc/nccl.conf", "variables": values}]} if in_file else {"variables": values}
    outcome = judge(machine(on, {"environ": held}), RULES)
    assert not outcome.crashed, outcome.crashed
    for finding in outcome.findings:
        assert len(finding.message) < 1200
        assert finding.message.isprintable(), finding.message
        assert (finding.fix_command or "").isprintable()
