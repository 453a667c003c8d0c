"""Analysis of training scripts: what a careful reader knows about a script without running it.

Input is the text of the files that are judged, and of the modules beside them that are only read. Everything else is derived
from it, layer by layer:

* `source_text` decodes the bytes of a file as Python does, `notebook` takes the Python out of a notebook.
* `syntax/` parses a text and indexes its tree. `parsing` makes the tree, or says why there is none; `index` walks it once
  for scopes, assignments, calls and what encloses each node; `names` resolves names: `dist.all_reduce` is
  `torch.distributed.all_reduce`, whatever the imports look like; `classes`, `instances` and `definitions` find the class or
  function of the project that an expression stands for.
* `interpreter/` evaluates expressions as each rank of a small simulated job: two nodes with two GPUs each. `rank % 2` is
  0, 1, 0, 1, the text of `LOCAL_RANK` is "0", "1", "0", "1", and what the text does not determine is `Unknown`, never a
  guess. `rank_evaluator` dispatches to one module for each kind of expression; `assumptions` lists what is taken for
  granted without being in the text; `branch_oracle` decides unknown conditions; `value_cache` shares values between ranks.
* `simulation/` executes statements as each rank: `rank_executor` one rank, `simulate` all ranks side by side, through
  branches, loops, early exits and calls. `divergence` compares the collectives that the ranks call: where two ranks differ in
  the next one, a job hangs. `p2p_matching` pairs sends and receives.

`modules(script)` of `syntax.module` gives an analysed `Module` for each judged file, cached by its text. A rule asks it short
questions: which calls of this function, with what value on each rank, in which branch.
"""
