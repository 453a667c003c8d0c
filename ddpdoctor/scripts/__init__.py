"""Analysis of training scripts: what can be known about a script without running it.

The input is the source of the files that are checked, and of the modules next to them that are only read. Everything else is
derived from it, layer by layer:

* `source_text` decodes the bytes of a file as Python does, `notebook` extracts the Python of a notebook.
* `syntax/` parses the source and indexes its tree. `parsing` builds the tree, or reports why there is none; `index` walks it once
  for scopes, assignments, calls and what encloses each node; `names` resolves names: `dist.all_reduce` is
  `torch.distributed.all_reduce`, whatever the imports look like; `classes`, `instances` and `definitions` find the class or
  function of the project that an expression stands for.
* `interpreter/` evaluates expressions as each rank of a small simulated job: two nodes with two GPUs each. `rank % 2` is
  0, 1, 0, 1, the string in `LOCAL_RANK` is "0", "1", "0", "1", and what the source does not determine is `Unknown`, never a
  guess. `rank_evaluator` dispatches to one module per kind of expression; `assumptions` lists what is assumed
  although the source does not show it; `branch_oracle` decides unknown conditions; `value_cache` shares values between ranks.
* `simulation/` executes statements as each rank: `rank_executor` one rank, `simulate` all ranks side by side, through
  branches, loops, early exits and calls. `divergence` compares the collectives that the ranks call: if the next collective of
  two ranks differs, the job hangs. `p2p_matching` pairs sends and receives.

`modules(script)` of `syntax.module` returns an analyzed `Module` per checked file, cached by its source. A rule asks it short
questions: which calls of this function, with which value on each rank, in which branch.
"""
