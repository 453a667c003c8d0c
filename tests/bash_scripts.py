"""Random shell scripts of assignments, expansions, arithmetic and quoting, for a comparison with bash."""

from __future__ import annotations

import random

__all__ = ["script"]

VARIABLES = ("A", "B", "C", "x", "y", "arr")
LITERALS = (
    *(
        "a",
        "b c",
        "foo.bar.txt",
        "/path/to/file.tar.gz",
        "10",
        "007",
        "-3",
        "",
        "x=y",
        "a:b:c",
        "  s  ",
        "node[0-3]",
        "*",
    ),
    *("h?", "A", "aBc", "--nnodes=2", "1,2,3"),
)
FORMS = (
    *(
        "${#A}",
        "${#arr[@]}",
        '"${arr[@]}"',
        "${arr[*]}",
        '"${arr[*]}"',
        "${arr[1]}",
        '"${arr[@]:1:2}"',
        "$#",
        '"$@"',
        "$1",
    ),
    *(
        "${2}",
        "{a,b}c",
        "x{1..3}",
        "${!x}",
        "${A^^}",
        "${B,}",
        "$'a\\tb'",
        "\\$A",
        "~x",
        "$[1+2]",
        '"\\"q\\""',
        "'a'\"b\"c",
    ),
    *("${arr[@]/a/Z}", "${!arr[@]}"),
)
END = '\nprintf \'<%s>\' "$A" "$B" "$C" "$x" "$y" "${arr[@]}" "$n" "$@"; echo\n'


def script(seed: int) -> str:
    """One script; it prints its variables at the end."""
    dice = random.Random(seed)
    lines = [_statement(dice, 0) for _ in range(dice.randrange(1, 6))]
    return "n=0; set -- p 'q r'; A=abc; arr=(a b)\n" + "\n".join(lines) + END


def _word(dice: random.Random, depth: int = 0) -> str:
    name = dice.choice(VARIABLES)
    kind = dice.randrange(14)
    if kind == 0:
        return dice.choice(["abc", "12", "x.y", "--opt=v", "a/b/c", "n1"])
    if kind in (1, 2):
        sign = "'\""[kind - 1]
        return f"{sign}{dice.choice(LITERALS)}{sign}"
    if kind == 7:
        return (
            "${"
            + name
            + dice.choice([":-", "-", ":+", "+"])
            + dice.choice(["d", "$x", "'q w'", '"e f"', "", "z"])
            + "}"
        )
    if kind == 8:
        shape = dice.choice(["a", "*.", "*/", ".*", "/*", "?", "*", "[a-c]", "*:", ":*"])
        return "${" + name + dice.choice(["#", "##", "%", "%%"]) + shape + "}"
    if kind == 9:
        operator = dice.choice(["/", "//", "/#", "/%"])
        return (
            '"${'
            + name
            + operator
            + dice.choice(["a", "o", "?", "b*", ".", "/"])
            + dice.choice(["/X", "/", "/yy"])
            + '}"'
        )
    if kind == 10:
        return f"$(({_arithmetic(dice)}))"
    if kind == 11 and depth < 3:
        return f"$(echo {_word(dice, depth + 1)} {_word(dice, depth + 1)})"
    if kind == 12:
        return (
            '"${' + name + ":" + dice.choice(["0", "1", "2", " -2", "x"]) + dice.choice(["", ":1", ":3", ":0"]) + '}"'
        )
    if kind == 13:
        return dice.choice(FORMS)
    return (f"${name}", f'"${name}"', f"${{{name}}}", f'"pre${{{name}}}post"')[kind % 4]


def _arithmetic(dice: random.Random, depth: int = 0) -> str:
    kind = dice.randrange(9)
    if kind < 3 or depth > 2:
        return dice.choice(["1", "2", "7", "0x1f", "010", "100", "A", "B", "x", "n", "3#21"])
    left, right = _arithmetic(dice, depth + 1), _arithmetic(dice, depth + 1)
    if kind < 6:
        operators = ["+", "-", "*", "/", "%", "<", ">", "==", "!=", "&&", "||", "&", "|", "^", "<<", ">>", " + ", "**"]
        return left + dice.choice(operators) + right
    if kind == 6:
        return f"({left})"
    if kind == 7:
        return f"{dice.choice('-!~+')}({left})"
    return f"{left}?{right}:{_arithmetic(dice, depth + 1)}"


def _statement(dice: random.Random, depth: int) -> str:
    name = dice.choice(VARIABLES[:5])
    kind = dice.randrange(16)
    first, second = _word(dice), _word(dice)
    wanted = dice.choice(["a", "''", '"$A"', "10"])
    if kind < 5:
        return f"{name}{dice.choice(['=', '=', '+='])}{first}"
    return (
        f"arr=({first} {second})",
        f'for i in {first} {second}; do A="$A.$i"; done',
        f'if [ "${name}" = {wanted} ]; then y=eq; else y=ne; fi',
        f'case "${name}" in a*) B=1;; *b*|10) B=2;; *) B=3;; esac',
        f"n=$(({_arithmetic(dice)}))",
        f"read -r x y <<< {first}",
        f"f() {{ local A={first}; B=$1; }}; f {second}",
        f"set -- {first} {second}",
        f"printf -v C '%s-%03d' {first} 5",
        '( A=sub; echo "$A" ); [ -n "$A" ] && C=set || C=unset',
        f"echo {first} {second}",
    )[kind - 5]
