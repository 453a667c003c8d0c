"""The builtins of the shell."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.conditions import Conditions
from ddpdoctor.launch.evaluator.protocols import RunningShell
from ddpdoctor.launch.evaluator.values import EMPTY, NOT_KNOWN, Origin, Value, joined, origins_of, text_value

__all__ = ["BUILTINS", "formatted"]

_ECHO_OPTIONS = re.compile(r"-[neE]+")
_ESCAPE = re.compile(r"\\(0[0-7]{0,3}|x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v", "\\": "\\"}


def _echo(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    options = ""
    at = 1
    while at < len(words) and _ECHO_OPTIONS.fullmatch(words[at].text):
        options += words[at].text[1:]
        at += 1
    value = joined(words[at:], " ")
    text = _unescaped(value.text) if "e" in options else value.text
    shell.output.append(value.with_text(text + ("" if "n" in options else "\n")))
    shell.status = 0


def _unescaped(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] == "0":
            return chr(int(code, 8) & 0xFF)
        if code[0] == "x" and len(code) > 1:
            return chr(int(code[1:], 16))
        return _ESCAPED.get(code, found[0])

    return _ESCAPE.sub(one, text)


def _printf(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    arguments = list(words[1:])
    target = None
    if arguments[:1] and arguments[0].text == "-v" and len(arguments) > 2:
        target, arguments = arguments[1].text, arguments[2:]
    arguments = arguments[1:] if arguments[:1] and arguments[0].text == "--" else arguments
    value = EMPTY if not arguments else formatted(arguments[0], arguments[1:])
    shell.status = 0
    if target is not None:
        shell.variables.assign(target, value)
    else:
        shell.output.append(value)


_DIRECTIVE = re.compile(r"%(?P<flags>[-+ 0#]*)(?P<width>\d{0,4})(?:\.(?P<precision>\d{0,4}))?(?P<kind>[a-zA-Z%])")


def formatted(shape: Value, arguments: Sequence[Value]) -> Value:
    """What `printf shape arguments…` prints: the format again and again until all arguments are used."""
    if not shape.is_known:
        return text_value(UNKNOWN, shape, *arguments)
    left = list(arguments)
    pieces: list[str] = []
    for _ in range(1_000):
        count = len(left)
        text, left = _formatted_once(shape.text, left)
        pieces.append(text)
        if not left or len(left) == count:
            break
    return text_value("".join(pieces), shape, *arguments)


def _formatted_once(shape: str, arguments: list[Value]) -> tuple[str, list[Value]]:
    out = []
    at = 0
    for found in _DIRECTIVE.finditer(shape):
        out.append(_unescaped(shape[at : found.start()]))
        at = found.end()
        if found["kind"] == "%":
            out.append("%")
            continue
        value = arguments.pop(0) if arguments else EMPTY
        out.append(_one(found, value))
    out.append(_unescaped(shape[at:]))
    return "".join(out), arguments


def _one(found: re.Match[str], value: Value) -> str:
    if not value.is_known:
        return value.text
    kind, directive = found["kind"], found[0]
    try:
        if kind in "di":
            return (directive[:-1] + "d") % int(value.text or "0", 0)
        if kind in "xXo":
            return directive % int(value.text or "0", 0)
        if kind in "fgeE":
            return directive % float(value.text or "0")
        if kind == "b":
            return (directive[:-1] + "s") % _unescaped(value.text)
        if kind == "s":
            return directive % value.text
        if kind == "c":
            return value.text[:1]
    except ValueError:
        return UNKNOWN
    return UNKNOWN


def _cd(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    targets = [word for word in words[1:] if word.text not in ("-P", "-L", "--")]
    target = targets[0] if targets else shell.variables.value("HOME") or NOT_KNOWN
    shell.status = 0
    if not target.is_known or target.text == "-":
        shell.folder = None
    elif posixpath.isabs(target.text):
        shell.folder = posixpath.normpath(target.text)
    elif shell.folder is not None:
        shell.folder = posixpath.normpath(posixpath.join(shell.folder, target.text))
    if shell.folder is not None:
        shell.variables.assign("PWD", target.with_text(shell.folder))


def _pwd(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    shell.output.append(NOT_KNOWN if shell.folder is None else Value(shell.folder + "\n"))
    shell.status = 0


def _number_of(words: Sequence[Value], default: int) -> int | None:
    if len(words) < 2:
        return default
    return int(words[1].text) & 0xFF if re.fullmatch(r"-?\d{1,9}", words[1].text) else None


def _exit(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    shell.leave("exit", status=_number_of(words, 0) if len(words) > 1 else shell.status)


def _return(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    shell.leave("return", status=_number_of(words, 0) if len(words) > 1 else shell.status)


def _break(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    shell.leave(words[0].text, levels=_number_of(words, 1) or 1)


def _set(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    texts = [word.text for word in words[1:]]
    shell.status = 0
    at = 0
    while at < len(texts) and re.fullmatch(r"[-+][a-zA-Z]+", texts[at]):
        letters, is_on = texts[at][1:], texts[at][0] == "-"
        if letters.endswith("o") and at + 1 < len(texts):
            at += 1
            letters = letters[:-1] + {"allexport": "a", "noglob": "f", "nounset": "u"}.get(texts[at], "")
        for letter in letters:
            (shell.options.add if is_on else shell.options.discard)(letter)
        at += 1
    if at < len(texts):
        at += texts[at] == "--"
        shell.positional = list(words[1 + at :])


def _shift(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    count = _number_of(words, 1)
    shell.status = 0
    if count is None:
        shell.positional = [NOT_KNOWN]
    elif count > len(shell.positional):
        shell.status = 1
    else:
        shell.positional = shell.positional[count:]


def _eval(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    value, written = joined(words[1:], " "), origins_of(words[1:], " ", origin)
    if UNKNOWN in value.text and value.text.strip(UNKNOWN + " ") == "":
        for name in list(shell.variables.named):
            shell.variables.forget(name)
        shell.status = None
        return
    shell.run(value.text, written)


def _wait(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    shell.awaited = len(shell.started)
    shell.status = 0


_STARTUP_FILE = re.compile(r"(?:^|/)\.(?:bash\w*|profile|zshrc|zprofile)$|^/etc/")
"""Files of the user or the system: those of this machine say nothing about the cluster's."""


