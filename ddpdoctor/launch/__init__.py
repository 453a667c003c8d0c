"""Launch commands and job files: what they would start, without starting anything. No file is opened here.

How a line is represented, for whoever builds one from a shell file or a manifest:

* `LaunchLine.source` is text that the user wrote; every `Word` has a span in it. A line of a file starts at `first_line`,
  `first_column` of `file`.
* A piece that only a running shell knows is the character UNKNOWN in `Word.text`; the word keeps its `raw` spelling
  (`$NGPU`), so that a rule can still see which variable stands there. An unknown word outside quotes has `splits` set:
  it may be no word or many, and what a launcher reads that meets one is `is_open`: absence proves nothing.
* A variable whose value is certain is put into the text (`simple_commands(text, known)`); words that come out of one
  variable share its span and are not `is_literal` when they are several.
* `parse_layers(words, torch_version)` turns the words of one simple command into layers, outermost first. Variables set
  by the line stand in `Layer.variables`; `LaunchLine.environ` is the whole environment of the innermost launcher.
* A correction is a `SpanEdit` of the source. `corrections.edited` changes the words that it touches and works out the
  layers again; corrected text is not read as a new line.
* `jobs.job_of_launch` makes the `Job` of the lines: the agents of its nodes and their ranks.

What lies in files is asked of a `lookup.FileLookup`, which a collector gives: the script that a line names, the config file
of accelerate, folders.
"""
