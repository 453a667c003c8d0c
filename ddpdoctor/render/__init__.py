"""Renderers: a report in, a string out. They never see facts and never print."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from ddpdoctor.findings import Report

__all__ = ["FORMATS", "render"]

FORMATS = ("table", "json", "markdown", "junit", "sarif", "github")


def render(report: Report, form: str, **options: object) -> str:
    """The report as text in one of FORMATS. `options` go to the renderer: `table` takes width and colour."""
    write: Callable[..., str] = importlib.import_module(f"ddpdoctor.render.{form}").write
    return write(report, **options)