def _source(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    path = words[1] if len(words) > 1 else NOT_KNOWN
    is_own = path.is_known and not _STARTUP_FILE.search(path.text)
    text = shell.machine.read_file(path.text, shell.folder) if is_own else None
    if text is None:
        shell.status = None
        shell.has_started = True  # in a list it is taken to succeed
        shell.doubted |= set(shell.variables.named)  # it may export them
        return
    before = shell.positional
    if len(words) > 2:
        shell.positional = list(words[2:])
    shell.run(text, lambda start, end: Origin(path.text, start, end))
    shell.positional = before


def _read(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    """`read [-r] names`: the next line of the input."""
    names = [word.text for word in words[1:]]
    while names and names[0].startswith("-"):
        option = names.pop(0)
        if option[-1] in "pndtNiu" and names:
            names.pop(0)
        if option[-1] == "a" and names:
            shell.variables.forget(names.pop(0))
    names = names or ["REPLY"]
    if shell.stdin is None or not shell.stdin.is_known:
        for name in names:
            shell.variables.assign(name, NOT_KNOWN)
        shell.status = None
        return
    if not shell.stdin.text:
        for name in names:
            shell.variables.assign(name, EMPTY)
        shell.status = 1
        return
    line, end, rest = shell.stdin.text.partition("\n")
    pieces = line.strip(" \t").split(None, len(names) - 1) if len(names) > 1 else [line.strip(" \t")]
    for at, name in enumerate(names):
        shell.variables.assign(name, shell.stdin.with_text(pieces[at] if at < len(pieces) else ""))
    shell.stdin = shell.stdin.with_text(rest)
    shell.status = 0 if end else 1


def _mapfile(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    name = words[-1].text if len(words) > 1 and not words[-1].text.startswith("-") else "MAPFILE"
    is_cut = any(word.text.startswith("-") and "t" in word.text for word in words[1:])
    shell.status = 0
    if shell.stdin is None or not shell.stdin.is_known:
        shell.variables.assign_array(name, {"0": NOT_KNOWN})
        return
    lines = shell.stdin.text.splitlines(keepends=not is_cut)
    shell.variables.assign_array(name, {str(at): shell.stdin.with_text(line) for at, line in enumerate(lines)})


def _let(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    value = EMPTY
    for word in words[1:]:
        value = shell.expander().number(word.text) if word.is_known else NOT_KNOWN
    shell.status = int(value.text == "0") if value.is_known else None


def _test(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    arguments = list(words[1:])
    if words[0].text == "[" and arguments and arguments[-1].text == "]":
        arguments.pop()
    answer = Conditions(shell).of_words(arguments)
    shell.status = None if answer is None else int(not answer)


def _forward(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    """`command`, `builtin`: the program after them, not a function."""
    rest = list(words[1:])
    if rest and rest[0].text in ("-v", "-V"):
        shell.output.append(NOT_KNOWN)
        shell.status = None
        return
    rest = rest[1:] if rest and rest[0].text in ("-p", "--") else rest
    if rest:
        functions, shell.functions = shell.functions, {}
        shell.invoke(rest, origin)
        shell.functions = {**functions, **shell.functions}


def _exec(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    if len(words) > 1:
        shell.invoke(words[1:], origin)
        shell.leave("exit", status=shell.status)
    shell.status = 0


def _true(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    shell.status = 0


def _false(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    shell.status = 1


def _unknown(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    shell.output.append(NOT_KNOWN)
    shell.status = None


def _export(shell: RunningShell, words: Sequence[Value], origin: Origin) -> None:
    """`export` reached through `command` or a variable, not as a declaration of the grammar."""
    for word in words[1:]:
        name, sign, text = word.text.partition("=")
        if sign:
            shell.variables.assign(name, word.with_text(text))
        shell.variables.mark(name, is_exported=True)
    shell.status = 0


Builtin = Callable[[RunningShell, Sequence[Value], Origin], None]

BUILTINS: dict[str, Builtin] = {
    "echo": _echo,
    "printf": _printf,
    "cd": _cd,
    "pushd": _cd,
    "popd": _cd,
    "pwd": _pwd,
    "exit": _exit,
    "return": _return,
    "break": _break,
    "continue": _break,
    "set": _set,
    "shift": _shift,
    "eval": _eval,
    "wait": _wait,
    "source": _source,
    ".": _source,
    "read": _read,
    "mapfile": _mapfile,
    "readarray": _mapfile,
    "let": _let,
    "test": _test,
    "[": _test,
    "command": _forward,
    "builtin": _forward,
    "exec": _exec,
    "export": _export,
    **dict.fromkeys((":", "true", "trap", "ulimit", "umask", "shopt", "disown", "alias", "unalias", "hash"), _true),
    "false": _false,
    **dict.fromkeys(("type", "getopts", "jobs", "times", "complete", "bind", "which"), _unknown),
}
"""What runs in the shell itself, by its name."""
