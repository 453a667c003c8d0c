"""The interface of an analyzed file that the modules of this package need: `Module` implements it, and they do not import it."""

from __future__ import annotations

import ast
from typing import Protocol, TypeVar

from ddpdoctor.scripts.syntax.call_index import CallIndex
from ddpdoctor.scripts.syntax.index import Index
from ddpdoctor.scripts.syntax.names import Names
from ddpdoctor.scripts.syntax.node_cache import NodeCache

__all__ = ["F", "ProjectFile"]

F = TypeVar("F", bound="ProjectFile")


class ProjectFile(Protocol):
    """A file of the project: its syntax tree, its indexes, and the files that it can import."""

    @property
    def tree(self) -> ast.Module: ...

    @property
    def index(self) -> Index: ...

    @property
    def names(self) -> Names: ...

    @property
    def call_index(self) -> CallIndex: ...

    @property
    def cache(self) -> NodeCache: ...

    def beside(self: F, dotted: str) -> F | None:
        """The project's module of this dotted name, as this file would import it."""
