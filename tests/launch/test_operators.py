"""Manifests executed on an imagined cluster: the pods of every kind, their ranks, and the mistakes that their jobs show."""

from __future__ import annotations

import pytest
from cases import SITUATIONS

from ddpdoctor.app.lint_lines import environ_of
from ddpdoctor.engine import judge
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.launch.evaluator.jobs import ImaginedJob
from ddpdoctor.launch.evaluator.manifests import MOST_LAUNCHED, imagined_manifest_jobs, pods_of_manifest
from ddpdoctor.rules import load

VERSION = (2, 13)
LEGAL = sorted((SITUATIONS / "manifests").glob("*.yaml"))
TORCHRUN = "torchrun --nnodes=2 --node-rank={} --nproc-per-node=2 --master-addr={} train.py"


def jobs_of(text: str) -> tuple[ImaginedJob, ...]:
    return imagined_manifest_jobs(text, "job.yaml", VERSION)[0]


def job_of(text: str) -> ImaginedJob:
    (job,) = jobs_of(text)
    return job


def codes(*jobs: ImaginedJob) -> list[str]:
    """What the rules on jobs say."""
    rules = [rule for rule in load(("launch", "environ", "net")) if "job" in (*rule.needs, *rule.wants)]
    found = []
    for job in jobs:
        environ = environ_of(job.launch)
        facts = Facts(schema=SCHEMA, collected_at="", hostname="h", launch=job.launch, job=job.job, environ=environ)
        outcome = judge(facts, rules)
        assert not outcome.crashed
        found += [finding.code for finding in outcome.findings]
    return sorted(found)


def hosts(job: ImaginedJob) -> list[str]:
    return [each.place.host for each in job.launched]


def ranks(job: ImaginedJob) -> list[tuple[int | None, int | None]]:
    return [(process.rank, process.world_size) for process in job.job.processes]


def complete(world: int) -> list[tuple[int | None, int | None]]:
    return [(rank, world) for rank in range(world)]


def environ(job: ImaginedJob, at: int = 0) -> dict[str, str]:
    return {name: value.text for name, value in job.launched[at].environ.items()}


def master_is_a_pod(job: ImaginedJob) -> bool:
    return (job.job.rendezvous.host or "").partition(".")[0] in hosts(job)


def indented(text: str, by: int) -> str:
    return text.replace("\n", "\n" + " " * by)


def pytorchjob(command: str, *, workers: int = 1, nproc: str = "", spec: str = "", env: str = "[]") -> str:
    extra = "".join(f"  {row}\n" for row in (f'nprocPerNode: "{nproc}"' if nproc else "", spec) if row)
    role = """
      replicas: {}
      template:
        spec:
          containers:
          - name: pytorch
            env: {}
            command: [bash, -c, '{}']"""
    return (
        f"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: bert}}\nspec:\n{extra}  pytorchReplicaSpecs:\n"
        f"    Master:{role.format(1, env, command)}\n    Worker:{role.format(workers, env, command)}\n"
    )


OWN = "torchrun --nnodes=$PET_NNODES --node-rank=$RANK --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT"


def workload(
    kind: str, spec: str, command: str, *, name: str = "fit", env: str = "[]", version: str = "batch/v1"
) -> str:
    """An object with one pod template."""
    pod = f"{{spec: {{containers: [{{name: c, env: {env}, command: [sh, -c, '{command}']}}]}}}}"
    return f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n  {indented(spec.format(pod=pod), 2)}\n"


INDEXED = "completions: 2\nparallelism: 2\ncompletionMode: Indexed\ntemplate: {pod}"
JOBSET = (
    "replicatedJobs:\n- name: w\n  replicas: 1\n  template:\n    spec:\n"
    "      parallelism: 2\n      completions: 2\n      template: {pod}"
)
STATEFUL = "serviceName: fit\nreplicas: 2\ntemplate: {pod}"
LWS = "replicas: 2\nleaderWorkerTemplate:\n  size: 2\n  workerTemplate: {pod}"
VOLCANO = "plugins: {{env: [], svc: []}}\ntasks:\n- name: node\n  replicas: 2\n  template: {pod}"
VOLCANO_PYTORCH = (
    "plugins: {{pytorch: [--master=boss, --worker=hand, --port=1234]}}\ntasks:\n"
    "- name: boss\n  replicas: 1\n  template: &t {pod}\n- name: hand\n  replicas: 1\n  template: *t"
)


