"""Launch commands and job files: what they would start, without starting anything. No file is opened here.

How a line is represented, for code that builds one from a shell file or a manifest:

* `LaunchLine.source` is text that the user wrote; every `Word` has a span in it. A line of a file starts at `first_line`,
  `first_column` of `file`.
* A piece that only a running shell knows is the character UNKNOWN in `Word.text`; the word keeps its `raw` spelling
  (`$NGPU`), so that a rule can still see the variable. An unknown word outside quotes has `splits` set: it may become no
  word or several, and the reading of a launcher with such a word is `is_open`: a missing option proves nothing.
* A variable whose value is certain is expanded in the text (`simple_commands(text, known)`); if it gives several words,
  they share its span and are not `is_literal`.
* `parse_layers(words, torch_version)` turns the words of one simple command into layers, outermost first. Variables set
  by the line are in `Layer.variables`; `LaunchLine.environ` is the whole environment of the innermost launcher.
* A correction is a `SpanEdit` of the source. `corrections.edited` changes the words that it touches and computes the
  layers again; corrected text is not read as a new line.
* `jobs.job_of_launch` makes the `Job` of the lines: the launchers of its nodes and their ranks.

A collector passes a `lookup.FileLookup`, which answers questions about files: the script of a line, the config file of
accelerate, folders.
"""
