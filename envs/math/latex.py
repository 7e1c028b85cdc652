"""Cosmetic normalisation of an answer: one spelling for what LaTeX, Unicode and code can write in many."""

from __future__ import annotations

import re

from winnowrl.envs.math.spelling import from_unicode, with_bars, with_usual_notation, without_styles

_COMMANDS = {
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "le": r"\leq", "ge": r"\geq", "ne": r"\neq",
    "leqslant": r"\leq", "geqslant": r"\geq", "lt": "<", "gt": ">", "lbrace": r"\{", "rbrace": r"\}", "dots": r"\ldots",
    "cdots": r"\ldots", "dbinom": r"\binom", "tbinom": r"\binom", "left": "", "right": "", "big": "", "Big": "",
    "bigl": "", "bigr": "", "Bigl": "", "Bigr": "", "displaystyle": "", "quad": " ", "qquad": " ", "varnothing": r"\emptyset",
    "degree": r"^{\circ}", "mathrm": r"\text", "textbf": r"\text", "textit": r"\text", "mbox": r"\text", "textrm": r"\text",
    "mathit": r"\text", "lvert": "|", "rvert": "|", "vert": "|", "mid": "|", "colon": ":", "lor": r"\text{ or }",
    "land": r"\text{ and }", "vee": r"\text{ or }", "setminus": r"\setminus", "backslash": r"\setminus", "bmod": r"\bmod",
    "infin": r"\infty", "ast": "*", "notin": r"\notin", "ldotp": ".", "limits": "", "arctan": r"\arctan",
}  # fmt: skip
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_SPACE_COMMANDS = re.compile(r"(?<!\\)\\[,;:! \n]|~")
_BLANKS = re.compile(r"\s{2,}")
_STAR = re.compile(r"(?<![\^{])\*(?!\})")
_THOUSANDS = re.compile(r"(?<=\d)\s*(?:\{\s*,\s*\}|,\\!|\\,|\\!,)\s*(?=\d{3}(?!\d))")
_DEGREE = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))")
DEGREE = r"^{\circ}"
TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_FLAT = r"\{((?:(?!\\frac)[^{}])*+)\}"
_FRAC_LOOSE = re.compile(rf"\\frac\s*(?:{_FLAT}|([0-9a-zA-Z]))\s*(?:{_FLAT}|([0-9a-zA-Z]))")
_GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+\}"
_FRAC_HALF_LOOSE = re.compile(rf"\\frac\s*(?:({_GROUP})\s*([0-9a-zA-Z])|([0-9a-zA-Z])\s*({_GROUP}))")
_SQRT_LOOSE = re.compile(r"\\sqrt\s*(\[[^\]]*\])?\s*([0-9a-zA-Z])")
_SCRIPT_LOOSE = re.compile(r"([_^])\s*(-?\d+(?!\d*\.))")
_UPRIGHT_LETTER = re.compile(r"\\text\s*\{([a-zA-Z])\s*\}")
_OPERATOR_NAME = re.compile(r"\\operatorname\*?\s*\{\s*([a-zA-Z]+)\s*\}")
_WORD_AND = re.compile(r",?\s*(?:\\text\s*\{\s*,?\s*(and|or)\s*,?\s*\}|(?<![\\\w])(and|or)(?!\w))\s*", re.I)
_INEQUALITY = re.compile(r"[<>]|\\[lg]eq")
_PERCENT_WORD = re.compile(
    r"\s*(?:\\text\s*\{\s*)?(?<![\\\w])(?:percent(?:age)?|pct)\b(?:\s*\})?|(?<=\d)\s*(?:percent(?:age)?|pct)\b", re.I
)

_NAMES = {
    "pi": r"\pi ", "oo": r"\infty ", "inf": r"\infty ", "infinity": r"\infty ", "Theta": r"\Theta ", "theta": r"\theta ",
    "alpha": r"\alpha ", "beta": r"\beta ", "gamma": r"\gamma ", "lambda": r"\lambda ", "mu": r"\mu ", "sigma": r"\sigma ",
    "Omega": r"\Omega ", "omega": r"\omega ", "phi": r"\phi ",
}  # fmt: skip
_FUNCTIONS = (
    "sin",
    "cos",
    "tan",
    "sec",
    "csc",
    "cot",
    "sinh",
    "cosh",
    "tanh",
    "arcsin",
    "arccos",
    "arctan",
    "log",
    "ln",
)
_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}
_BRACED = {"sqrt": r"\sqrt{%s}", "exp": "e^{%s}", "abs": "|%s|", "factorial": "(%s)!"}
_BARE_WORD = re.compile(r"(?<![\\A-Za-z])([A-Za-z]{2,9})(?![A-Za-z])")
_CALL = re.compile(r"\\?(?<![A-Za-z])(sqrt|exp|abs|Abs|factorial|binomial)\s*\(")