@pytest.mark.parametrize("path", LEGAL, ids=lambda path: path.stem)
def test_legal_manifests_give_jobs_without_findings(path) -> None:  # type: ignore[no-untyped-def]
    jobs = jobs_of(path.read_text())
    assert codes(*jobs) == []
    for job in jobs:
        assert {each.origin.file for each in job.launched} == {"job.yaml"}
        sizes = {agent.plan.nnodes for agent in job.job.agents if agent.plan.backend == "static"}
        assert sizes <= {(len(job.launched), len(job.launched))}
    assert bool(jobs) is (path.stem not in ("arguments_of_an_entrypoint", "chart_template"))


# ---- PyTorchJob


def test_a_pytorchjob_numbers_its_pods_from_the_master() -> None:
    job = job_of(pytorchjob(f"{OWN} --nproc-per-node=2 train.py", workers=2))
    assert hosts(job) == ["bert-master-0", "bert-worker-0", "bert-worker-1"]
    assert ranks(job) == complete(6)
    assert master_is_a_pod(job)
    assert (job.job.rendezvous.port, codes(job)) == (23456, [])
    found = environ(job, 2)
    assert (found["RANK"], found["WORLD_SIZE"], found["PET_NODE_RANK"], found["PET_NNODES"]) == ("2", "3", "2", "3")
    assert (found["MASTER_ADDR"], found["PET_MASTER_ADDR"]) == ("bert-master-0", "bert-master-0")


def test_without_options_the_pet_variables_decide() -> None:
    job = job_of(pytorchjob("torchrun train.py", nproc="4"))
    assert ranks(job) == complete(8)
    assert environ(job)["WORLD_SIZE"] == "8"
    assert codes(job) == []


def test_world_size_counts_processes_where_nproc_per_node_is_set() -> None:
    job = job_of(pytorchjob("torchrun --nnodes=$WORLD_SIZE train.py", nproc="8"))
    assert {agent.plan.nnodes for agent in job.job.agents} == {(16, 16)}
    assert len(job.job.agents) == 2


def test_nproc_that_contradicts_nproc_per_node() -> None:
    job = job_of(pytorchjob("torchrun --nproc-per-node=4 train.py", nproc="8"))
    assert {process.world_size for process in job.job.processes} == {8}
    assert environ(job)["WORLD_SIZE"] == "16"


def test_one_node_rank_for_all_pods() -> None:
    job = job_of(pytorchjob("torchrun --node-rank=0 --nproc-per-node=1 train.py"))
    assert ranks(job) == [(0, 2), (0, 2)]
    assert codes(job) == ["LAUNCH036"]


def test_a_master_of_another_job() -> None:
    command = "torchrun --rdzv-backend=c10d --rdzv-endpoint=llama-master-0:29400 --nproc-per-node=1 train.py"
    job = job_of(pytorchjob(command))
    assert not master_is_a_pod(job)
    assert codes(job) == ["NET012"]


def test_workers_of_another_world() -> None:
    text = pytorchjob("torchrun --nnodes=3 --nproc-per-node=1 train.py")
    last = text.rindex("--nnodes=3")
    job = job_of(text[:last] + "--nnodes=2" + text[last + 10 :])
    assert codes(job) == ["LAUNCH035"]


def test_the_operator_wins_over_variables_of_the_container() -> None:
    text = pytorchjob(
        "torchrun --nproc-per-node=1 train.py", env='[{name: MASTER_ADDR, value: a}, {name: X, value: "$(RANK)"}]'
    )
    found = environ(job_of(text))
    assert found["MASTER_ADDR"] == "bert-master-0"
    assert found["X"] == "$(RANK)"  # a variable sees only those before it


def test_every_pod_as_its_own_master() -> None:
    env = "[{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"
    job = job_of(pytorchjob("torchrun --master-addr=$POD --master-port=29500 --nproc-per-node=1 train.py", env=env))
    assert codes(job) == ["ENV020"]


