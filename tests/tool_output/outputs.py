"""Texts in the forms in which tools print them, made for these tests: the layouts are the tools', the machines are not real."""

from __future__ import annotations

__all__ = [
    "COLLECT_ENV",
    "DCGM_DIAG",
    "DCGM_HEALTH",
    "DCGM_JSON",
    "ENVIRONMENT",
    "FABRIC_MANAGER",
    "IBSTAT",
    "IBSTATUS",
    "IBV_DEVINFO",
    "IP_ADDR",
    "KUBECTL_NODE",
    "LSPCI",
    "NCCL_TESTS",
    "NCCL_TOPOLOGY",
    "SCONTROL_NODE",
    "SMI_CSV",
    "ULIMIT",
    "nvlink_status",
    "smi_query",
    "smi_table",
    "smi_xml",
    "topology",
]


def smi_table(count: int = 2, *, driver: str = "550.90.12") -> str:
    """The table of plain nvidia-smi for GPUs of one kind; `ERRORS@i` and so on stand for cells that tests replace."""
    rows = "".join(
        f"|   {i}  NVIDIA H100 80GB HBM3          On  |   00000000:{0x10 + i:02X}:00.0 Off |                    0 |\n"
        f"| N/A   3{i}C    P0             70W /  700W |       1MiB /  81559MiB |      0%      Default |\n"
        "|                                         |                        |             Disabled |\n"
        "+-----------------------------------------+------------------------+----------------------+\n"
        for i in range(count)
    )
    return (
        "Mon Jan  5 10:11:12 2026       \n"
        "+-----------------------------------------------------------------------------------------+\n"
        f"| NVIDIA-SMI {driver}              Driver Version: {driver}      CUDA Version: 12.4     |\n"
        "|-----------------------------------------+------------------------+----------------------+\n"
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
        "|                                         |                        |               MIG M. |\n"
        "|=========================================+========================+======================|\n"
        f"{rows}"
        "                                                                                         \n"
        "+-----------------------------------------------------------------------------------------+\n"
        "| Processes:                                                                              |\n"
        "|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |\n"
        "|=========================================================================================|\n"
        "|    0   N/A  N/A     12345      C   python                                      7000MiB |\n"
        "+-----------------------------------------------------------------------------------------+\n"
    )


_QUERY = """\
GPU 00000000:{bus:02X}:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Product Brand                         : NVIDIA
    Product Architecture                  : Hopper
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU UUID                              : GPU-0000000{index}-aaaa-bbbb-cccc-ddddeeeeffff
    Minor Number                          : {index}
    VBIOS Version                         : 96.00.74.00.01
    Inforom Version
        Image Version                     : G520.0200.00.05
    GPU Virtualization Mode
        Virtualization Mode               : None
        Host VGPU Mode                    : N/A
    GPU Recovery Action                   : None
    PCI
        Bus                               : 0x{bus:02X}
        Bus Id                            : 00000000:{bus:02X}:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 5
                Device Current            : 5
                Device Max                : 5
                Host Max                  : 5
            Link Width
                Max                       : 16x
                Current                   : 16x
        Replays Since Reset               : 0
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Active
        Applications Clocks Setting       : Not Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Not Active
        Sync Boost                        : Not Active
        SW Thermal Slowdown               : Not Active
    FB Memory Usage
        Total                             : 81559 MiB
        Reserved                          : 551 MiB
        Used                              : 1 MiB
        Free                              : 81007 MiB
    BAR1 Memory Usage
        Total                             : 131072 MiB
    Compute Mode                          : Default
    Utilization
        Gpu                               : 0 %
        Memory                            : 0 %
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
        Aggregate
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
            SRAM Threshold Exceeded       : No
    Retired Pages
        Single Bit ECC                    : N/A
        Double Bit ECC                    : N/A
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 0
        Pending                           : No
        Remapping Failure Occurred        : No
        Bank Remap Availability Histogram
            Max                           : 2560 bank(s)
            High                          : 0 bank(s)
            Partial                       : 0 bank(s)
            Low                           : 0 bank(s)
            None                          : 0 bank(s)
    Temperature
        GPU Current Temp                  : 33 C
        GPU T.Limit Temp                  : 52 C
        GPU Shutdown T.Limit Temp         : -8 C
        GPU Slowdown T.Limit Temp         : -2 C
        Memory Current Temp               : 41 C
    GPU Power Readings
        Average Power Draw                : 70.11 W
        Current Power Limit               : 700.00 W
        Default Power Limit               : 700.00 W
        Min Power Limit                   : 200.00 W
        Max Power Limit                   : 700.00 W
    Clocks
        Graphics                          : 1980 MHz
        SM                                : 1980 MHz
        Memory                            : 2619 MHz
    Applications Clocks
        Graphics                          : 1980 MHz
        Memory                            : 2619 MHz
    Default Applications Clocks
        Graphics                          : 1980 MHz
        Memory                            : 2619 MHz
    Max Clocks
        Graphics                          : 1980 MHz
        SM                                : 1980 MHz
        Memory                            : 2619 MHz
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 0
        ClusterUUID                       : 00000000-0000-0000-0000-000000000000
        Health
            Bandwidth                     : Full
            Route Recovery in progress    : False
            Route Unhealthy               : False
            Access Timeout Recovery       : False
    Processes                             : None

"""


