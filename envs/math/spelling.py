"""Spellings that carry no mathematics of their own: Unicode signs, styles, dots over digits, French interval brackets."""

from __future__ import annotations

import re

_SIGNS = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": "/", "⁄": "/", "∕": "/",
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\leq ", "≥": r"\geq ", "≠": r"\neq ", "≈": r"\approx ", "∈": r"\in ", "∪": r"\cup ",
    "∩": r"\cap ", "∖": r"\setminus ", "±": r"\pm ", "∓": r"\mp ", "°": r"^{\circ}", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}",
    "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "…": r"\ldots ", "\u00a0": " ", "\u2009": " ", "\u202f": " ",
    "′": "'", "√": r"\sqrt ", "∛": r"\sqrt[3] ", "∜": r"\sqrt[4] ", "€": "", "£": "", "¥": "", "∧": r"\text{ and }",
    "∨": r"\text{ or }", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "λ": r"\lambda ",
    "μ": r"\mu ", "σ": r"\sigma ", "φ": r"\phi ", "ω": r"\omega ", "Δ": r"\Delta ", "Ω": r"\Omega ",
}  # fmt: skip
_FRACTIONS = {
    "½": "12", "⅓": "13", "⅔": "23", "¼": "14", "¾": "34", "⅕": "15", "⅖": "25", "⅗": "35", "⅘": "45", "⅙": "16", "⅚": "56",
    "⅛": "18", "⅜": "38", "⅝": "58", "⅞": "78",
}  # fmt: skip
_TABLE = str.maketrans(_SIGNS | {sign: rf"\frac{{{digits[0]}}}{{{digits[1]}}}" for sign, digits in _FRACTIONS.items()})
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿ", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎"
_SCRIPTS = str.maketrans(_RAISED + _LOWERED, "0123456789+-=()n" + "0123456789+-=()")
_RAISED_RUN, _LOWERED_RUN = re.compile(f"[{_RAISED}]+"), re.compile(f"[{_LOWERED}]+")
_ROOT_OF_DIGITS = re.compile(r"([√∛∜])\s*(\d+(?:\.\d+)?)")

_STYLES = re.compile(
    r"\\(?:bf|rm|it|tt|sf|bfseries|boldmath|tiny|small|normalsize|large|Large|LARGE|huge|Huge|textstyle|scriptstyle)(?![a-zA-Z])"
    r"|\\(?:text)?color\s*\{[^{}]*\}"
)
_STYLED_NUMBER = re.compile(
    r"\\(?:text|math(?:rm|bf|sf|tt|it)|text(?:rm|bf|it|sf|tt|normal)|boldsymbol|bm|mbox|underline|emph)\s*"
    r"\{\s*(-?[\d.,/ ]+?)\s*(?P<words>\s\(?[A-Za-z][A-Za-z .()/'-]*)?\}"
)
_ROMAN = re.compile(r"\{\s*\\(?:rm|it|bf|sf)\s+([A-Za-z][A-Za-z ]+)\}")
_UNDERLINED = re.compile(r"\\underline\s*\{([^{}]*)\}")
_UNIT_VECTOR = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|vec|hat|mathbf\s*\{\s*\\hat)\s*(?:\{\s*(?:\\([ij])math|([ijk]))\s*\}|\s([ijk])(?![a-zA-Z]))\s*"
)
_LABEL = re.compile(r"(?:\\text\s*\{\s*)?(?:the )?(?:final )?answer(?:\s+is)?\s*[:=]\s*(\})?\s*", re.I)
_DOTTED = re.compile(r"(?<=[\d.])\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?")
# One digit three times or more, several twice or more: 0.333..., 0.1616...
_REPEATED = re.compile(r"(?<![\d.])(\d*\.\d*?)(?:(\d)\2{2,}|(\d{2,}?)\3+)\s*(?:\.{2,}|…|\\[lc]?dots(?![a-z]))")
_BAR_LOOSE = re.compile(r"(\\(?:overline|bar))\s*(\d)")
_CHOOSE = re.compile(r"\{\s*([^{}]*?)\s*\\choose\s*([^{}]*?)\s*\}")
_BINOMIAL_LOOSE = re.compile(r"\\binom\s*(?:\{([^{}]*)\}|([0-9a-zA-Z]))\s*(?:\{([^{}]*)\}|([0-9a-zA-Z]))")
_FRENCH = re.compile(r"([\[\]])\s*([^\[\],\s][^\[\],]*),\s*([^\[\],]*[^\[\],\s])\s*([\[\]])")
_BEFORE_INTERVAL = (r"\cup", r"\cap", r"\in", "=", "(", "{", r"\setminus")
_AFTER_INTERVAL = (r"\cup", r"\cap", r"\setminus", ")", "}")
_FRENCH_BRACKETS = {("]", "["): "()", ("]", "]"): "(]", ("[", "["): "[)", ("[", "]"): "[]"}


