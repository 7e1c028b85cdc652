"""How the messages of an episode become ids: the first prompt, and the bridge from a reply to the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from winnowrl.agents.text_codec import StandIns, TextCodec

Message = dict[str, str]
# No template looks for it.
PLAIN_WORD = "winnowword"


class Template(Protocol):
    """Shared by every conversation of a run; holds no state of an episode.

    Attributes:
        codec: Encodes and decodes.
        end_token_ids: Ids that end a reply.
    """

    codec: TextCodec
    end_token_ids: tuple[int, ...]

    def is_append_only(self, system_prompt: str | None) -> bool:
        """True when the bridge provably is what the template puts between replies; else every turn forks."""
        ...

    def first_prompt(self, system_prompt: str | None, observation: str) -> list[int]:
        """Ids of everything before the first reply. A new list."""
        ...

    def bridge(self, system_prompt: str | None, observation: str, last_id: int) -> list[int]:
        """Ids from behind the reply, whose last sampled id is ``last_id``, to where the next one starts. A new list."""
        ...

    def render(self, system_prompt: str | None, messages: Sequence[Message]) -> list[int]:
        """Ids of a whole conversation up to where the next reply starts, rendered afresh (for a fork)."""
        ...


class PlainTemplate:
    """Text as it is, for base models: system prompt, blank line, observation; later observations verbatim."""

    def __init__(self, codec: TextCodec, end_token_ids: Sequence[int]) -> None:
        self.codec = codec
        self.end_token_ids = tuple(end_token_ids)

    def is_append_only(self, system_prompt: str | None) -> bool:
        return True

    def first_prompt(self, system_prompt: str | None, observation: str) -> list[int]:
        text = f"{system_prompt}\n\n{observation}" if system_prompt else observation
        return self.codec.encode_opening(text)

    def bridge(self, system_prompt: str | None, observation: str, last_id: int) -> list[int]:
        return list(self.codec.encode_markup(observation))

    def render(self, system_prompt: str | None, messages: Sequence[Message]) -> list[int]:
        prompt = self.first_prompt(system_prompt, messages[0]["content"])
        return prompt + [token for message in messages[1:] for token in self.codec.encode_markup(message["content"])]


@dataclass(frozen=True, slots=True)
class Slot:
    """Fixed ids around one text. ``left`` and ``right`` share with the text a stretch without added tokens.

    They are encoded with it, so that the ids are those of the whole rendered string.
    """

    head: tuple[int, ...]
    left: str
    right: str
    tail: tuple[int, ...]
    strips: tuple[bool, bool]
    is_behind_added: bool

    @classmethod
    def around(
        cls, codec: TextCodec, before: str, after: str, strips: tuple[bool, bool], *, is_behind_added: bool = False
    ) -> Slot:
        """Slot between the markup ``before`` and ``after``; ``is_behind_added``: an added token precedes it all."""
        head, tail = codec.split_at_added_tokens(before), codec.split_at_added_tokens(after)
        left = head.pop() if head and not codec.is_added_token(head[-1]) else ""
        right = tail.pop(0) if tail and not codec.is_added_token(tail[0]) else ""
        head_ids = tuple(codec.encode_markup("".join(head)))
        tail_ids = tuple(codec.encode_markup("".join(tail)))
        return cls(head_ids, left, right, tail_ids, strips, is_behind_added or bool(head))

    def fill(self, codec: TextCodec, text: str) -> list[int]:
        """Ids with ``text`` in the slot, stripped as the template strips it."""
        if self.strips[0]:
            text = text.lstrip()
        if self.strips[1]:
            text = text.rstrip()
        middle = codec.encode_text(f"{self.left}{text}{self.right}", is_behind_added=self.is_behind_added)
        return [*self.head, *middle, *self.tail]


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """What a chat template does, for one system prompt.

    Attributes:
        first: Around the first observation; None: messages must be rendered whole.
        after_end: The bridge behind a reply that ended itself, by the id of its end token.
        after_cut: The bridge behind one that was cut; it begins with the end token the reply lacks, if the template
            closes replies with one. None: the template is not append-only.
    """

    first: Slot | None
    after_end: Mapping[int, Slot]
    after_cut: Slot | None


class ChatTemplate:
    """A chat template, compiled once per system prompt into fixed ids around the new text.

    Args:
        codec: Encodes and decodes.
        end_token_ids: Ids that end a reply.
        renderer: Writes a list of messages as text.
    """

    def __init__(self, codec: TextCodec, end_token_ids: Sequence[int], renderer: Renderer) -> None:
        self.codec = codec
        self.end_token_ids = tuple(end_token_ids)
        self._renderer = renderer
        self._has_system_role = has_system_role(renderer)
        self._compiled: dict[str | None, CompiledTemplate] = {}

    def is_append_only(self, system_prompt: str | None) -> bool:
        return self._compile(system_prompt).after_cut is not None

    def first_prompt(self, system_prompt: str | None, observation: str) -> list[int]:
        first = self._compile(system_prompt).first
        if first is None:
            return self.render(system_prompt, [{"role": "user", "content": observation}])
        return first.fill(self.codec, observation)

    def bridge(self, system_prompt: str | None, observation: str, last_id: int) -> list[int]:
        compiled = self._compile(system_prompt)
        slot = compiled.after_end.get(last_id, compiled.after_cut)
        assert slot is not None, "a template that is not append-only has no bridge"
        return slot.fill(self.codec, observation)

    def render(self, system_prompt: str | None, messages: Sequence[Message]) -> list[int]:
        """Ids of a whole conversation up to where the next reply starts, rendered afresh.

        No observation and no earlier reply becomes a control token: special tokens they name are spelt out, as in a
        bridge. The prompt is accepted when its control tokens are those the template writes around plain words. Where
        they are not (the template joins or leaves out what it is given), the messages are rendered again without any
        letter that begins a special token's name, so that none can arise. The system prompt is the operator's own.
        """
        contents = [message["content"] for message in messages]
        expected = self._encode_around(StandIns({}), system_prompt, messages, [PLAIN_WORD] * len(messages))
        letters = StandIns.for_texts(self.codec, [system_prompt or "", *contents])
        names_hidden = [letters.hide_names(self.codec, text) for text in contents]
        ids = self._encode_around(letters, system_prompt, messages, names_hidden)
        if self.codec.control_ids_in(ids) == self.codec.control_ids_in(expected):
            return ids
        return self._encode_around(letters, system_prompt, messages, [letters.hide(text) for text in contents])

    def _encode_around(
        self, letters: StandIns, system_prompt: str | None, messages: Sequence[Message], contents: Sequence[str]
    ) -> list[int]:
        replaced = [{**message, "content": text} for message, text in zip(messages, contents, strict=True)]
        text = self._renderer(with_system(self._has_system_role, system_prompt, replaced))
        return letters.encode(self.codec, text)

    def _compile(self, system_prompt: str | None) -> CompiledTemplate:
        compiled = self._compiled.get(system_prompt)
        if compiled is None:
            from winnowrl.agents.template_probe import compile_template

            compiled = compile_template(
                self.codec, self.end_token_ids, self._renderer, system_prompt, has_role=self._has_system_role
            )
            self._compiled[system_prompt] = compiled
        return compiled


class Renderer(Protocol):
    """Writes messages as text, ending where the assistant's next reply starts."""

    def __call__(self, messages: Sequence[Message], *, opens_reply: bool = True) -> str:
        """Raises ``ValueError`` when the template refuses these messages; without ``opens_reply`` it ends behind them."""
        ...


