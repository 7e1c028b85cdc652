"""Reading the outer structure of a normalised answer; what an atom says is left to the comparison."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from winnowrl.envs.math.shapes import Atom, Items, Relation, Shape

MAX_ITEMS = 200

_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|.", re.S)
_OPEN = {"(", "[", "{", r"\{", r"\langle", r"\lfloor", r"\lceil", r"\begin"}
_CLOSE = {")", "]", "}", r"\}", r"\rangle", r"\rfloor", r"\rceil", r"\end"}
_RELATIONS = {
    "=": "=", "<": "<", ">": ">", r"\leq": "<=", r"\geq": ">=", r"\neq": "!=", r"\in": "in", r"\approx": "~", r"\equiv": "equiv",
    r"\cong": "cong", r"\sim": "sim", r"\simeq": "sim", r"\subset": "subset", r"\subseteq": "subseteq", r"\to": "to",
    r"\rightarrow": "to", r"\mapsto": "to", r"\implies": "implies", r"\Rightarrow": "implies", r"\notin": "notin",
    r"\iff": "iff", r"\propto": "propto",
}  # fmt: skip
_CODE_RELATIONS = (("<=", r"\leq "), (">=", r"\geq "), ("!=", r"\neq "), (":=", "="), ("==", "="))
_GROUPED = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)")
_THREE_NUMBERS = re.compile(r"\d{3}(?:,\d{3}){2,}")
_MATRIX = re.compile(
    r"([^&,=<>]*?)(?:\\cdot|\\times)?\s*\\begin\s*\{([pbB]?matrix|smallmatrix|array)\}(?:\s*\{[lcr|]*\})?(.*)\\end\s*\{\2\}\s*",
    re.S,
)


def read_shapes(text: str, *, is_gold: bool = False) -> tuple[Shape, ...]:
    """The ways to read a normalised answer, the likeliest first.

    There are two where commas may group the digits of a number or part the items of a list (``100,200``). A gold is
    taken for a list only where three or more numbers of three digits would be; else a wrong answer could equal it.
    """
    for written, read in _CODE_RELATIONS:
        text = text.replace(written, read)
    text = text.strip()
    groups = _GROUPED.findall(text) if "," in text else ()
    if not groups:
        return (_read(text),)
    joined = _join_groups(text)
    is_list = ",0" not in "".join(groups) and (not is_gold or all(_THREE_NUMBERS.fullmatch(group) for group in groups))
    return (_read(joined), _read(text)) if is_list and joined != text else (_read(joined),)


def _join_groups(text: str) -> str:
    """Without the commas of grouped digits; between the brackets of a set or a tuple only where a group begins with 0."""
    brackets: list[str] = []
    inside_list: list[bool] = []
    previous = ""
    for token in _TOKEN.findall(text):
        inside_list += [any(bracket != "group" for bracket in brackets)] * len(token)
        if token in _OPEN:
            # The braces of \\frac{10,000}{3} hold one expression; a brace that begins an answer is a set.
            brackets.append(
                "group" if token == "{" and (previous[:1] == "\\" or previous in {"}", "^", "_"}) else token
            )
        elif token in _CLOSE and brackets:
            brackets.pop()
        previous = token if token.strip() else previous

    def join(match: re.Match[str]) -> str:
        is_number = not inside_list[match.start()] or ",0" in match.group()
        return match.group().replace(",", "") if is_number else match.group()

    return _GROUPED.sub(join, text)


def nesting(text: str) -> int:
    """Depth of the deepest bracket of any kind."""
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest


def _read(text: str) -> Shape:
    for sign, kind in ((r"\vee", "either"), (r"\wedge", "both")):
        parts = _split(text, {sign})
        if len(parts) > 1:
            shapes = tuple(map(_read, parts))
            is_statement = all(isinstance(shape, Relation) for shape in shapes)
            return Items(kind, "", shapes) if is_statement else _read(text.replace(sign, ","))
    parts = _split(text, {",", ";"})
    if len(parts) > 1:
        return _read_list(parts)
    return _read_single(text)


def _read_list(parts: Sequence[str]) -> Shape:
    shapes = [_read_single(part) for part in parts]
    first = shapes[0]
    # n = 2, 3, 4 gives n three values; x = 2, y = 3 are two relations.
    if isinstance(first, Relation) and first.is_assignment and not any(isinstance(s, Relation) for s in shapes[1:]):
        values = Items("list", "", (*_flat([first.sides[-1]], "list"), *_flat(shapes[1:], "list")))
        return Relation(first.signs, (*first.sides[:-1], values))
    return Items("list", "", tuple(_flat(shapes, "list")))


def _read_single(text: str) -> Shape:
    sides, signs = _split_relations(text)
    if signs and all(side.strip() for side in sides):
        return Relation(tuple(signs), tuple(_read(side.strip()) for side in sides))
    text = text.strip()
    if bracketed := _bracketed(text):
        return bracketed
    unions = _split(text, {r"\cup"})
    if len(unions) > 1:
        return Items("union", "", tuple(_read_single(part) for part in unions))
    ratio = _split(text, {":"})
    if len(ratio) > 1 and all(part.strip() for part in ratio):
        return Items("ratio", "", tuple(Atom(part.strip()) for part in ratio))
    if r"\pm" in text or r"\mp" in text:
        return _both_signs(text)
    return Atom(text)


def _bracketed(text: str) -> Shape | None:
    if r"\begin" in text and (matrix := _MATRIX.fullmatch(text)):
        return _matrix(matrix.group(3), matrix.group(1).strip())
    tokens = _TOKEN.findall(text)
    if len(tokens) < 2 or tokens[0] not in {"(", "[", r"\{", "{", r"\langle"} or not _encloses(tokens):
        return None
    inside = "".join(tokens[1:-1]).strip()
    parts = _split(inside, {",", ";"})
    if tokens[0] in (r"\{", "{"):
        if not inside or re.search(r"(?<!\|)\|(?!\|)|:", inside):
            return None
        shapes = [_read_single(part) for part in parts]
        if len(parts) == 1 and tokens[0] == "{":
            return shapes[0]
        return Items("set", "", tuple(_flat(shapes, "list")))
    if len(parts) > 1:
        opening = "(" if tokens[0] == r"\langle" else tokens[0]
        closing = ")" if tokens[-1] == r"\rangle" else tokens[-1]
        return Items("tuple", opening + closing, tuple(_read_single(part) for part in parts))
    return _read_single(inside) if inside and tokens[0] == "(" and tokens[-1] == ")" else None


def _encloses(tokens: Sequence[str]) -> bool:
    """True when the first bracket is closed by the last token."""
    depth = 0
    for index, token in enumerate(tokens):
        depth += (token in _OPEN) - (token in _CLOSE)
        if depth == 0:
            return index == len(tokens) - 1
    return False


def _matrix(body: str, factor: str) -> Shape | None:
    if r"\begin" in body:
        return None
    before = factor if factor in ("", "-") else rf"({factor}) \cdot "
    rows = [row for row in re.split(r"\\\\(?:\s*\[[^\]]*\])?", body) if row.strip()]
    if not rows or len(rows) > MAX_ITEMS:
        return None
    cells = [[_read_single(f"{before}({cell})" if before else cell) for cell in row.split("&")] for row in rows]
    return Items("matrix", "", tuple(Items("tuple", "[]", tuple(row)) for row in cells))


def _both_signs(text: str) -> Shape:
    plus = text.replace(r"\pm", "+").replace(r"\mp", "-")
    minus = text.replace(r"\pm", "-").replace(r"\mp", "+")
    return Items("list", "", (Atom(plus.strip().removeprefix("+").strip()), Atom(minus.strip())))


def _flat(shapes: Sequence[Shape], kind: str) -> Iterator[Shape]:
    for shape in shapes:
        if isinstance(shape, Items) and shape.kind == kind:
            yield from shape.items
        else:
            yield shape


def _split(text: str, separators: set[str]) -> list[str]:
    """``text`` cut at separators outside all brackets; empty pieces at the ends are dropped."""
    if not any(separator in text for separator in separators):
        return [text]
    parts: list[str] = []
    current: list[str] = []
    depth = 0
    for token in _TOKEN.findall(text):
        depth += (token in _OPEN) - (token in _CLOSE)
        if depth == 0 and token in separators and len(parts) < MAX_ITEMS:
            parts.append("".join(current))
            current = []
        else:
            current.append(token)
    parts.append("".join(current))
    return [part for part in parts if part.strip()] or [text]


def _split_relations(text: str) -> tuple[list[str], list[str]]:
    sides: list[str] = []
    signs: list[str] = []
    current: list[str] = []
    depth = 0
    for token in _TOKEN.findall(text):
        depth += (token in _OPEN) - (token in _CLOSE)
        if depth == 0 and token in _RELATIONS:
            sides.append("".join(current))
            signs.append(_RELATIONS[token])
            current = []
        else:
            current.append(token)
    return [*sides, "".join(current)], signs
