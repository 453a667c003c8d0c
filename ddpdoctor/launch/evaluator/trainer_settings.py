"""The sizes in a configuration file of LightningCLI."""

from __future__ import annotations

__all__ = ["trainer_sizes"]


def trainer_sizes(text: str) -> dict[str, int]:
    """`trainer: {devices: 4, num_nodes: 2}`; only what is a number."""
    if "trainer:" not in text:
        return {}
    from ddpdoctor.launch.manifests.yaml_nodes import documents, number

    roots, _ = documents("", text)
    at = roots[0].get("trainer") if roots else None
    pairs = () if at is None else at.pairs()
    return {
        name: count
        for name, value in pairs
        if name in ("devices", "num_nodes") and (count := number(value)) is not None
    }
