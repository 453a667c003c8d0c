"""How wrappers are read: the command after them, and the environment that they pass on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.words import Word
from ddpdoctor.launch.evaluator.values import Value

__all__ = ["as_env_says", "keeps_environ", "value_of_word", "words_after"]


def words_after(argv: Sequence[Value], words: Sequence[Word], layer: Layer) -> tuple[Value, ...]:
    """The words after those of a wrapper."""
    last = layer.own[-1] if layer.own else layer.program
    at = next((i for i, word in enumerate(words) if word is last or word == last), -1)
    return tuple(argv[at + 1 :]) if at >= 0 else ()


def value_of_word(word: Word, argv: Sequence[Value], words: Sequence[Word], text: str) -> Value:
    at = next((i for i, each in enumerate(words) if each == word), None)
    return Value(text) if at is None else argv[at].with_text(text)


def as_env_says(layer: Layer, environ: Mapping[str, Value]) -> Mapping[str, Value]:
    """`env -i`, `env -u NAME`."""
    if layer.name != "env":
        return environ
    if any(given.flag in ("-i", "--ignore-environment", "-") for given in layer.reading.given):
        return {variable.name: environ[variable.name] for variable in layer.variables}
    gone = {given.value for given in layer.reading.given if given.flag in ("-u", "--unset")}
    return {name: value for name, value in environ.items() if name not in gone}


def keeps_environ(layer: Layer) -> bool:
    """Whether a container gets the variables of the shell around it, as Singularity's do."""
    cleans = {"-e", "--cleanenv", "-C", "--containall", "-c", "--contain"}
    return layer.name in ("singularity", "apptainer") and not any(word.text in cleans for word in layer.own)