def test_an_elastic_job_gets_its_rendezvous() -> None:
    policy = "elasticPolicy: {minReplicas: 1, maxReplicas: 3, rdzvId: one, maxRestarts: 2}"
    job = job_of(pytorchjob("torchrun --nproc-per-node=2 train.py", workers=2, spec=policy))
    agent = job.job.agents[0]
    assert (agent.plan.nnodes, agent.plan.backend, agent.plan.host) == ((1, 3), "c10d", "bert-worker-0")
    assert (agent.plan.rdzv_id, environ(job)["PET_MAX_RESTARTS"]) == ("one", "2")
    assert codes(job) == []


# ---- TrainJob


TRAINJOB = """apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: fit}
spec:
  runtimeRef: {name: torch-distributed}
  trainer: {numNodes: 2, numProcPerNode: 2, command: [torchrun, %s]}
"""


def test_a_trainjob_runs_the_nodes_of_its_runtime() -> None:
    job = job_of(TRAINJOB % "train.py")
    assert hosts(job) == ["fit-node-0-0", "fit-node-0-1"]
    assert ranks(job) == complete(4)
    assert (job.job.rendezvous.host, job.job.rendezvous.port) == ("fit-node-0-0.fit", 29500)
    assert master_is_a_pod(job)


def test_a_trainjob_takes_the_command_of_a_runtime_in_the_file() -> None:
    runtime = (SITUATIONS / "manifests" / "training_runtime.yaml").read_text()
    text = f"{runtime}---\n{TRAINJOB.replace(', command: [torchrun, %s]', '')}"
    job = job_of(text)
    assert ranks(job) == complete(4)
    assert job.job.name == "/workspace/train.py"


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--node-rank=1, train.py", ["LAUNCH036", "LAUNCH037"]),
        ("--standalone, train.py", []),
        ("--nnodes=3, train.py", []),
    ],
)
def test_a_trainjob_whose_options_contradict_its_runtime(option: str, expected: list[str]) -> None:
    jobs = jobs_of(TRAINJOB % option)
    assert codes(*jobs) == expected
    assert [len(job.job.agents) for job in jobs] != [2] or ranks(jobs[0]) != complete(4)


def test_a_runtime_of_mpi_is_not_taken_for_one_of_torch() -> None:
    jobs, left_out, _ = imagined_manifest_jobs(
        TRAINJOB.replace("torch-distributed", "mpi-distributed") % "a.py", "t", VERSION
    )
    assert jobs == ()
    assert "not one of torch" in left_out[0]


# ---- groups of pods


@pytest.mark.parametrize(
    ("kind", "spec", "version", "rank", "master", "first"),
    [
        ("Job", INDEXED, "batch/v1", "$JOB_COMPLETION_INDEX", "fit-0.fit", "fit-0"),
        ("JobSet", JOBSET, "jobset.x-k8s.io/v1alpha2", "$JOB_COMPLETION_INDEX", "fit-w-0-0.fit", "fit-w-0-0"),
        ("StatefulSet", STATEFUL, "apps/v1", "${HOSTNAME##*-}", "fit-0.fit", "fit-0"),
        ("Job", VOLCANO, "batch.volcano.sh/v1alpha1", "$VK_TASK_INDEX", "${VC_NODE_HOSTS%%,*}", "fit-node-0"),
        ("Job", VOLCANO_PYTORCH, "batch.volcano.sh/v1alpha1", "$RANK", "$MASTER_ADDR", "fit-boss-0"),
    ],
)
class TestGroupsOfPods:
    """Kinds whose pods make one job of two nodes."""

    def text(self, kind: str, spec: str, version: str, rank: str, master: str) -> str:
        return workload(kind, spec, TORCHRUN.format(rank, master), version=version)

    def test_ranks_are_complete(self, kind: str, spec: str, version: str, rank: str, master: str, first: str) -> None:
        job = job_of(self.text(kind, spec, version, rank, master))
        assert hosts(job)[0] == first
        assert ranks(job) == complete(4)
        assert master_is_a_pod(job)
        assert codes(job) == []

    def test_one_rank_for_all(self, kind: str, spec: str, version: str, rank: str, master: str, first: str) -> None:
        job = job_of(self.text(kind, spec, version, "1", master))
        assert ranks(job) == [(2, 4), (3, 4), (2, 4), (3, 4)]
        assert {"LAUNCH036", "LAUNCH037"} & set(codes(job))

    def test_each_pod_its_own_master(
        self, kind: str, spec: str, version: str, rank: str, master: str, first: str
    ) -> None:
        job = job_of(self.text(kind, spec, version, rank, "$(hostname)"))
        assert "ENV020" in codes(job)

    def test_more_replicas_than_nodes(
        self, kind: str, spec: str, version: str, rank: str, master: str, first: str
    ) -> None:
        text = self.text(kind, spec, version, rank, master).replace("--nnodes=2", "--nnodes=3")
        job = job_of(text)
        assert {agent.plan.nnodes for agent in job.job.agents} == {(3, 3)}
        assert ranks(job) == [(rank, 6) for rank in range(4)]

    def test_ranks_from_one(self, kind: str, spec: str, version: str, rank: str, master: str, first: str) -> None:
        counted = f"$(({rank.lstrip('$')} + 1))" if rank.startswith("$") and "{" not in rank else f"$(({rank} + 1))"
        job = job_of(self.text(kind, spec, version, counted, master))
        assert codes(job) == ["LAUNCH037"]