def render_chatml(messages: Sequence[Message], *, opens_reply: bool = True) -> str:
    """ChatML: each message between ``<|im_start|>`` and ``<|im_end|>``, a newline behind it."""
    body = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)
    return f"{body}<|im_start|>assistant\n" if opens_reply else body


class TokenizerRenderer:
    """The chat template a tokenizer carries, with extra variables for it."""

    def __init__(self, tokenizer: Any, arguments: Mapping[str, Any] | None = None) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError(
                "conversation.template is 'tokenizer', but this model's tokenizer carries no chat template; "
                "allowed without one: plain, chatml"
            )
        self._tokenizer = tokenizer
        self._arguments = dict(arguments or {})

    def __call__(self, messages: Sequence[Message], *, opens_reply: bool = True) -> str:
        from jinja2 import TemplateError

        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=opens_reply, **self._arguments
            )
        except TemplateError as error:
            raise ValueError(f"the chat template refuses these messages: {error}") from error
        return str(text)


def has_system_role(renderer: Renderer) -> bool:
    """Whether the template shows a system message; some refuse it, some drop it silently."""
    word = "winnowsystem"
    try:
        return word in renderer([{"role": "system", "content": word}, {"role": "user", "content": "winnowuser"}])
    except ValueError:
        return False


def with_system(has_role: bool, system_prompt: str | None, messages: Sequence[Message]) -> list[Message]:
    """Put the system prompt before ``messages``; where the template has no system role, into the first message."""
    if not system_prompt:
        return list(messages)
    if has_role:
        return [{"role": "system", "content": system_prompt}, *messages]
    return [{**messages[0], "content": f"{system_prompt}\n\n{messages[0]['content']}"}, *messages[1:]]
