"""Programs whose output follows from their arguments and their input: head, sed, awk, cut, seq and the like. Nothing is run.

Each gets its arguments as texts and its input, and gives what it prints and its exit status; None where a form is not known.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Sequence

from ddpdoctor.launch.evaluator.arithmetic import ArithmeticFailed, evaluate

__all__ = ["TOOLS", "UNSORTED_HOST", "Printed", "host_names"]

Printed = tuple[str, int] | None
Tool = Callable[[Sequence[str], str], Printed]

UNSORTED_HOST = "the-batch-node"
"""Stands for a host of which only the place in a list is known, not the name: sorted, its place is not known either."""
MOST_LINES = 20_000
MOST_HOSTS = 4_096


def _lines(text: str) -> list[str]:
    return text.splitlines()[:MOST_LINES]


def _text(lines: Sequence[str]) -> str:
    return "".join(line + "\n" for line in lines)


def _options(words: Sequence[str], with_value: str, known: str) -> tuple[dict[str, str], list[str]] | None:
    """Short options and the other words; None where an option is not known. `with_value` are those that take one."""
    options: dict[str, str] = {}
    rest: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            return options, [*rest, *words[at:]]
        if len(word) < 2 or word[0] != "-" or word.startswith("--"):
            if word.startswith("--"):
                return None
            rest.append(word)
            continue
        for place, letter in enumerate(word[1:], 1):
            if letter in with_value:
                options[letter] = word[place + 1 :] or (words[at] if at < len(words) else "")
                at += not word[place + 1 :]
                break
            if letter not in known:
                return None
            options[letter] = ""
    return options, rest


def _cat(words: Sequence[str], stdin: str) -> Printed:
    return (stdin, 0) if not words or list(words) == ["-"] else None


def _characters_of(words: Sequence[str]) -> int | None:
    """`-c 4`, `-c4`."""
    match = re.fullmatch(r"-c ?(\d{1,6})", " ".join(words))
    return int(match[1]) if match else None


def _head(words: Sequence[str], stdin: str) -> Printed:
    if (size := _characters_of(words)) is not None:
        return stdin[:size], 0
    count, rest = _count(words)
    if rest or count is None:
        return None
    lines = _lines(stdin)
    return _text(lines[: int(count)] if not count.startswith("-") else lines[: len(lines) + int(count)]), 0


def _tail(words: Sequence[str], stdin: str) -> Printed:
    if (size := _characters_of(words)) is not None:
        return stdin[len(stdin) - min(size, len(stdin)) :], 0
    count, rest = _count(words)
    if rest or count is None:
        return None
    lines = _lines(stdin)
    if count.startswith("+"):
        return _text(lines[int(count) - 1 :]), 0
    return _text(lines[len(lines) - min(len(lines), abs(int(count))) :]), 0


def _count(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """`-n 3`, `-n3`, `-3`, `--lines=3`."""
    words = list(words)
    if not words:
        return "10", []
    if words[0] == "-n" and len(words) > 1 and re.fullmatch(r"[-+]?\d{1,6}", words[1]):
        return words[1], words[2:]
    match = re.fullmatch(r"(?:-n|--lines=|-)([-+]?\d{1,6})", words[0])
    return (match[1] if match else None), words[1:]


def _cut(words: Sequence[str], stdin: str) -> Printed:
    found = _options(words, "dfc", "s")
    if found is None or found[1]:
        return None
    options = found[0]
    shape = options.get("f") or options.get("c")
    if shape is None or not re.fullmatch(r"[\d,-]+", shape):
        return None
    sign = options.get("d", "\t")
    out = []
    for line in _lines(stdin):
        if "c" in options:
            out.append("".join(_picked(list(line), shape)))
        elif sign not in line:
            out.append(line)
        else:
            out.append(sign.join(_picked(line.split(sign), shape)))
    return _text(out), 0


def _picked(items: Sequence[str], shape: str) -> list[str]:
    """The items that a list such as `1,3-5` names, in their own order."""
    wanted: set[int] = set()
    for part in shape.split(","):
        first, dash, last = part.partition("-")
        begin = int(first or 1)
        end = int(last) if last else len(items) if dash else begin
        wanted.update(range(begin, min(end, len(items)) + 1))
    return [item for number, item in enumerate(items, 1) if number in wanted]


def _tr(words: Sequence[str], stdin: str) -> Printed:
    found = _options(words, "", "dsc")
    if found is None or not found[1] or "c" in found[0]:
        return None
    options, sets = found
    first = _characters(sets[0])
    if "d" in options:
        return "".join(sign for sign in stdin if sign not in first), 0
    second = _characters(sets[1]) if len(sets) > 1 else first
    table = {sign: second[min(at, len(second) - 1)] for at, sign in enumerate(first)} if second else {}
    text = "".join(table.get(sign, sign) for sign in stdin)
    if "s" in options:
        text = re.sub("([" + re.escape("".join(second)) + r"])\1+", r"\1", text) if second else text
    return text, 0


def _characters(text: str) -> list[str]:
    classes = {
        "[:upper:]": "A-Z",
        "[:lower:]": "a-z",
        "[:digit:]": "0-9",
        "[:space:]": " \t\n\r\f\v",
        "[:alpha:]": "A-Za-z",
    }
    for name, signs in classes.items():
        text = text.replace(name, signs)
    text = re.sub(r"\\([nt\\])", lambda found: {"n": "\n", "t": "\t", "\\": "\\"}[found[1]], text)
    out: list[str] = []
    at = 0
    while at < len(text):
        if at + 2 < len(text) and text[at + 1] == "-":
            out += [chr(code) for code in range(ord(text[at]), ord(text[at + 2]) + 1)][:512]
            at += 3
        else:
            out.append(text[at])
            at += 1
    return out


def _wc(words: Sequence[str], stdin: str) -> Printed:
    if list(words) == ["-l"]:
        return f"{stdin.count(chr(10))}\n", 0
    if list(words) == ["-w"]:
        return f"{len(stdin.split())}\n", 0
    if list(words) in (["-c"], ["-m"]):
        return f"{len(stdin)}\n", 0
    return None


def _seq(words: Sequence[str], stdin: str) -> Printed:
    sign = "\n"
    words = list(words)
    while words and words[0].startswith("-") and not re.fullmatch(r"-\d+", words[0]):
        option = words.pop(0)
        if option == "-s" and words:
            sign = words.pop(0)
        elif option.startswith("-s"):
            sign = option[2:]
        else:
            return None
    if not 1 <= len(words) <= 3 or not all(re.fullmatch(r"-?\d{1,9}", word) for word in words):
        return None
    numbers = [int(word) for word in words]
    first = numbers[0] if len(numbers) > 1 else 1
    step = numbers[1] if len(numbers) == 3 else 1
    if step == 0:
        return None
    found = list(range(first, numbers[-1] + (1 if step > 0 else -1), step)[:MOST_LINES])
    return (sign.join(map(str, found)) + "\n" if found else ""), 0


def _expr(words: Sequence[str], stdin: str) -> Printed:
    words = list(words)
    if words[:1] == ["length"] and len(words) == 2:
        return f"{len(words[1])}\n", 0
    if words[:1] == ["substr"] and len(words) == 4 and words[2].isdigit() and words[3].isdigit():
        begin = int(words[2]) - 1
        return words[1][begin : begin + int(words[3])] + "\n", 0
    if all(re.fullmatch(r"-?\d{1,18}|[-+*/%()<>=|&]|[<>!]=", word) for word in words):
        try:
            value = evaluate(" ".join("==" if word == "=" else word for word in words), _NoNumbers())
        except ArithmeticFailed:
            return None
        return f"{value}\n", int(value == 0)
    return None


class _NoNumbers:
    def read_number(self, name: str) -> str:
        raise ArithmeticFailed(name)

    def write_number(self, name: str, number: int) -> None:
        raise ArithmeticFailed(name)


def _sort(words: Sequence[str], stdin: str) -> Printed:
    found = _options(words, "", "nruV")
    if found is None or found[1] or UNSORTED_HOST in stdin:
        return None
    options = found[0]
    lines = _lines(stdin)
    if "n" in options or "V" in options:
        lines.sort(key=lambda line: [int(piece) if piece.isdigit() else piece for piece in re.split(r"(\d+)", line)])
    else:
        lines.sort()
    if "u" in options:
        lines = list(dict.fromkeys(lines))
    return _text(lines[::-1] if "r" in options else lines), 0


def _uniq(words: Sequence[str], stdin: str) -> Printed:
    if words:
        return None
    lines = _lines(stdin)
    return _text([line for at, line in enumerate(lines) if at == 0 or lines[at - 1] != line]), 0


def _paste(words: Sequence[str], stdin: str) -> Printed:
    found = _options(words, "d", "s")
    if found is None or "s" not in found[0] or found[1] not in ([], ["-"]):
        return None
    return found[0].get("d", "\t").join(_lines(stdin)) + "\n", 0


def _grep(words: Sequence[str], stdin: str) -> Printed:
    found = _options(words, "me", "vEcoiqwFP")
    if found is None:
        return None
    options, rest = found
    shape = options.get("e") or (rest.pop(0) if rest else "")
    if rest or re.search(r"[+*}]\)?[+*{]", shape) or "o" in options:
        return None
    shape = re.escape(shape) if "F" in options else _basic(shape) if not {"E", "P"} & options.keys() else shape
    shape = rf"\b(?:{shape})\b" if "w" in options else shape
    try:
        expression = re.compile(shape, re.IGNORECASE if "i" in options else 0)
    except re.error:
        return None
    lines = [line for line in _lines(stdin) if (expression.search(line[:2_000]) is None) == ("v" in options)]
    lines = lines[: int(options["m"])] if options.get("m", "").isdigit() else lines
    status = int(not lines)
    if "q" in options:
        return "", status
    return (f"{len(lines)}\n" if "c" in options else _text(lines)), status


def _basic(shape: str) -> str:
    """A basic expression of POSIX as one of Python."""

    def one(found: re.Match[str]) -> str:
        sign = found[1] or found[2]
        if sign not in "+?|(){}":
            return found[0]
        return sign if found[1] else "\\" + sign

    return re.sub(r"\\(.)|([+?|(){}])", one, shape)


_SUBSTITUTE = re.compile(
    r"s(?P<sign>[/|,#:@!])(?P<shape>(?:\\.|(?!(?P=sign))[^\\])*)(?P=sign)(?P<by>(?:\\.|(?!(?P=sign))[^\\])*)(?P=sign)(?P<flags>[gIip]*)"
)


def _sed(words: Sequence[str], stdin: str) -> Printed:
    found = _options(words, "e", "nEr")
    if found is None:
        return None
    options, rest = found
    script = options.get("e") or (rest.pop(0) if rest else "")
    if rest:
        return None
    lines = _lines(stdin)
    picked = re.fullmatch(r"(\d{1,6}|\$)(?:,(\d{1,6}|\$))?([pdq])", script)
    if picked:
        return _sed_lines(lines, picked, is_quiet="n" in options)
    substitute = _SUBSTITUTE.fullmatch(script)
    if substitute is None or "n" in options or re.search(r"[+*}]\)?[+*{]", substitute["shape"]):
        return None
    shape = substitute["shape"] if {"E", "r"} & options.keys() else _basic(substitute["shape"])
    by = re.sub(r"\\(.)|&", _inserted, substitute["by"])
    try:
        expression = re.compile(shape, re.IGNORECASE if "i" in substitute["flags"].lower() else 0)
        count = 0 if "g" in substitute["flags"] else 1
        return _text([expression.sub(by, line[:20_000], count=count) for line in lines]), 0
    except (re.error, IndexError):
        return None


def _inserted(found: re.Match[str]) -> str:
    """`&`, `\\1` and escaped signs of a replacement, as Python writes them."""
    if found[0] == "&":
        return "\\g<0>"
    return f"\\{found[1]}" if found[1].isdigit() else found[1].replace("\\", "\\\\")


def _sed_lines(lines: list[str], picked: re.Match[str], *, is_quiet: bool) -> Printed:
    begin = len(lines) if picked[1] == "$" else int(picked[1])
    end = begin if picked[2] is None else len(lines) if picked[2] == "$" else int(picked[2])
    if picked[3] == "q":
        return _text(lines[:begin]), 0
    if picked[3] == "d" and not is_quiet:
        return _text([line for at, line in enumerate(lines, 1) if not begin <= at <= end]), 0
    if picked[3] == "p" and is_quiet:
        return _text(lines[begin - 1 : end]), 0
    return None


_AWK = re.compile(
    r"\s*(?:NR\s*(?:%\s*(?P<every>[1-9]\d{0,2})\s*)?==\s*(?P<row>\d{1,6})\s*)?"
    r"(?:\{\s*print\s*(?P<fields>(?:\$\w+(?:\s*,)?\s*)*)(?:;\s*)?(?P<exit>exit(?:\s*;)?\s*)?\}\s*)?"
)


def _awk(words: Sequence[str], stdin: str) -> Printed:
    words = list(words)
    sign = None
    while words and words[0].startswith("-F"):
        option = words.pop(0)
        sign = option[2:] or (words.pop(0) if words else None)
    if len(words) != 1:
        return None
    if re.fullmatch(r"\s*END\s*\{\s*print\s+NR;?\s*\}\s*", words[0]):
        return f"{len(_lines(stdin))}\n", 0
    match = _AWK.fullmatch(words[0])
    if match is None or not (match["row"] or match["fields"] is not None):
        return None
    fields = re.findall(r"\$(\w+)", match["fields"] or "")
    out = []
    for number, line in enumerate(_lines(stdin), 1):
        if match["row"] and number % int(match["every"] or number + 1) != int(match["row"]):
            continue
        pieces = line.split() if sign is None or sign == " " else line.split(sign)
        names = fields or ["0"]
        picked = [line if n == "0" else pieces[-1] if n == "NF" and pieces else _at(pieces, n) for n in names]
        out.append(" ".join(picked))
        if match["exit"]:
            break
    return _text(out), 0


def _at(pieces: Sequence[str], number: str) -> str:
    return pieces[int(number) - 1] if number.isdigit() and 0 < int(number) <= len(pieces) else ""


def _rev(words: Sequence[str], stdin: str) -> Printed:
    return None if words else (_text([line[::-1] for line in _lines(stdin)]), 0)


def _basename(words: Sequence[str], stdin: str) -> Printed:
    if not 1 <= len(words) <= 2:
        return None
    name = posixpath.basename(words[0].rstrip("/")) or "/"
    return (name.removesuffix(words[1]) if len(words) == 2 and name != words[1] else name) + "\n", 0


def _dirname(words: Sequence[str], stdin: str) -> Printed:
    return ((posixpath.dirname(words[0].rstrip("/")) or ".") + "\n", 0) if len(words) == 1 else None


def _python(words: Sequence[str], stdin: str) -> Printed:
    """`python -c 'print(constant)'`."""
    if len(words) != 2 or words[0] != "-c":
        return None
    try:
        body = ast.parse(words[1].strip()).body
        call = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
        if (
            not isinstance(call, ast.Call)
            or not isinstance(call.func, ast.Name)
            or call.func.id != "print"
            or call.keywords
        ):
            return None
        return " ".join(str(ast.literal_eval(each)) for each in call.args) + "\n", 0
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def host_names(text: str) -> list[str] | None:
    """The hosts of a Slurm list: `node[01-03,7],login1`; None where it is not one."""
    found: list[str] = []
    for piece in re.findall(r"[^,\[]*(?:\[[^\]]*\][^,\[]*)*", text):
        if piece:
            names = _expanded(piece)
            if names is None or len(found) + len(names) > MOST_HOSTS:
                return None
            found += names
    return found


def _expanded(piece: str) -> list[str] | None:
    match = re.fullmatch(r"([^\[]*)\[([\d,-]+)\](.*)", piece)
    if match is None:
        return None if "[" in piece else [piece]
    rest = _expanded(match[3]) if match[3] else [""]
    if rest is None:
        return None
    found = []
    for part in match[2].split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()) or int(last or first) - int(first) > MOST_HOSTS:
            return None
        found += [
            f"{match[1]}{n:0{len(first)}d}{tail}" for n in range(int(first), int(last or first) + 1) for tail in rest
        ]
    return found


TOOLS: dict[str, Tool] = {
    "cat": _cat,
    "head": _head,
    "tail": _tail,
    "cut": _cut,
    "tr": _tr,
    "wc": _wc,
    "seq": _seq,
    "expr": _expr,
    "sort": _sort,
    "uniq": _uniq,
    "paste": _paste,
    "grep": _grep,
    "egrep": _grep,
    "sed": _sed,
    "awk": _awk,
    "gawk": _awk,
    "rev": _rev,
    "basename": _basename,
    "dirname": _dirname,
    "python": _python,
    "python3": _python,
}
"""By the name of the program."""
