"""`ddpdoctor probe`: start the ranks of this node and probe them together with those of the other nodes."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from ddpdoctor.app.request import Request
from ddpdoctor.cli.options import JoinTimeout, Quick

__all__ = ["probe"]


def probe(
    request: Request,
    nproc_per_node: Annotated[
        str, typer.Option("--nproc-per-node", "--nproc_per_node", metavar="N|gpu|cpu|auto", help="Ranks on this node.")
    ] = "auto",
    nnodes: Annotated[str, typer.Option("--nnodes", metavar="N", help="Nodes of the job.")] = "1",
    node_rank: Annotated[
        int, typer.Option("--node-rank", "--node_rank", metavar="N", min=0, help="This node's number, from 0.")
    ] = 0,
    master_addr: Annotated[
        str | None, typer.Option("--master-addr", "--master_addr", metavar="HOST", help="Address of node 0.")
    ] = None,
    master_port: Annotated[
        int | None,
        typer.Option("--master-port", "--master_port", metavar="PORT", min=1, max=65535, help="Free port on node 0."),
    ] = None,
    rdzv_endpoint: Annotated[
        str | None,
        typer.Option(
            "--rdzv-endpoint", "--rdzv_endpoint", metavar="HOST[:PORT]", help="Node 0's address, as for torchrun."
        ),
    ] = None,
    rdzv_id: Annotated[
        str, typer.Option("--rdzv-id", "--rdzv_id", metavar="ID", help="Separates jobs that use the same port.")
    ] = "ddpdoctor",
    rdzv_backend: Annotated[
        str,
        typer.Option(
            "--rdzv-backend",
            "--rdzv_backend",
            metavar="static|c10d",
            help="Accepted for torchrun compatibility; node 0 always hosts the store.",
        ),
    ] = "static",
    standalone: Annotated[bool, typer.Option("--standalone", help="Probe this node only.")] = False,
    backend: Annotated[
        str, typer.Option("--backend", metavar="auto|nccl|gloo", help="Default: nccl with GPUs.")
    ] = "auto",
    save_baseline: Annotated[
        str | None, typer.Option("--save-baseline", metavar="FILE", help="Save node 0's measurements to FILE.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="FILE", help="Compare with saved measurements (read by node 0).")
    ] = None,
    join_timeout: JoinTimeout = 30.0,
    quick: Quick = False,
) -> int:
    """Start ranks on this node and probe them; on several nodes, run it on each with its --node-rank."""
    from ddpdoctor.app.probe import ProbeOptions, probe_ranks

    nnodes = "1" if standalone else nnodes
    master = (master_addr, master_port, rdzv_endpoint, rdzv_id, rdzv_backend)
    columns = shutil.get_terminal_size((100, 24)).columns
    files = (save_baseline, baseline)
    options = ProbeOptions(nproc_per_node, nnodes, node_rank, *master, backend, *files, join_timeout, columns, quick)
    return probe_ranks(request, options)