def smi_query(count: int = 2, attached: int | None = None) -> str:
    """`nvidia-smi -q` of a recent driver."""
    head = (
        "\n==============NVSMI LOG==============\n\n"
        "Timestamp                                 : Mon Jan  5 10:11:12 2026\n"
        "Driver Version                            : 570.86.15\n"
        "CUDA Version                              : 12.8\n\n"
        f"Attached GPUs                             : {count if attached is None else attached}\n"
    )
    return head + "".join(_QUERY.format(bus=0x10 + i, index=i) for i in range(count))


_XML = """\
	<gpu id="00000000:{bus:02X}:00.0">
		<product_name>NVIDIA A100-SXM4-80GB</product_name>
		<product_architecture>Ampere</product_architecture>
		<persistence_mode>Enabled</persistence_mode>
		<mig_mode>
			<current_mig>Disabled</current_mig>
			<pending_mig>Disabled</pending_mig>
		</mig_mode>
		<uuid>GPU-0000000{index}-aaaa-bbbb-cccc-ddddeeeeffff</uuid>
		<minor_number>{index}</minor_number>
		<gpu_virtualization_mode>
			<virtualization_mode>None</virtualization_mode>
		</gpu_virtualization_mode>
		<pci>
			<pci_gpu_link_info>
				<pcie_gen>
					<max_link_gen>4</max_link_gen>
					<current_link_gen>4</current_link_gen>
				</pcie_gen>
				<link_widths>
					<max_link_width>16x</max_link_width>
					<current_link_width>16x</current_link_width>
				</link_widths>
			</pci_gpu_link_info>
			<replay_counter>0</replay_counter>
		</pci>
		<performance_state>P0</performance_state>
		<fb_memory_usage>
			<total>81920 MiB</total>
			<reserved>869 MiB</reserved>
			<used>4 MiB</used>
		</fb_memory_usage>
		<compute_mode>Default</compute_mode>
		<utilization>
			<gpu_util>0 %</gpu_util>
		</utilization>
		<ecc_mode>
			<current_ecc>Enabled</current_ecc>
			<pending_ecc>Enabled</pending_ecc>
		</ecc_mode>
		<ecc_errors>
			<volatile>
				<sram_correctable>0</sram_correctable>
				<sram_uncorrectable>0</sram_uncorrectable>
				<dram_correctable>0</dram_correctable>
				<dram_uncorrectable>0</dram_uncorrectable>
			</volatile>
		</ecc_errors>
		<remapped_rows>
			<remapped_row_corr>0</remapped_row_corr>
			<remapped_row_unc>0</remapped_row_unc>
			<remapped_row_pending>No</remapped_row_pending>
			<remapped_row_failure>No</remapped_row_failure>
		</remapped_rows>
		<temperature>
			<gpu_temp>31 C</gpu_temp>
			<gpu_temp_slow_threshold>89 C</gpu_temp_slow_threshold>
		</temperature>
		<power_readings>
			<power_draw>60.00 W</power_draw>
			<power_limit>400.00 W</power_limit>
			<default_power_limit>400.00 W</default_power_limit>
		</power_readings>
	</gpu>
"""