def normalize(text: str) -> str:
    """One spelling for an answer; cosmetic only, the mathematics is left as it stands.

    Removes delimiters, spacing commands, ``\\left``/``\\right``, currency signs, and degree signs where no sine or tangent
    needs them; braces loose fractions, roots and scripts; rewrites Unicode symbols and code-style calls (``sqrt(2)/2``,
    ``exp(16)``, ``x**2``) as LaTeX.
    """
    text = _unwrap(re.sub(r"\s+", " ", text).strip()).removeprefix("= ")
    if not text.isascii():
        text = from_unicode(text)
    if ".." in text or "dots" in text:
        text = with_bars(text)
    if not _NEEDS_WORK.search(text):
        return text.strip().rstrip(".,;").strip()
    text = text.replace(r"\$", "").replace("$", "")
    text = _THOUSANDS.sub("", text)
    # The expressions below try a run of blanks from each of its places: there is to be none.
    text = _BLANKS.sub(" ", _SPACE_COMMANDS.sub(" ", text))
    text = without_styles(text)
    text = _OPERATOR_NAME.sub(r"\\\1 ", text)
    text = _BLANKS.sub(" ", _COMMAND.sub(lambda match: _COMMANDS.get(match.group(1), match.group()), text))
    text = text.replace(r"\%", "%").replace("**", "^")
    text = _PERCENT_WORD.sub("%", text)
    text = _UPRIGHT_LETTER.sub(r" \1", text)
    text = with_usual_notation(text)
    text = _WORD_AND.sub(_connective, text) if _INEQUALITY.search(text) else _WORD_AND.sub(", ", text)
    text = _from_code(text)
    # 30 degrees are a bare 30, but the sine of 30 degrees is not the sine of 30.
    text = _DEGREE.sub((lambda _: DEGREE) if TRIGONOMETRIC.search(text) else "", text)
    text = _FRAC_LOOSE.sub(_braced_fraction, text)
    text = _FRAC_HALF_LOOSE.sub(_half_braced_fraction, text)
    text = _SQRT_LOOSE.sub(lambda match: rf"\sqrt{match.group(1) or ''}{{{match.group(2)}}}", text)
    text = _SCRIPT_LOOSE.sub(r"\1{\2}", text)
    return re.sub(r"\s+", " ", text).strip().rstrip(".,;").strip()


_NEEDS_WORK = re.compile(r"^\]|\[$|[\\$*^_~%a-zA-Z({]|\s\s")


def _connective(match: re.Match[str]) -> str:
    r"""Between inequalities the word decides: ``x < 1 or x > 3`` and ``x > 1 and x < 3``."""
    return r" \vee " if (match.group(1) or match.group(2)).lower() == "or" else r" \wedge "


def _unwrap(text: str) -> str:
    """Without the delimiters around the whole answer."""
    for _ in range(4):
        before = text
        for start, end in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
            inner = text[len(start) : -len(end)]
            if text.startswith(start) and text.endswith(end) and len(text) > len(start + end) and end not in inner:
                text = inner.strip()
        if text.startswith(r"\boxed{") and text.endswith("}"):
            text = text[7:-1].strip()
        if text == before:
            break
    return text


def _braced_fraction(match: re.Match[str]) -> str:
    top = match.group(1) if match.group(1) is not None else match.group(2)
    bottom = match.group(3) if match.group(3) is not None else match.group(4)
    return rf"\frac{{{top}}}{{{bottom}}}"


def _half_braced_fraction(match: re.Match[str]) -> str:
    """One of the two is a single character, and the other holds braces."""
    if match.group(1):
        return rf"\frac{match.group(1)}{{{match.group(2)}}}"
    return rf"\frac{{{match.group(3)}}}{match.group(4)}"


def _from_code(text: str) -> str:
    if "(" in text:
        text = _rewrite_calls(text)
        text = _braced_exponents(text)
    text = _STAR.sub(r" \\cdot ", text)
    return _BARE_WORD.sub(_command_for_word, text)


def _command_for_word(match: re.Match[str]) -> str:
    word = match.group(1)
    word = _ALIASES.get(word, word)
    if word in _FUNCTIONS:
        return rf"\{word} "
    return _NAMES.get(word, match.group())


def _rewrite_calls(text: str) -> str:
    """``sqrt(x)`` -> ``\\sqrt{x}`` and its like, innermost arguments included; at most 100 calls."""
    for _ in range(100):
        match = _CALL.search(text)
        close = _matching(text, match.end() - 1) if match else None
        if match is None or close is None:
            break
        name, inside = match.group(1).lower(), text[match.end() : close]
        if name == "binomial":
            top, _, bottom = inside.partition(",")
            new = rf"\binom{{{top}}}{{{bottom}}}"
        else:
            new = _BRACED[name] % inside
        text = text[: match.start()] + new + text[close + 1 :]
    return text


def _braced_exponents(text: str) -> str:
    for _ in range(100):
        match = re.search(r"\^\s*\(", text)
        close = _matching(text, match.end() - 1) if match else None
        if match is None or close is None:
            break
        text = f"{text[: match.start()]}^{{{text[match.end() : close]}}}{text[close + 1 :]}"
    return text


def _matching(text: str, open_at: int) -> int | None:
    depth = 0
    for index in range(open_at, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index
    return None
