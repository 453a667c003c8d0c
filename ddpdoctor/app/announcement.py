"""What one node announces to the others: what it was given, what it is, and its launch line without secrets."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.nodes import Form, Node
from ddpdoctor.facts.variables import is_secret
from ddpdoctor.launch.jobs import LocalJob
from ddpdoctor.privacy.redaction import redact, redact_variable

if TYPE_CHECKING:
    from ddpdoctor.facts.launch.record import LaunchLine
    from ddpdoctor.facts.record import Facts

__all__ = ["NodeAnnouncement"]

SENT_PREFIXES = ("PET_", "TORCH", "MASTER_", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "NODE_")


class NodeAnnouncement:
    """One node's part of a job by its launch command; `line` is None for a rank that only its environment describes."""

    def __init__(self, job: LocalJob, line: LaunchLine | None) -> None:
        self.job = job
        self._line = line

    def node(self, facts: Facts, owns: bool) -> Node:
        """What this node announces of itself."""
        from ddpdoctor.collectors.multinode import machine_key, script_hash
        from ddpdoctor.facts.comparable_properties import node_of
        from ddpdoctor.system.machine import this_machine

        job, script, node = self.job, self.script(), node_of(facts)
        return replace(
            node,
            full_name=job.local_addr or node.full_name,
            form=job.form,
            machine=machine_key(),
            node_rank=job.node_rank,
            rank=job.rank,
            local_rank=job.local_rank,
            world_size=job.world_size,
            nnodes=job.nnodes,
            least=job.least,
            nproc=self.nproc(facts),
            launcher=job.launcher,
            uniform=job.uniform,
            master_addr=job.master_addr,
            master_port=job.master_port,
            rdzv_id=job.rdzv_id,
            owns=owns,
            is_scheduled=self._is_scheduled(),
            traits=redact(node.traits),
            script=script and os.path.basename(script),
            script_hash=script_hash(this_machine(), script) if script and os.path.isabs(script) else None,
        )

    def nproc(self, facts: Facts) -> int | None:
        """The ranks that this node's launcher starts."""
        if self.job.nproc is not None or self.job.form == Form.ENV or self._line is None or self._line.plan is None:
            return self.job.nproc
        from ddpdoctor.facts.visibility import visible

        word = self._line.plan.settings["nproc_per_node"].value
        gpus = visible(facts.environ.variables if facts.environ else {}, facts.gpu).count if facts.gpu else 0
        if word == "cpu" or (word == "auto" and not gpus):
            return os.cpu_count()
        return gpus or None

    def _is_scheduled(self) -> bool:
        """Whether a scheduler started this very command, perhaps several times on one node."""
        launcher = Environ(variables=dict(os.environ)).launcher
        return launcher is not None and launcher.name in ("srun", "openmpi", "mpich", "mvapich2", "jsrun")

    def script(self) -> str | None:
        """The script's path; the name of a module, or of a script that is not on this machine."""
        line = self._line
        if line is None or line.program is None:
            return None
        if line.script is not None:
            return os.path.abspath(line.script.path)
        found = (line.starter or line.program).reading.script
        return None if found is None else found.known

    def launcher_line(self) -> dict[str, Any]:
        """The launch command as the host node needs it, to compare it with the commands of the other nodes."""
        if self._line is None or self.job.form == Form.ENV:
            return {}
        variables = self._line.environ.variables.items()
        known = {name: redact_variable(name, value) for name, value in variables if _is_sent(name)}
        return {"argv": _launchers_words(self._line), "environ": known, "cwd": self._line.cwd or "/"}


def _is_sent(name: str) -> bool:
    return name.startswith(SENT_PREFIXES) and not is_secret(name)


def _launchers_words(line: LaunchLine) -> list[str]:
    """The words of the launcher, up to the script: the script's own arguments are not sent."""
    starter = line.starter
    script = starter.reading.script if starter is not None else None
    end = script.end if script is not None else len(line.source)
    kept = [word for word in line.argv if word.end <= end]
    sent = [word.text for word in kept if word.assignment is None or _is_sent(word.assignment[0])]
    return [str(word) for word in redact(sent)]
