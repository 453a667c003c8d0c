"""What the words and files of a started trainer say: sizes of LightningCLI, the hosts of deepspeed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.cluster import MOST_NODES
from ddpdoctor.launch.evaluator.imagined_run import Launched, Starter
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
            ),
            ranks=len(gpus),
        )
        for node, (host, gpus) in enumerate(list(active.items())[:MOST_NODES])
    ]