def smi_xml(count: int = 2) -> str:
    """`nvidia-smi -q -x` of a driver of 2022."""
    head = (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v11.dtd">\n<nvidia_smi_log>\n'
        "\t<driver_version>515.65.01</driver_version>\n\t<cuda_version>11.7</cuda_version>\n"
        f"\t<attached_gpus>{count}</attached_gpus>\n"
    )
    return head + "".join(_XML.format(bus=0x10 + i, index=i) for i in range(count)) + "</nvidia_smi_log>\n"


def topology(links: int = 18, weak: int | None = None, weak_links: int = 16) -> str:
    """`nvidia-smi topo -m` of eight GPUs on NVSwitches; the row and the column of the GPU `weak` show fewer links."""
    names = [f"GPU{i}" for i in range(8)]
    lines = ["\t" + "\t".join([*names, "NIC0", "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for i, name in enumerate(names):
        cells = [" X " if j == i else f"NV{weak_links if weak in (i, j) else links}" for j in range(8)]
        lines.append("\t".join([name, *cells, "PIX" if i == 0 else "SYS", "0-47", "0", "N/A"]))
    lines += [
        "NIC0\tPIX" + "\tSYS" * 7 + "\t X ",
        "",
        "Legend:",
        "",
        "  X    = Self",
        "",
        "NIC Legend:",
        "",
        "  NIC0: mlx5_0",
        "",
    ]
    return "\n".join(lines)


def nvlink_status(count: int = 2, links: int = 18, down: tuple[int, int] | None = None) -> str:
    """`nvidia-smi nvlink -s`; `down` is a GPU and its inactive link."""
    text = ""
    for i in range(count):
        text += f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-0000000{i}-aaaa-bbbb-cccc-ddddeeeeffff)\n"
        text += "".join(f"\t Link {n}: {'<inactive>' if down == (i, n) else '26.562 GB/s'}\n" for n in range(links))
    return text


SMI_CSV = """\
index, name, uuid, pci.bus_id, pstate, temperature.gpu, utilization.gpu [%], memory.total [MiB], ecc.mode.current, \
ecc.errors.uncorrected.volatile.total, remapped_rows.pending, remapped_rows.failure
0, NVIDIA A100-SXM4-80GB, GPU-00000000-aaaa, 00000000:10:00.0, P0, 31, 0 %, 81920 MiB, Enabled, 0, No, No
1, NVIDIA A100-SXM4-80GB, GPU-00000001-aaaa, 00000000:11:00.0, P0, 32, 0 %, 81920 MiB, Enabled, 0, Yes, No
"""

IBSTAT = """\
CA 'mlx5_0'
	CA type: MT4129
	Number of ports: 1
	Firmware version: 28.39.1002
	Hardware version: 0
	Node GUID: 0xa088c20300123456
	Port 1:
		State: Active
		Physical state: LinkUp
		Rate: 400
		Base lid: 868
		LMC: 0
		SM lid: 334
		Link layer: InfiniBand
CA 'mlx5_1'
	CA type: MT4129
	Number of ports: 1
	Firmware version: 28.39.1002
	Port 1:
		State: Down
		Physical state: Polling
		Rate: 10
		Base lid: 65535
		Link layer: InfiniBand
"""

IBSTATUS = """\
Infiniband device 'mlx5_0' port 1 status:
	default gid:	 fe80:0000:0000:0000:a088:c203:0012:3456
	base lid:	 0x364
	sm lid:		 0x14e
	state:		 4: ACTIVE
	phys state:	 5: LinkUp
	rate:		 400 Gb/sec (4X NDR)
	link_layer:	 InfiniBand

Infiniband device 'mlx5_1' port 1 status:
	default gid:	 fe80:0000:0000:0000:a088:c203:0012:3457
	base lid:	 0xffff
	sm lid:		 0x0
	state:		 1: DOWN
	phys state:	 3: Disabled
	rate:		 10 Gb/sec (4X SDR)
	link_layer:	 InfiniBand
"""

IBV_DEVINFO = """\
hca_id:	mlx5_0
	transport:			InfiniBand (0)
	fw_ver:				28.39.1002
	node_guid:			a088:c203:0012:3456
	vendor_part_id:			4129
	phys_port_cnt:			1
		port:	1
			state:			PORT_ACTIVE (4)
			max_mtu:		4096 (5)
			active_mtu:		4096 (5)
			link_layer:		InfiniBand
			active_width:		4X (2)
			active_speed:		100.0 Gbps (128)
			phys_state:		LINK_UP (5)

hca_id:	mlx5_1
	fw_ver:				28.39.1002
	phys_port_cnt:			1
		port:	1
			state:			PORT_DOWN (1)
			link_layer:		InfiniBand
"""

DCGM_DIAG = """\
Successfully ran diagnostic for group.
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
|-----  Metadata  ----------+------------------------------------------------|
| DCGM Version              | 3.3.5                                          |
| Driver Version Detected   | 550.90.12                                      |
|-----  Deployment  --------+------------------------------------------------|
| Denylist                  | Pass                                           |
| NVML Library              | Pass                                           |
| Page Retirement/Row Remap | Pass                                           |
+-----  Integration  -------+------------------------------------------------+
| PCIe                      | Fail - GPU: 3                                  |
| Warning                   | GPU 3 Detected 42 PCIe replays per minute for  |
|                           |  GPU 3                                         |
+-----  Hardware  ----------+------------------------------------------------+
| GPU Memory                | Pass - All                                     |
| Pulse Test                | Skip - All                                     |
+---------------------------+------------------------------------------------+
"""

DCGM_JSON = """\
{
  "DCGM Diagnostic" : {
    "test_categories" : [
      {
        "category" : "Deployment",
        "tests" : [
          { "name" : "software", "results" : [ { "entity_group" : "GPU", "entity_id" : 0, "status" : "Pass" } ] }
        ]
      },
      {
        "category" : "Hardware",
        "tests" : [
          {
            "name" : "memory",
            "results" : [
              { "entity_group" : "GPU", "entity_id" : 0, "status" : "Pass" },
              { "entity_group" : "GPU", "entity_id" : 5, "status" : "Fail",
                "warnings" : [ { "error_id" : 9, "warning" : "GPU 5 has a pending row remapping" } ] }
            ],
            "test_summary" : { "status" : "Fail" }
          }
        ]
      }
    ]
  }
}
"""

DCGM_HEALTH = """\
+---------------------------+----------------------------------------------------------+
| Health Monitor Report                                                                |
+===========================+==========================================================+
| Overall Health            | Failure                                                  |
| GPU                       |                                                          |
| -> 2                      | Failure                                                  |
|    -> Errors              |                                                          |
|       -> NVLINK system    | Failure                                                  |
|                           | GPU 2's NvLink link 4 is currently down                  |
+---------------------------+----------------------------------------------------------+
"""

LSPCI = """\
3a:00.0 PCI bridge: PLX Technology, Inc. PEX 8796 96-lane, 24-Port PCI Express Gen 3 (8.0 GT/s) Switch (rev ca) (prog-if 00)
	Bus: primary=3a, secondary=3b, subordinate=40, sec-latency=0
	Capabilities: [f24 v1] Access Control Services
		ACSCap:	SrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl+ DirectTrans+
		ACSCtl:	SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
3b:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)
	LnkCap:	Port #0, Speed 32GT/s, Width x16, ASPM not supported
	LnkSta:	Speed 32GT/s, Width x16
5e:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]
	LnkCap:	Port #0, Speed 32GT/s, Width x16, ASPM not supported
	LnkSta:	Speed 16GT/s (downgraded), Width x8 (downgraded)
"""

_RANKS = "".join(
    f"#  Rank {i:2d} Group  0 Pid {4000 + i:6d} on     gpu-07 device  {i} [0x{0x10 + i:02x}] NVIDIA H100 80GB HBM3\n"
    for i in range(8)
)
NCCL_TESTS = f"""\
# nThread 1 nGpus 1 minBytes 268435456 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
{_RANKS}#
#                                                              out-of-place                       in-place          \x20
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       \x20
   268435456      67108864     float     sum      -1   1178.2  227.84  398.72      0   1177.0  228.07  399.12      0
   536870912     134217728     float     sum      -1   2200.1  244.02  427.04      0   2199.0  244.14  427.25      0
  1073741824     268435456     float     sum      -1   4300.0  249.71  436.99      0   4298.0  249.82  437.19      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 421.05
"""

NCCL_TOPOLOGY = """\
<system version="1">
  <cpu host_hash="0x1" numaid="0" affinity="ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:10:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="90" rank="0" gdr="1">
        <nvlink target="0000:05:00.0" count="9" tclass="0x068000"/>
        <nvlink target="0000:06:00.0" count="9" tclass="0x068000"/>
      </gpu>
    </pci>
    <pci busid="0000:11:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="90" rank="1" gdr="1">
        <nvlink target="0000:05:00.0" count="9" tclass="0x068000"/>
        <nvlink target="0000:06:00.0" count="7" tclass="0x068000"/>
      </gpu>
    </pci>
    <nic>
      <net name="mlx5_0" dev="0" speed="400000" port="1" latency="0.000000" guid="0x1" maxconn="131072" gdr="1"/>
    </nic>
  </cpu>
</system>
"""

COLLECT_ENV = """\
Collecting environment information...
PyTorch version: 2.5.1+cu124
Is debug build: False
CUDA used to build PyTorch: 12.4
ROCM used to build PyTorch: N/A

OS: Ubuntu 20.04.6 LTS (x86_64)
Python version: 3.10.12 (main, Nov 20 2023, 15:14:05) [GCC 11.4.0] (64-bit runtime)
Is CUDA available: False
CUDA runtime version: Could not collect
GPU models and configuration:
GPU 0: Tesla V100-SXM2-32GB
GPU 1: Tesla V100-SXM2-32GB

Nvidia driver version: 470.82.01
cuDNN version: Could not collect

Versions of relevant libraries:
[pip3] numpy==1.26.4
[pip3] nvidia-nccl-cu12==2.21.5
[pip3] torch==2.5.1
"""

IP_ADDR = """\
1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000
    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
    inet 127.0.0.1/8 scope host lo
       valid_lft forever preferred_lft forever
2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP group default qlen 1000
    link/ether 52:54:00:12:34:56 brd ff:ff:ff:ff:ff:ff
    inet 10.0.0.7/24 brd 10.0.0.255 scope global eth0
    inet6 fe80::5054:ff:fe12:3456/64 scope link
3: ib0: <BROADCAST,MULTICAST> mtu 4092 qdisc mq state DOWN group default qlen 256
    link/infiniband 00:00:10:29:fe:80:00:00:00:00:00:00:a0:88:c2:03:00:12:34:56 brd 00:ff:ff:ff
"""

ULIMIT = """\
core file size          (blocks, -c) 0
data seg size           (kbytes, -d) unlimited
max locked memory       (kbytes, -l) 64
max memory size         (kbytes, -m) unlimited
open files                      (-n) 32
stack size              (kbytes, -s) 8192
max user processes              (-u) 1030000
virtual memory          (kbytes, -v) unlimited
"""

ENVIRONMENT = """\
PATH=/usr/local/bin:/usr/bin
HOME=/home/user
HOSTNAME=gpu-07
NCCL_P2P_LEVEL=nvl
NCCL_DEBUG=INFO
"""

SCONTROL_NODE = """\
NodeName=gpu-07 Arch=x86_64 CoresPerSocket=48
   CPUAlloc=0 CPUEfctv=96 CPUTot=96 CPULoad=0.10
   AvailableFeatures=(null)
   Gres=gpu:h100:8(S:0-1)
   NodeAddr=gpu-07 NodeHostName=gpu-07 Version=23.11.4
   State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Reason=NHC: check_gpu: GPU count 7, expected 8 [root@2026-01-05T10:11:12]
"""

KUBECTL_NODE = """\
Name:               gpu-07
Roles:              worker
Labels:             kubernetes.io/arch=amd64
Unschedulable:      false
Conditions:
  Type                 Status  LastHeartbeatTime                 LastTransitionTime                Reason               Message
  ----                 ------  -----------------                 ------------------                ------               -------
  MemoryPressure       False   Mon, 05 Jan 2026 10:11:12 +0000   Mon, 05 Jan 2026 09:11:12 +0000   KubeletHasMemory     ok
  Ready                True    Mon, 05 Jan 2026 10:11:12 +0000   Mon, 05 Jan 2026 09:11:12 +0000   KubeletReady         ready
Capacity:
  cpu:                192
  nvidia.com/gpu:     8
Allocatable:
  cpu:                191
  nvidia.com/gpu:     7
System Info:
  Machine ID:                 0123
"""

FABRIC_MANAGER = """\
[Jan 05 2026 10:11:12] [INFO] [tid 4242] Fabric Manager version 570.86.15 is running with the following configuration options
[Jan 05 2026 10:11:13] [ERROR] [tid 4242] failed to initialize NVSwitch devices, request to query NVSwitch count failed
[Jan 05 2026 10:11:13] [INFO] [tid 4242] exiting
"""