def from_unicode(text: str) -> str:
    """LaTeX for the signs of Unicode; a run of raised digits is one exponent, a root takes all digits after it."""
    text = _ROOT_OF_DIGITS.sub(r"\1{\2}", text)
    text = _RAISED_RUN.sub(lambda match: f"^{{{match.group().translate(_SCRIPTS)}}}", text)
    text = _LOWERED_RUN.sub(lambda match: f"_{{{match.group().translate(_SCRIPTS)}}}", text)
    return text.translate(_TABLE)


def with_bars(text: str) -> str:
    r"""``0.333...`` -> ``0.\overline{3}``."""
    return _REPEATED.sub(lambda match: rf"{match.group(1)}\overline{{{match.group(2) or match.group(3)}}}", text)


def without_styles(text: str) -> str:
    """Without fonts, sizes, colours, underlining, and a label ("Answer: ") before the answer."""
    if label := _LABEL.match(text):
        is_whole = text.startswith("\\text") == bool(label.group(1))
        text = text[label.end() :] if is_whole else text
    text = _ROMAN.sub(r"\\text{ \1}", text)
    text = re.sub(r"\s{2,}", " ", _STYLES.sub(" ", text))
    text = _STYLED_NUMBER.sub(_number_and_words, text)
    text = _UNDERLINED.sub(r"\1", text)
    return _UNIT_VECTOR.sub(lambda match: f" {match.group(1) or match.group(2) or match.group(3)} ", text)


def _number_and_words(match: re.Match[str]) -> str:
    r"""``\\text{18 dollars}`` -> ``18\\text{ dollars}``."""
    words = match.group("words")
    return rf" {match.group(1)}\text{{{words}}} " if words else f" {match.group(1)} "


def with_usual_notation(text: str) -> str:
    r"""``0.\dot3`` -> ``0.\overline{3}``, ``{5 \choose 2}`` -> ``\binom{5}{2}``, ``[0,1[`` -> ``[0,1)``."""
    if r"\dot" in text:
        text = _DOTTED.sub(lambda match: rf"\overline{{{''.join(filter(None, match.groups()))}}}", text)
    text = _BAR_LOOSE.sub(r"\1{\2}", text)
    text = _CHOOSE.sub(r"\\binom{\1}{\2}", text)
    text = _BINOMIAL_LOOSE.sub(_braced_binomial, text)
    if "[" in text or "]" in text:
        text = _FRENCH.sub(_round_bracketed, text)
    return text


def _braced_binomial(match: re.Match[str]) -> str:
    top, bottom = match.group(1) or match.group(2) or "", match.group(3) or match.group(4) or ""
    return rf"\binom{{{top}}}{{{bottom}}}"


def _round_bracketed(match: re.Match[str]) -> str:
    """A bracket that turns outwards leaves its end out; one that begins another list or ends one is left alone."""
    before, after = match.string[: match.start()].rstrip(), match.string[match.end() :].lstrip()
    opens_outwards = match.group(1) == "]" and (not before or before.endswith(_BEFORE_INTERVAL))
    closes_outwards = match.group(4) == "[" and (not after or after.startswith(_AFTER_INTERVAL))
    if not opens_outwards and not closes_outwards:
        return match.group()
    brackets = _FRENCH_BRACKETS[match.group(1), match.group(4)]
    return f"{brackets[0]}{match.group(2)}, {match.group(3)}{brackets[1]}"
