"""NET028: a service mesh proxy in the pod."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.net import Net
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.manifest.places import manifest_place

__all__ = ["service_mesh_sidecar"]

MESHES = {
    "Istio": ({15001, 15006}, 'annotate the pods with sidecar.istio.io/inject: "false"'),
    "Linkerd": ({4140, 4143}, "annotate the pods with linkerd.io/inject: disabled"),
}
"""The ports on which the proxy of a mesh intercepts the pod's outgoing and incoming traffic."""


@cause("NET028", "service-mesh-sidecar", Severity.ERROR)
def service_mesh_sidecar(environ: Environ, net: Net) -> Iterator[Finding]:
    """A service mesh proxy intercepts the connections between the pods.

    ## Why it matters
    Connections are reported as established, but they end at the proxy. Data on ports that the mesh does not know is dropped or
    reset, so the ranks see a peer that accepts a connection and then never answers.

    ## Fix
    Disable the sidecar for the pods of the job, with an annotation of the mesh.

    ## Example
    ddpdoctor's message:

        the Istio proxy on ports 15001 and 15006 intercepts this pod's connections

    In the pod template of the job:

        # before
        metadata:
          labels: {app: train}
        # after
        metadata:
          labels: {app: train}
          annotations: {sidecar.istio.io/inject: "false"}
    """
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        not_here("not a Kubernetes pod")
    for mesh, (ports, fix) in MESHES.items():
        if ports <= set(net.listening):
            listed = " and ".join(str(port) for port in sorted(ports))
            yield Finding(
                f"the {mesh} proxy on ports {listed} intercepts this pod's connections",
                evidence=(Evidence("net.listening", listed, "no proxy in the pod"),),
                fix=f"{fix[0].upper()}{fix[1:]}.",
                severity=None if net.spans_nodes(environ) else Severity.WARNING,
            )


@service_mesh_sidecar.look
def sidecar_in_pods(launch: Launch) -> Iterator[Finding]:
    """A service mesh sidecar in the pods of a job."""
    for line in launch.lines:
        pod = line.pod
        if pod is None or not pod.is_meshed or (pod.pods or 0) < 2:
            continue
        yield Finding(
            f"a service mesh adds a sidecar to the {pod.pods} pods of the job",
            (Evidence("launch.pod.is_meshed", "true", "false"),),
            where=manifest_place(line, pod.mesh_at),
            label="disable sidecar injection",
        )
