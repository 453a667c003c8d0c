"""What the words and files of a started trainer say: sizes of LightningCLI, the hosts of deepspeed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.cluster import MOST_NODES
from ddpdoctor.launch.evaluator.imagined_run import Launched, Starter, Withheld
from ddpdoctor.launch.evaluator.job_texts import JobTexts
from ddpdoctor.launch.evaluator.trainer_settings import trainer_sizes
from ddpdoctor.launch.evaluator.values import Value
from ddpdoctor.launch.hostfiles import deepspeed_pool, selected

__all__ = ["on_hosts_of_deepspeed", "trainer_options"]


def trainer_options(files: JobTexts, argv: Sequence[Value], folder: str | None) -> dict[str, int]:
    """What LightningCLI reads: `fit --config FILE --trainer.devices 4`; the last one wins."""
    texts = [value.text for value in argv]
    if not {"fit", "validate", "test", "predict"} & set(texts):
        return {}
    found: dict[str, int] = {}
    for at, text in enumerate(texts):
        name, sign, value = text.partition("=")
        value = value if sign else texts[at + 1] if at + 1 < len(texts) else ""
        if name in ("--config", "-c") and UNKNOWN not in value:
            found |= trainer_sizes(files.read(value, folder) or "")
        elif name in ("--trainer.devices", "--trainer.num_nodes") and value.isdigit():
            found[name.partition(".")[2]] = int(value)
    return found


def on_hosts_of_deepspeed(texts: JobTexts, started: Launched) -> list[Launched]:
    """What the runner of deepspeed starts: its launcher on each host of the host file, by pdsh or another runner; with
    `--no_ssh` only on its own host.
    """
    layer, place = started.layer, started.place
    path = layer.value("hostfile")
    text = texts.read(path, started.folder) if path is not None else None
    started = replace(started, hostfile=text)
    pool = None if text is None else deepspeed_pool(text)
    if pool is None:
        return [started]
    active = selected(pool, layer)
    started = replace(started, pool=pool, active=None if active is None else {h: len(g) for h, g in active.items()})
    if active is None or len(active) < 2 or layer.given("no_ssh") is not None:
        return [started]
    kept = _not_passed_on(texts, started)
    starter = Starter("deepspeed", started.origin, tuple(active))
    return [
        replace(
            started,
            place=replace(
                place,
                host=host,
                node=node,
                gpus=pool[host],
                via=(*place.via, "deepspeed"),
                starter=place.starter or starter,
                withheld={**place.withheld, **kept} if node else place.withheld,
            ),
            ranks=len(gpus),
        )
        for node, (host, gpus) in enumerate(list(active.items())[:MOST_NODES])
    ]


_PASSED_ON = ("NCCL", "PYTHON", "MV2", "UCX", "MLFLOW", "DLTS", "NEBULA", "LD_LIBRARY", "PATH")
"""How the names begin that deepspeed passes to other hosts (deepspeed/launcher/runner.py: `EXPORT_ENVS`)."""


def _not_passed_on(texts: JobTexts, started: Launched) -> dict[str, Withheld]:
    """The variables of the job file that deepspeed does not pass to its other hosts, nor `.deepspeed_env`."""
    if "DS_ENV_FILE" in started.environ or started.layer.given("launcher") is not None:
        return {}
    files = (texts.read(path, started.folder) or "" for path in (".deepspeed_env", "~/.deepspeed_env"))
    listed = {row.partition("=")[0].strip() for text in files for row in text.splitlines()}
    return {
        name: Withheld(value, "deepspeed", value.origins[0])
        for name, value in started.environ.items()
        if value.origins and not name.startswith(_PASSED_ON) and name not in listed
    }