def test_groups_of_a_leaderworkerset_are_jobs_of_their_own() -> None:
    command = TORCHRUN.format("$LWS_WORKER_INDEX", "$LWS_LEADER_ADDRESS")
    jobs = jobs_of(workload("LeaderWorkerSet", LWS, command, version="leaderworkerset.x-k8s.io/v1"))
    assert [hosts(job) for job in jobs] == [["fit-0", "fit-0-1"], ["fit-1", "fit-1-1"]]
    assert [ranks(job) for job in jobs] == [complete(4), complete(4)]
    assert all(master_is_a_pod(job) for job in jobs)
    assert (codes(*jobs), environ(jobs[1], 1)["LWS_GROUP_SIZE"]) == ([], "2")


@pytest.mark.parametrize(
    ("rank", "master", "expected"),
    [("0", "$LWS_LEADER_ADDRESS", "LAUNCH036"), ("$LWS_WORKER_INDEX", "$HOSTNAME", "ENV020")],
)
def test_mistakes_in_a_leaderworkerset(rank: str, master: str, expected: str) -> None:
    jobs = jobs_of(workload("LeaderWorkerSet", LWS, TORCHRUN.format(rank, master)))
    assert [codes(job) for job in jobs] == [[expected], [expected]]


def test_copies_of_a_replicated_job_with_masters_of_their_own() -> None:
    env = (
        "[{name: COPY, valueFrom: {fieldRef: {fieldPath: \"metadata.annotations[''jobset.sigs.k8s.io/job-index'']\"}}}]"
    ).replace("''", "'")
    command = TORCHRUN.format("$JOB_COMPLETION_INDEX", "fit-w-$COPY-0.fit")
    text = workload("JobSet", JOBSET.replace("replicas: 1", "replicas: 2"), command, env=env)
    jobs = jobs_of(text)
    assert [hosts(job) for job in jobs] == [["fit-w-0-0", "fit-w-0-1"], ["fit-w-1-0", "fit-w-1-1"]]
    assert codes(*jobs) == []


def test_copies_of_a_replicated_job_with_one_master() -> None:
    command = TORCHRUN.format("$JOB_COMPLETION_INDEX", "fit-w-0-0.fit")
    job = job_of(workload("JobSet", JOBSET.replace("replicas: 1", "replicas: 2"), command))
    assert len(job.job.agents) == 4
    assert "LAUNCH036" in codes(job)


# ---- MPIJob


MPIJOB = """apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: fit}
spec:
  slotsPerWorker: 2
  mpiReplicaSpecs:
    Launcher: {replicas: 1, template: {spec: {containers: [{name: l, command: [%s]}]}}}
    Worker: {replicas: 2, template: {spec: {containers: [{name: w, image: x}]}}}
"""


