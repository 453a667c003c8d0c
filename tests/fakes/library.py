"""Builds a libnvidia-ml.so.1 that answers what a node profile (fixtures/profiles/README.md) says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROFILES = HERE.parent.parent / "fixtures" / "profiles"
CODES = {
    "NOT_SUPPORTED": 3,
    "NO_PERMISSION": 4,
    "DRIVER_NOT_LOADED": 9,
    "GPU_IS_LOST": 15,
    "RESET_REQUIRED": 16,
    "LIB_RM_VERSION_MISMATCH": 18,
    "UNKNOWN": 999,
}
WORDS = ("OK", "CNS", "GNS", "TNS", "DR", "NS", "U")
# fmt: off
FACTS = [
    "LOST", "MINOR", "CC", "TOTAL", "RESERVED", "USED", "BAR1", "COMPUTE_MODE", "PERSISTENCE",
    "VIRTUAL", "MIG", "ECC", "ECC_PENDING", "VOL_COR", "VOL_UNC", "AGG_COR", "AGG_UNC", "REMAP_COR",
    "REMAP_UNC", "REMAP_PENDING", "REMAP_FAILURE", "RETIRED_PENDING", "RETIRED_SBE", "RETIRED_DBE",
    "TEMP", "TLIMIT", "SLOWDOWN", "POWER", "POWER_LIMIT", "POWER_DEFAULT", "SM", "SM_MAX", "PSTATE",
    "GEN", "GEN_MAX", "WIDTH", "WIDTH_MAX", "REPLAYS", "GPU_NUMA", "INFOROM", "THROTTLE", "RECOVERY",
    "SWITCH_LINKS", "SWITCHED", "FABRIC", "FABRIC_STATUS", "FABRIC_MASK", "CLUSTER", "CLIQUE",
    "MIG_PENDING", "UTILIZATION", "REPLAY_GROWTH", "GEN_GPU", "APP_SM", "APP_DEFAULT", "THERMAL_NS",
    "COR_DRAM", "COR_SRAM", "UNC_DRAM", "UNC_SRAM", "ARCH", "MODULE", "GSP", "SRAM", "GRAPHICS", "C2C", "PROCESSES",
    "MARGIN_193", "MARGIN_194", "MARGIN_195", "MARGIN_196", "SLOT", "TRAY", "PCI_ID",
]
REASONS = {
    "gpu_idle": 1, "app_clocks": 2, "sw_power_cap": 4, "hw_slowdown": 8, "sync_boost": 0x10,
    "sw_thermal": 0x20, "hw_thermal": 0x40, "hw_power_brake": 0x80,
}
# fmt: on
STATES = {"not_supported": 0, "not_started": 1, "in_progress": 2, "completed": 3}
ABSENT = "!NOT_SUPPORTED"


def profile(name: str) -> dict[str, Any]:
    """A profile by name, its defaults merged into every GPU."""
    node = json.loads((PROFILES / f"{name}.json").read_text())
    node["gpus"] = [merge(node.get("gpu_defaults", {}), gpu) for gpu in node["gpus"]]
    return node


def build(node: dict[str, Any], folder: Path) -> Path:
    """Compile the library for `node` into `folder`; returns the folder, for LD_LIBRARY_PATH."""
    (folder / "profile.h").write_text(header(node))
    facts = f"enum {{ {', '.join('F_' + f for f in FACTS)}, F_COUNT }};\n"
    (folder / "nvml.c").write_text(facts + (HERE / "nvml.c").read_text())
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-w", "-O0", "-I", str(folder), "-o", "libnvidia-ml.so.1", "nvml.c"],
        cwd=folder,
        check=True,
        timeout=60,
    )
    return folder


def merge(base: Any, over: Any) -> Any:
    """`over` laid deeply over `base`."""
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    return {key: merge(base.get(key), over[key]) if key in over else base[key] for key in {**base, **over}}


def header(node: dict[str, Any]) -> str:
    """The C tables of one node."""
    gpus = node["gpus"]
    driver = node["driver"]
    init = CODES[driver["init_error"]] if driver.get("init_error") else 0
    width = max(1, len(gpus))
    rows = ",\n".join(_gpu(g) for g in gpus) or "{{0}}"
    levels = [[_level(a, b) for b in gpus] for a in gpus] or [[0]]
    p2p = [[_p2p(node, i, j) for j in range(len(gpus))] for i in range(len(gpus))] or [[[0]]]
    return (
        f'#define INIT {init}\n#define GPUS {len(gpus)}\n#define DRIVER "{driver["version"]}"\n'
        f"#define FABRIC_VERSION {driver.get('fabric_version', 3)}\n#define CC_ON {node.get('confidential_computing', 0)}\n"
        f"#define CUDA {driver['cuda']}\nstatic Gpu gpus[] = {{ {rows} }};\n"
        f"static int levels[{width}][{width}] = {_braces(levels)};\n"
        f"static int p2p[{width}][{width}][5] = {_braces(p2p)};\n"
    )


def _gpu(gpu: dict[str, Any]) -> str:
    nvlink = gpu.get("nvlink") or {}
    links = nvlink.get("links", 0)
    down = range(links) if nvlink.get("all_down") else nvlink.get("down", [])
    values = _values(gpu)
    listed = gpu.get("processes", [])
    used = [] if isinstance(listed, str) else [f"{{{p['pid']}, {p['used']}ULL}}" for p in listed]
    mig = gpu.get("mig", ABSENT)
    names = mig.get("instances", []) if isinstance(mig, dict) else []
    growth = nvlink.get("error_growth", {})
    serial = (gpu.get("platform") or {}).get("serial", "")
    return (
        f"{{.serial={_text(serial)}, .gsp={_text('580.105.08')}, "
        f".processes={len(used)}, .process={{{', '.join(used) or '0'}}}, "
        f".migs={len(names)}, .mig={{{', '.join(_text(n) if n else '0' for n in names) or '0'}}}, "
        f".growth={_braces([growth.get(str(i), 0) for i in range(links)] or [0])}, "
        f".v={_braces([_number(values[f]) for f in FACTS])}, .uuid={_text(gpu['uuid'])}, .name={_text(gpu['name'])}, "
        f".bus_id={_text(gpu['pci']['bus_id'])}, .hist={_braces(_histogram(gpu))}, .links={links}, "
        f".active={_braces([int(i not in down) for i in range(links)] or [0])}, "
        f".remote={{{', '.join(_text(e) for e in ends(gpu)) or '0'}}}, .speed={nvlink.get('speed_mbps', 0)}, "
        f".version={nvlink.get('version_enum', 0)}, .cpus={_mask(gpu.get('cpu_affinity') or '')}, "
        f".nodes={_mask(str(gpu['numa']) if gpu.get('numa', -1) >= 0 else '')}}}"
    )


def ends(gpu: dict[str, Any]) -> list[str]:
    """The bus id at the other end of each link of a GPU."""
    nvlink = gpu.get("nvlink") or {}
    remote, links = nvlink.get("remote", "switch"), nvlink.get("links", 0)
    places = remote if isinstance(remote, list) else [remote] * links
    switches = nvlink.get("switch_bus_ids") or ["FFFFFFFF:FF:FF.0"]
    return [switches[i % len(switches)] if end == "switch" else end for i, end in enumerate(places)]


def _values(gpu: dict[str, Any]) -> dict[str, Any]:
    memory, ecc, link = gpu["memory"], gpu.get("ecc", ABSENT), gpu["pci"].get("link", {})
    rows, pages, fabric = gpu.get("remapped_rows", ABSENT), gpu.get("retired_pages", ABSENT), gpu.get("fabric", ABSENT)
    clocks, thermal, power = gpu.get("clocks", {}), gpu.get("thermal", {}), gpu.get("power", {})
    has_limit = "tlimit" in thermal
    nvlink = gpu.get("nvlink") or {}
    is_switched = nvlink.get("remote", "switch") == "switch"
    return {
        "LOST": "!GPU_IS_LOST" if gpu.get("lost") else gpu.get("handle", 0),
        "SWITCHED": int(is_switched),
        "SWITCH_LINKS": nvlink.get("links", 0) if is_switched else 0,
        "MINOR": gpu["minor"],
        "CC": int(gpu["cc"].replace(".", "")),
        "TOTAL": memory["total"],
        "RESERVED": memory.get("reserved", 0),
        "USED": memory.get("used", 0),
        "BAR1": memory.get("bar1", 0),
        "COMPUTE_MODE": gpu.get("compute_mode", 0),
        "PERSISTENCE": gpu.get("persistence", 1),
        "VIRTUAL": gpu.get("virtualization", 0),
        "MIG": _part(gpu.get("mig", ABSENT), "current"),
        "ECC": _part(ecc, "current"),
        "ECC_PENDING": _part(ecc, "pending"),
        "VOL_COR": _ecc(ecc, "volatile_corrected"),
        "VOL_UNC": _ecc(ecc, "volatile_uncorrected"),
        "AGG_COR": _ecc(ecc, "aggregate_corrected"),
        "AGG_UNC": _ecc(ecc, "aggregate_uncorrected"),
        "REMAP_COR": _part(rows, "correctable"),
        "REMAP_UNC": _part(rows, "uncorrectable"),
        "REMAP_PENDING": _part(rows, "pending"),
        "REMAP_FAILURE": _part(rows, "failure"),
        "RETIRED_PENDING": _part(pages, "pending"),
        "RETIRED_SBE": _part(pages, "sbe"),
        "RETIRED_DBE": _part(pages, "dbe"),
        "TEMP": thermal.get("gpu", ABSENT),
        "TLIMIT": thermal.get("tlimit", ABSENT),
        "SLOWDOWN": ABSENT if has_limit else thermal.get("slowdown", ABSENT),
        "POWER": power.get("usage", ABSENT),
        "POWER_LIMIT": power.get("limit", ABSENT),
        "POWER_DEFAULT": power.get("default", ABSENT),
        "SM": clocks.get("sm", ABSENT),
        "SM_MAX": clocks.get("max_sm", ABSENT),
        "PSTATE": gpu.get("pstate", 0),
        "GEN": link.get("gen", ABSENT),
        "GEN_MAX": link.get("max_gen", ABSENT),
        "WIDTH": link.get("width", ABSENT),
        "WIDTH_MAX": link.get("max_width", ABSENT),
        "REPLAYS": link.get("replays", ABSENT),
        "GPU_NUMA": gpu.get("gpu_numa_id", ABSENT),
        "INFOROM": 0 if gpu.get("inforom_ok", True) else 14,
        "THROTTLE": sum(REASONS[word] for word in gpu.get("throttle", [])),
        "RECOVERY": gpu.get("recovery_action", 0),
        "FABRIC": ABSENT if isinstance(fabric, str) else STATES[fabric["state"]],
        "FABRIC_STATUS": 0 if isinstance(fabric, str) or fabric.get("status", "SUCCESS") == "SUCCESS" else 999,
        "FABRIC_MASK": 0 if isinstance(fabric, str) else fabric.get("health_mask", 0),
        "CLUSTER": 0 if isinstance(fabric, str) else int(fabric.get("cluster_uuid", "0"), 16) % 128,
        "CLIQUE": 0 if isinstance(fabric, str) else fabric.get("clique", 0),
        **_later_facts(gpu),
    }


def _later_facts(gpu: dict[str, Any]) -> dict[str, Any]:
    ecc, link, clocks, thermal = (
        gpu.get("ecc", ABSENT),
        gpu["pci"].get("link", {}),
        gpu.get("clocks", {}),
        gpu["thermal"],
    )
    mig, margins = gpu.get("mig", ABSENT), ("shutdown", "slowdown", "mem_max", "gpu_max")
    return {
        "MIG_PENDING": mig.get("pending", mig.get("current", 0)) if isinstance(mig, dict) else mig,
        "UTILIZATION": gpu.get("utilization", 0),
        "REPLAY_GROWTH": link.get("replay_growth", 0),
        "GEN_GPU": link.get("gpu_gen", link.get("max_gen", ABSENT)),
        "APP_SM": clocks.get("app_sm", ABSENT),
        "APP_DEFAULT": clocks.get("app_sm_default", clocks.get("app_sm", ABSENT)),
        "THERMAL_NS": thermal.get("violation_ns", ABSENT),
        "COR_DRAM": ecc if isinstance(ecc, str) else ecc.get("volatile_corrected_dram", 0),
        "COR_SRAM": ecc if isinstance(ecc, str) else ecc.get("volatile_corrected_sram", 0),
        "UNC_DRAM": ecc if isinstance(ecc, str) else ecc.get("volatile_uncorrected_dram", 0),
        "UNC_SRAM": ecc if isinstance(ecc, str) else ecc.get("volatile_uncorrected_sram", 0),
        "ARCH": gpu.get("arch_enum", ABSENT),
        "MODULE": gpu.get("module_id", ABSENT),
        "GSP": gpu.get("gsp", ABSENT),
        "SRAM": gpu.get("sram_threshold", ABSENT),
        "GRAPHICS": gpu.get("graphics_processes", 0),
        "PROCESSES": gpu["processes"] if isinstance(gpu.get("processes"), str) else 0,
        "C2C": gpu.get("c2c_links", ABSENT),
        "SLOT": (gpu.get("platform") or {}).get("slot", ABSENT),
        "TRAY": (gpu.get("platform") or {}).get("tray", ABSENT),
        "PCI_ID": int(gpu["pci"].get("device_id", "0"), 16),
        **{
            f"MARGIN_{193 + at}": thermal.get(name, ABSENT) if "tlimit" in thermal else ABSENT
            for at, name in enumerate(margins)
        },
    }


def _part(value: Any, key: str) -> Any:
    return value if isinstance(value, str) or value is None else value.get(key, 0)


def _ecc(ecc: Any, key: str) -> Any:
    if isinstance(ecc, str):
        return ecc
    return sum(ecc.get(f"{key}_{place}", 0) for place in ("dram", "sram"))


def _histogram(gpu: dict[str, Any]) -> list[int]:
    rows = gpu.get("remapped_rows")
    return rows.get("histogram", [0] * 5) if isinstance(rows, dict) else [0] * 5


def _number(value: Any) -> str:
    if value is None:
        value = ABSENT
    return f"{-1000 - CODES[value[1:]]}LL" if isinstance(value, str) else f"{value}LL"


def _level(a: dict[str, Any], b: dict[str, Any]) -> int:
    ours, theirs = a["pcie_path"], b["pcie_path"]
    if ours[0] != theirs[0]:
        return 50
    if ours[1] != theirs[1]:
        return 40
    if not set(ours[2:]) & set(theirs[2:]):
        return 30
    return 10 if ours == theirs else 20


def _p2p(node: dict[str, Any], i: int, j: int) -> list[int]:
    p2p = node.get("p2p") or {"default": "OK"}
    linked = all((node["gpus"][k].get("nvlink") or {}).get("links") for k in (i, j))
    lowest = min(i, j), max(i, j)
    pair = p2p.get("pairs", {}).get(f"{lowest[0]}-{lowest[1]}", {})
    base = {kind: p2p.get("default", "OK") for kind in ("read", "write", "nvlink", "atomics", "pci")}
    all_down = any((node["gpus"][k].get("nvlink") or {}).get("all_down") for k in (i, j))
    up = all(_values(node["gpus"][k])["FABRIC"] in (3, ABSENT) for k in (i, j))
    base["nvlink"] = "OK" if linked and up and not all_down else "NS"
    words = {**base, **{k: v for k, v in p2p.items() if k in base}, **pair}
    return [WORDS.index(words[kind]) for kind in ("read", "write", "nvlink", "atomics", "pci")]


def mask_words(ranges: str) -> list[int]:
    """A list of numbers (`0-3,8`) as 16 words of 64 bits."""
    words = [0] * 16
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            words[number // 64] |= 1 << number % 64
    return words


def _mask(ranges: str) -> str:
    return _braces([f"{w}ULL" for w in mask_words(ranges)])


def _text(value: str) -> str:
    return json.dumps(value)


def _braces(values: Any) -> str:
    return f"{{{', '.join(_braces(v) for v in values)}}}" if isinstance(values, list) else str(values)
