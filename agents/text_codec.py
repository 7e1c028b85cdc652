"""Text to ids and back, on the tokenizer's core: microseconds a call, and no hidden special tokens."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

# Observations repeat (members of a group share theirs, environments have stock answers): 10 times cheaper than encoding.
CACHED_TEXTS = 4096
CACHED_CHARACTERS = 4000
# Characters with no meaning of their own: a template neither strips nor changes them.
PRIVATE_PLANE = range(0xF0000, 0xFFFFE)


class TextCodec:
    """Encodes and decodes fragments of one conversation.

    Args:
        tokenizer: A Hugging Face tokenizer, fast or slow.

    ``encode_text`` never yields a control token: an observation that contains ``<|im_end|>`` is text about that token,
    not the token. ``encode_markup`` does, for what a template writes.

    Attributes:
        leading_ids: What the tokenizer puts before any text: a begin token, or nothing.
        control_names: Finds the names of special tokens in a text; None when the tokenizer has none.
        control_openers: The characters such names begin with.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._markup = copy.deepcopy(getattr(tokenizer, "backend_tokenizer", None))
        self._text = copy.deepcopy(self._markup)
        for core in (self._markup, self._text):
            if core is not None:
                core.no_truncation()
                core.no_padding()
        if self._text is not None:
            self._text.encode_special_tokens = True
        tokens = tokenizer.added_tokens_decoder
        added = sorted({token.content for token in tokens.values()}, key=len, reverse=True)
        self._added = _any_of(added)
        self._control_ids = frozenset(token_id for token_id, token in tokens.items() if token.special)
        control = {token.content for token in tokens.values() if token.special}
        self.control_names = _any_of(sorted(control, key=len, reverse=True))
        self.control_openers = frozenset(name[0] for name in control)
        self._cached = lru_cache(maxsize=CACHED_TEXTS)(self._encode_fragment)
        self._anchor = "\n" if self._is_marked(self._encode("a", True)[0]) else ""
        self._anchor_ids = self._encode(self._anchor, True)
        self.leading_ids = self._find_leading_ids()
        self._marks_behind_added = bool(self._anchor and added) and self._is_marked(
            self._encode(f"{added[0]}a", False)[1]
        )

    def encode_text(self, text: str, *, is_behind_added: bool = False) -> list[int]:
        """Ids of ``text`` inside a sequence; special tokens in it are spelt out. Not to be changed.

        ``is_behind_added``: an added token stands before it; some tokenizers mark the start of such a stretch.
        """
        return self._encode_short(text, True, is_behind_added and self._marks_behind_added)

    def encode_markup(self, text: str) -> list[int]:
        """Ids of ``text`` inside a sequence; the names of special tokens become those tokens. Not to be changed."""
        return self._encode_short(text, False, False)

    def encode_opening(self, text: str, *, is_text: bool = False) -> list[int]:
        """Ids of ``text`` at the start of a sequence, behind what the tokenizer puts there. A new list.

        ``is_text``: special tokens in it are spelt out.
        """
        return self.leading_ids + self._encode(text, is_text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``, special tokens included by name."""
        if self._markup is not None:
            return str(self._markup.decode(ids if isinstance(ids, list) else list(ids), skip_special_tokens=False))
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def split_at_added_tokens(self, text: str) -> list[str]:
        """``text`` cut into added tokens, which no merge crosses, and what stands between; joined again it is ``text``."""
        if self._added is None:
            return [text] if text else []
        pieces, position = [], 0
        for match in self._added.finditer(text):
            pieces += [text[position : match.start()], match.group()]
            position = match.end()
        return [piece for piece in [*pieces, text[position:]] if piece]

    def is_added_token(self, piece: str) -> bool:
        return self._added is not None and self._added.fullmatch(piece) is not None

    def control_ids_in(self, ids: Sequence[int]) -> list[int]:
        """Those of ``ids`` that are special tokens, in order."""
        return [token_id for token_id in ids if token_id in self._control_ids]

    def _encode_short(self, text: str, is_text: bool, is_opening: bool) -> list[int]:
        if not text:
            return []
        encode = self._cached if len(text) <= CACHED_CHARACTERS else self._encode_fragment
        return encode(text, is_text, is_opening)

    def _encode_fragment(self, text: str, is_text: bool, is_opening: bool) -> list[int]:
        if self._anchor and not is_opening:
            # A tokenizer that marks the start of a text would put a space where a fragment begins.
            ids = self._encode(self._anchor + text, is_text)
            if ids[: len(self._anchor_ids)] == self._anchor_ids:
                return ids[len(self._anchor_ids) :]
        return self._encode(text, is_text)

    def _encode(self, text: str, is_text: bool) -> list[int]:
        # A lone surrogate is no character; the tokenizer would refuse the whole text.
        text = text.encode("utf-8", "replace").decode("utf-8")
        core = self._text if is_text else self._markup
        if core is not None:
            return list(core.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        return list(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=is_text))

    def _is_marked(self, token_id: int) -> bool:
        """The token spells the letter a with something before it."""
        return str(self.tokenizer.convert_ids_to_tokens(token_id)) != "a"

    def _find_leading_ids(self) -> list[int]:
        """Ids the tokenizer puts before any text: a begin token, or nothing."""
        full, bare = list(self.tokenizer("a")["input_ids"]), self._encode("a", False)
        starts = range(len(full) - len(bare) + 1)
        return next((full[:start] for start in starts if full[start : start + len(bare)] == bare), [])


@dataclass(frozen=True, slots=True)
class StandIns:
    """Private characters in place of those that begin the names of special tokens, while a template renders a text.

    Attributes:
        originals: By stand-in, the character it stands for.
    """

    originals: Mapping[str, str]

    @classmethod
    def for_texts(cls, codec: TextCodec, texts: Iterable[str]) -> StandIns:
        """Stand-ins that occur in none of ``texts``."""
        used = set("".join(texts))
        unused = (chr(code) for code in PRIVATE_PLANE if chr(code) not in used)
        return cls(dict(zip(unused, sorted(codec.control_openers), strict=False)))

    def hide(self, text: str) -> str:
        """``text`` without any character that begins the name of a special token."""
        return text.translate({ord(original): stand_in for stand_in, original in self.originals.items()})

    def hide_names(self, codec: TextCodec, text: str) -> str:
        """``text`` with the names of special tokens hidden, and nothing else."""
        return text if codec.control_names is None else codec.control_names.sub(lambda name: self.hide(name[0]), text)

    def encode(self, codec: TextCodec, rendered: str) -> list[int]:
        """Ids of a rendered conversation; a stretch with stand-ins is encoded as text, with their originals."""
        originals = str.maketrans(dict(self.originals))
        ids: list[int] = []
        for is_text, pieces in groupby(codec.split_at_added_tokens(rendered), self._is_in):
            stretch = "".join(pieces).translate(originals)
            if not ids:
                ids = codec.encode_opening(stretch, is_text=is_text)[len(codec.leading_ids) :]
            elif is_text:
                ids += codec.encode_text(stretch, is_behind_added=True)
            else:
                ids += codec.encode_markup(stretch)
        return ids

    def _is_in(self, text: str) -> bool:
        return any(stand_in in text for stand_in in self.originals)


def _any_of(words: Sequence[str]) -> re.Pattern[str] | None:
    """Finds the earliest of ``words``, of those that begin there the first named; None without words."""
    return re.compile("|".join(map(re.escape, words))) if words else None


def end_token_ids(tokenizer: Any, model_path: str | Path | None = None) -> tuple[int, ...]:
    """Every id that ends a reply: the tokenizer's end token and those of the model's generation settings.

    Several models name two or three; stopping at one of them alone makes finished replies look cut.
    """
    found: list[int] = []
    _collect(found, tokenizer.eos_token_id)
    if model_path is not None:
        from transformers import AutoConfig, GenerationConfig

        try:
            _collect(found, GenerationConfig.from_pretrained(str(model_path)).eos_token_id)
        except OSError:
            _collect(found, AutoConfig.from_pretrained(str(model_path)).get_text_config().eos_token_id)
    return tuple(found)


def _collect(found: list[int], ids: int | Iterable[int] | None) -> None:
    if ids is None:
        return
    for token_id in [ids] if isinstance(ids, int) else ids:
        if token_id not in found:
            found.append(int(token_id))