@pytest.mark.parametrize("command", ["mpirun, -np, '4', python, a.py", "mpirun, python, a.py"])
def test_mpirun_of_the_launcher_runs_on_the_workers(command: str) -> None:
    job = job_of(MPIJOB % command)
    assert hosts(job) == ["fit-worker-0", "fit-worker-0", "fit-worker-1", "fit-worker-1"]
    assert ranks(job) == complete(4)


def test_the_launcher_finds_its_hostfile() -> None:
    job = job_of(MPIJOB % "bash, -c, 'mpirun -np $(wc -l < $OMPI_MCA_orte_default_hostfile) python a.py'")
    assert len(job.launched) == 2


def test_a_launcher_that_trains_itself_is_seen_on_its_host() -> None:
    job = job_of(MPIJOB % "torchrun, --nproc-per-node=2, a.py")
    assert hosts(job) == ["fit-launcher"]


def test_mpirun_with_torchruns_that_each_start_a_world() -> None:
    job = job_of(MPIJOB % "mpirun, -np, '2', --map-by, 'ppr:1:node', torchrun, --nproc-per-node=2, a.py")
    assert hosts(job) == ["fit-worker-0", "fit-worker-1"]
    assert codes(job) == ["LAUNCH070"]


# ---- other kinds


def test_pods_without_a_number_have_names_of_their_own() -> None:
    jobs = jobs_of(workload("Deployment", "replicas: 3\ntemplate: {pod}", "torchrun --nproc-per-node=2 a.py"))
    assert len({host for job in jobs for host in hosts(job)}) == 3
    assert [len(job.job.agents) for job in jobs] == [1, 1, 1]


def test_a_deployment_cannot_number_its_pods() -> None:
    text = workload("Deployment", "replicas: 2\ntemplate: {pod}", TORCHRUN.format("${NODE_RANK:-0}", "fit"))
    assert codes(job_of(text)) == ["LAUNCH036"]


def test_a_job_that_is_not_indexed_has_no_index() -> None:
    text = workload("Job", INDEXED.replace("Indexed", "NonIndexed"), TORCHRUN.format("${JOB_COMPLETION_INDEX:-0}", "a"))
    assert "LAUNCH036" in codes(job_of(text))


def test_a_cronjob_a_daemonset_and_a_pod() -> None:
    line = "torchrun --nproc-per-node=2 a.py"
    cron = job_of(workload("CronJob", "jobTemplate: {{spec: {{template: {pod}}}}}", line))
    daemon = job_of(workload("DaemonSet", "template: {pod}", line))
    pod = job_of(
        f"kind: Pod\nmetadata: {{name: p}}\nspec: {{containers: [{{name: c, command: [{line.replace(' ', ', ')}]}}]}}"
    )
    assert [len(job.job.processes) for job in (cron, daemon, pod)] == [2, 2, 2]
    assert hosts(pod) == ["p"]


def test_the_entrypoint_of_a_rayjob_runs_on_its_head() -> None:
    text = (
        "apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {name: r}\nspec:\n  entrypoint: python train.py --lr 1\n"
        "  rayClusterSpec: {headGroupSpec: {template: {spec: {containers: [{name: h, command: [ray, start]}]}}}}\n"
    )
    job = job_of(text)
    assert (hosts(job), job.job.processes[0].argv) == (["r-head"], ("python", "train.py", "--lr", "1"))


# ---- what a container is given


def test_references_are_replaced_as_the_kubelet_does() -> None:
    env = (
        '[{name: A, value: "1"}, {name: B, value: "$(A)2$(C)"}, {name: C, value: c}, '
        "{name: S, valueFrom: {secretKeyRef: {name: s, key: k}}}]"
    )
    text = f"kind: Pod\nmetadata: {{name: p}}\nspec: {{containers: [{{name: c, env: {env}, command: [python, a.py, "
    text += '$(B), "$$(A)", $(NO), "x$(S)y", "$$"]}]}'
    (launched,) = pods_of_manifest(text, "p.yaml", VERSION).launched
    assert [value.text for value in launched.argv[2:]] == ["12$(C)", "$(A)", "$(NO)", f"x{UNKNOWN}y", "$"]


