"""Our own control group as the kernels and container runtimes show it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.collectors.cgroup import read_cgroup
from ddpdoctor.facts.host import Cgroup
from ddpdoctor.system.machine import Root

V2_MOUNT = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def _tree(base: Path, groups: str, mounts: str, files: dict[str, str]) -> Root:
    for name, text in {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts, **files}.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Root(str(base))


def _v1(name: str, root: str = "/") -> str:
    return f"33 25 0:28 {root} /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n"


def _read(root: Root) -> Cgroup:
    found = read_cgroup(root)
    assert found is not None
    return found


def test_the_tightest_limit_up_the_tree_counts(tmp_path: Path) -> None:
    slurm = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
    root = _tree(
        tmp_path,
        "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
        V2_MOUNT.format(root="/"),
        {
            f"{slurm}/memory.max": "68719476736\n",
            f"{slurm}/memory.current": "1000\n",
            f"{slurm}/step_0/memory.max": "max\n",
            f"{slurm}/step_0/user/task_0/memory.max": "max\n",
            f"{slurm}/step_0/user/task_0/memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n",
            f"{slurm}/step_0/user/task_0/cpu.max": "max 100000\n",
            f"{slurm}/cpu.max": "400000 100000\n",
            f"{slurm}/step_0/user/task_0/cpuset.cpus.effective": "0-3\n",
        },
    )
    found = _read(root)
    assert (found.version, found.memory_limit_bytes, found.memory_used_bytes) == (2, 68719476736, 1000)
    assert (found.memory_oom_kills, found.cpu_quota, found.cpus) == (1, 4.0, "0-3")


def test_max_at_every_level_is_unlimited_and_not_unknown(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory.max": "max\n",
        "sys/fs/cgroup/pids.max": "max\n",
        "sys/fs/cgroup/pids.current": "4\n",
    }
    found = _read(_tree(tmp_path, "0::/\n", V2_MOUNT.format(root="/"), files))
    assert (found.memory_limit_bytes, found.pids_limit, found.pids_used, found.cpu_quota) == (-1, -1, 4, None)


def test_docker_with_version_1_and_without_a_namespace(tmp_path: Path) -> None:
    group = "/docker/0123456789ab"
    root = _tree(
        tmp_path,
        f"11:memory:{group}\n5:pids:{group}\n4:cpu,cpuacct:{group}\n3:cpuset:{group}\n1:name=systemd:{group}\n",
        _v1("memory", group)
        + _v1("pids", group)
        + _v1("cpuset", group)
        + f"35 25 0:30 {group} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n",
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "77\n",
            "sys/fs/cgroup/memory/memory.stat": "cache 1\nhierarchical_memory_limit 4294967296\n",
            "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            "sys/fs/cgroup/pids/pids.max": "512\n",
            "sys/fs/cgroup/pids/pids.current": "9\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpuset/cpuset.cpus": "0-7\n",
        },
    )
    found = _read(root)
    assert (found.version, found.memory_limit_bytes, found.memory_oom_kills) == (1, 4294967296, 2)
    assert (found.pids_limit, found.pids_used, found.cpu_quota, found.cpus) == (512, 9, 1.5, "0-7")


def test_a_hybrid_machine_has_its_controllers_in_version_1(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        "4:memory:/user\n0::/user.slice\n",
        _v1("memory") + "40 25 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        {
            "sys/fs/cgroup/memory/user/memory.limit_in_bytes": "1073741824\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/unified/user.slice/cgroup.procs": "1\n",
        },
    )
    found = _read(root)
    assert (found.version, found.memory_limit_bytes, found.pids_limit) == (1, 1073741824, None)


def test_a_pod_sees_its_own_group_at_the_mount_point(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        "0::/../../kubepods-burstable-pod7.slice/cri-containerd-1.scope\n",
        V2_MOUNT.format(root="/"),
        {"sys/fs/cgroup/memory.max": "8589934592\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"},
    )
    found = _read(root)
    assert (found.memory_limit_bytes, found.cpu_quota) == (8589934592, 2.0)


def test_without_a_mounted_hierarchy_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert read_cgroup(_tree(tmp_path, "0::/\n", "1 0 8:1 / / rw - ext4 /dev/vda rw\n", {})) is None


def test_no_proc_is_an_error_that_the_collector_turns_into_a_gap(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_cgroup(Root(str(tmp_path)))


@settings(max_examples=60, deadline=None)
@given(groups=st.text(max_size=80), limit=st.text(max_size=30))
def test_no_file_content_crashes_the_reader(tmp_path_factory: pytest.TempPathFactory, groups: str, limit: str) -> None:
    base = tmp_path_factory.mktemp("cgroup")
    text = "0::/" + groups.replace("\0", "").encode("utf-8", "replace").decode()
    files = {name: limit.encode("utf-8", "replace").decode() for name in ("memory.max", "cpu.max", "pids.max")}
    read_cgroup(_tree(base, text, V2_MOUNT.format(root="/"), {f"sys/fs/cgroup/{n}": t for n, t in files.items()}))


def test_a_hierarchy_that_cannot_be_read_is_no_machine_without_one(tmp_path: Path) -> None:
    root = _tree(tmp_path, "0::/user.slice\n", V2_MOUNT.format(root="/"), {})
    with pytest.raises(OSError, match="not readable"):
        read_cgroup(root)
    assert read_cgroup(_tree(tmp_path, "0::/user.slice\n", "", {})) is None
