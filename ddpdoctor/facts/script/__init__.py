"""`script`: training scripts as facts, and what a careful reader knows about them without running anything.

The section is plain text: files that are judged, and modules beside them that are only read. Everything else is derived,
in five steps that each have a module:

* `parsing` makes a syntax tree of a text, or says why there is none;
* `index` walks the tree once: scopes, assignments, calls, the statements around each node;
* `names` knows what a name stands for: `dist.all_reduce` is `torch.distributed.all_reduce`, whatever the imports look like;
* `values` rehearses expressions on a few imagined ranks: two nodes with two GPUs each. `rank % 2` gives 0, 1, 0, 1, the text
  of `LOCAL_RANK` gives "0", "1", "0", "1", and what cannot be known is `Unknown`, never a guess;
* `walking` walks one rank through statements, and `paths` all ranks side by side: the collectives that each performs, in
  their order, through branches, loops, early exits and calls. Where two ranks disagree about the next collective, a job hangs.

`modules(script)` of `ddpdoctor.facts.script.module` gives one analysed `Module` for each judged file, cached by its text. A
rule asks it short questions: which calls of this function, with what value on each rank, inside which branch.
"""

from __future__ import annotations

from ddpdoctor.facts.script.record import IdleComment, Problem, Script, SourceFile

__all__ = ["IdleComment", "Problem", "Script", "SourceFile"]