def test_what_only_an_operator_sets_is_not_set_elsewhere() -> None:
    text = workload("Job", INDEXED, "torchrun --nproc-per-node=$NPROC a.py ${RANK:-none} ${MASTER_ADDR:-nobody}")
    launched = pods_of_manifest(text, "p.yaml", VERSION).launched[0]
    assert [value.text for value in launched.argv[1:]] == [f"--nproc-per-node={UNKNOWN}", "a.py", "none", "nobody"]


def test_variables_from_an_unknown_source_may_be_anything() -> None:
    pod = "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, %s, command: [sh, -c, 'python a.py $RANK']}]}"
    (launched,) = pods_of_manifest(pod % "envFrom: [{secretRef: {name: x}}]", "p.yaml", VERSION).launched
    assert launched.argv[-1].text == UNKNOWN
    known = f"kind: ConfigMap\nmetadata: {{name: x}}\ndata: {{RANK: '7'}}\n---\n{pod}"
    (launched,) = pods_of_manifest(known % "envFrom: [{configMapRef: {name: x}}]", "p.yaml", VERSION).launched
    assert launched.argv[-1].text == "7"


SCRIPT = """apiVersion: v1
kind: ConfigMap
metadata: {name: scripts}
data:
  run.sh: |
    set -e
    torchrun --nnodes=2 --node-rank=0 \\
      --nproc-per-node=1 --master-addr=fit-0.fit train.py
---
"""


def test_a_script_of_a_configmap_is_executed() -> None:
    spec = "serviceName: fit\nreplicas: 2\ntemplate: {pod}"
    text = SCRIPT + workload("StatefulSet", spec, "bash /scripts/run.sh").replace(
        "containers: [{name: c,",
        "volumes: [{name: v, configMap: {name: scripts}}], "
        "containers: [{name: c, volumeMounts: [{name: v, mountPath: /scripts}],",
    )
    job = job_of(text)
    assert codes(job) == ["LAUNCH036"]
    line = job.launch.lines[0]
    word = next(word for word in line.argv if word.text == "--node-rank=0")
    assert line.place(word.start) == (7, 25)


def test_words_stand_where_the_file_has_them() -> None:
    text = (
        "kind: Job\napiVersion: batch/v1\nmetadata: {name: j}\nspec:\n  template:\n    spec:\n      containers:\n"
        "      - name: c\n        env:\n        - {name: PORT, value: '29500'}\n        command: [bash, -c]\n        args:\n"
        "        - |\n          export X=$(PORT)$(PORT)\n          torchrun $(PORT) --master-port=$(PORT) \\\n"
        "            --nproc-per-node=2 train.py\n"
    )
    line = job_of(text).launch.lines[0]
    places = {word.text: line.place(word.start) for word in line.argv}
    assert places["--master-port=29500"] == (15, 28)
    assert places["--nproc-per-node=2"] == (16, 13)
    assert places["29500"][0] == 15


def test_words_of_an_argument_list_stand_where_the_file_has_them() -> None:
    job = job_of(TRAINJOB % "--node-rank=$(PET_NODE_RANK), train.py")
    line = job.launch.lines[1]
    word = next(word for word in line.argv if word.text == "--node-rank=1")
    assert line.place(word.start) == (6, 65)


def test_a_host_network_hides_the_name_of_the_pod() -> None:
    text = workload("StatefulSet", STATEFUL, TORCHRUN.format("${HOSTNAME##*-}", "fit-0.fit")).replace(
        "{spec: {", "{spec: {hostNetwork: true, "
    )
    job = job_of(text)
    assert {agent.plan.node_rank for agent in job.job.agents} == {None}
    assert codes(job) == []


def test_preparation_in_one_pod_is_a_job_of_its_own() -> None:
    command = f"if [ $RANK = 0 ]; then python prepare.py; fi; {OWN} --nproc-per-node=1 train.py"
    jobs = jobs_of(pytorchjob(command.replace("'", "")))
    assert [(job.job.name, len(job.launched)) for job in jobs if job.job.agents] == [("train.py", 2)]
    assert [hosts(job) for job in jobs if not job.job.agents] == [["bert-master-0"]]


