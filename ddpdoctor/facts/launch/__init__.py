"""`launch`: launch lines as facts. Words with their places, layers of launchers, and what torchrun makes of them.

How a line is represented, for whoever builds one from a shell file or a manifest:

* `Line.source` is text that the user wrote; every `Word` has a span in it, and `fix_command` is the source with spans
  replaced. A line of a file starts at `first_line`, `first_column` of `file`.
* A piece that only a running shell knows is the character UNKNOWN in `Word.text`; the word keeps its `raw` spelling
  (`$NGPU`), so that a rule can still see which variable stands there. An unknown word outside quotes has `splits` set:
  it may be no word or many, and the reading of a launcher that meets one is `is_open`: absence proves nothing.
* A variable whose value is certain is put into the text (`split(…, known)`); words that come out of one variable share
  its span and are not `is_literal` when they are several.
* `peel(words, torch_version)` turns the words of one simple command into layers, outermost first. Variables set by the
  line stand in `Layer.variables`; `Line.environ` is the whole environment of the innermost launcher.
"""

from __future__ import annotations

from ddpdoctor.facts.launch.layer import Layer, Variable, starts_ranks
from ddpdoctor.facts.launch.layers import launching, peel
from ddpdoctor.facts.launch.options import Given, Problem, Reading, Trouble, read
from ddpdoctor.facts.launch.pod import Operator, Pod
from ddpdoctor.facts.launch.programs import ELSEWHERE, UNREAD, Launcher
from ddpdoctor.facts.launch.record import Launch, Line, Script
from ddpdoctor.facts.launch.rendezvous import Plan, Setting, is_loopback, parse_endpoint, parse_nnodes, plan_of
from ddpdoctor.facts.launch.shell import Simple, split
from ddpdoctor.facts.launch.slips import Slip, SlipKind
from ddpdoctor.facts.launch.words import UNKNOWN, Edit, Mark, Word, apply, escape, is_known, plain, quote

__all__ = [
    "ELSEWHERE",
    "UNKNOWN",
    "UNREAD",
    "Edit",
    "Given",
    "Launch",
    "Launcher",
    "Layer",
    "Line",
    "Mark",
    "Operator",
    "Plan",
    "Pod",
    "Problem",
    "Reading",
    "Script",
    "Setting",
    "Simple",
    "Slip",
    "SlipKind",
    "Trouble",
    "Variable",
    "Word",
    "apply",
    "escape",
    "is_known",
    "is_loopback",
    "launching",
    "parse_endpoint",
    "parse_nnodes",
    "peel",
    "plain",
    "plan_of",
    "quote",
    "read",
    "split",
    "starts_ranks",
]