@pytest.mark.parametrize(
    ("service", "expected"),
    [("{clusterIP: None}", []), ("{type: LoadBalancer}", []), ("{ports: [{port: 1}]}", ["NET012"])],
)
def test_a_service_as_the_endpoint(service: str, expected: list[str]) -> None:
    """With c10d only the pod whose own address it is would host the store; a ClusterIP is no pod's address."""
    head = f"kind: Service\nmetadata: {{name: master}}\nspec: {service}\n---\n"
    command = "torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=master:29400 a.py"
    assert codes(job_of(head + workload("Job", INDEXED, command))) == expected


# ---- bounds


def _chain(count: int) -> str:
    entries = ["{name: A0, value: xxxxxxxxxx}"]
    entries += [f'{{name: A{at}, value: "$(A{at - 1})$(A{at - 1})"}}' for at in range(1, count)]
    return f"[{', '.join(entries)}]"


HOSTILE = {
    "replicas": pytorchjob("torchrun --nproc-per-node=1 a.py", workers=999_999_999),
    "copies": workload("JobSet", JOBSET.replace("replicas: 1", "replicas: 999999999"), "torchrun a.py"),
    "groups": workload("LeaderWorkerSet", LWS.replace("replicas: 2", "replicas: 999999"), "torchrun a.py"),
    "hosts": workload(
        "Job", VOLCANO.replace("replicas: 2", "replicas: 99999999"), "a $VC_NODE_HOSTS", version="batch.volcano.sh/v1"
    ),
    "workers": (MPIJOB % "mpirun, a").replace("replicas: 2", "replicas: 99999999"),
    "no number": pytorchjob("torchrun a.py").replace("replicas: 1", "replicas: many"),
    "negative": pytorchjob("torchrun a.py", workers=-4),
    "doubling": workload("Job", INDEXED, "python a.py $A150", env=_chain(151)),
    "loop": workload("Job", INDEXED.replace("2", "128"), "while true; do python a.py; done"),
    "long script": workload("Job", INDEXED.replace("2", "128"), "; ".join(f"A{at}={at}" for at in range(3000))),
    "list of itself": "kind: List\nitems: &i [{kind: List, items: *i}]\n",
    "spec of itself": "kind: JobSet\nspec: &s {replicatedJobs: &r [{template: *s}, *r]}\n",
    "anchors": "a: &a [x]\n"
    + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(20))
    + "kind: Pod\nspec: {containers: *u}\n",
    "deep": "kind: Pod\nspec: " + "[" * 5000,
    "containers": "kind: Job\nspec: {parallelism: 999, template: {spec: {containers: ["
    + ", ".join(["{command: [sh, -c, 'for i in 1 2 3; do torchrun a.py & done']}"] * 190)
    + "]}}}",
    "broken": "kind: Pod\nspec: {containers: [{command: [sh, -c, 'if ((( ${ '' ']}]}",
    "tags": "kind: !!python/object/apply:os.system ['true']\nspec: {}\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_manifests_end_within_their_bounds(name: str) -> None:
    run = pods_of_manifest(HOSTILE[name], "h.yaml", VERSION)
    jobs = imagined_manifest_jobs(HOSTILE[name], "h.yaml", VERSION)[0]
    assert len(run.launched) <= MOST_LAUNCHED + 128
    assert sum(len(job.launched) for job in jobs) == len(run.launched)


def test_a_job_of_many_pods_says_how_many_are_imagined() -> None:
    jobs, left_out, _ = imagined_manifest_jobs(HOSTILE["replicas"], "h.yaml", VERSION)
    assert len(jobs[0].launched) == 128
    assert environ(jobs[0])["WORLD_SIZE"] == "1000000000"
    assert any("999999999 pods" in each for each in left_out)
    assert codes(*jobs) == []


def test_pods_that_are_each_a_world_of_their_own_have_no_duplicate_ranks() -> None:
    """A JobSet of the documentation names a master and forgets the number of nodes: four jobs of one node."""
    job = job_of(
        workload("JobSet", JOBSET, "torchrun --nproc-per-node=1 --master-addr=fit-w-0-0.fit --master-port=3389 a.py")
    )
    assert [process.world_size for process in job.job.processes] == [1, 1]
    assert codes(job) == ["LAUNCH070"]
