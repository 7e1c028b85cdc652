"""Tokens in, tokens out: an episode's sequence grows by what the model wrote and by bridges, and is never rewritten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from winnowrl.agents.rollout import TokenSequence, Turn
from winnowrl.agents.template_probe import closing_token_id
from winnowrl.agents.templates import (
    ChatTemplate,
    Message,
    PlainTemplate,
    Renderer,
    Template,
    TokenizerRenderer,
    render_chatml,
)
from winnowrl.agents.text_codec import TextCodec, end_token_ids

if TYPE_CHECKING:
    from pathlib import Path

    from winnowrl.agents.engines.base import Completion
    from winnowrl.configs.sections.engine import ConversationConfig

# Most sequences of one rollout: the learner numbers them in the low bits of a 64-bit id.
MAX_SEQUENCES = 4096


@dataclass(frozen=True, slots=True)
class TokenBudgets:
    """Three separate limits, all in tokens.

    Attributes:
        turn: Sampled in one reply.
        rollout: Sampled in one episode over all replies; observations do not count.
        context: Length of one sequence, prompt and observations included.
    """

    turn: int
    rollout: int
    context: int


class Conversation:
    """One episode between a policy and its environment.

    Call :meth:`start`, then in turn: read :attr:`prompt_ids`, :meth:`add_reply`, :meth:`add_observation`; stop when
    :meth:`reply_budget` is 0. :attr:`sequences` are the rollout's; all but the last are closed by a fork.

    Args:
        template: Shared between conversations.
        budgets: Limits of this episode.
        system_prompt: Overrides the environment's; an empty string sends none.
    """

    __slots__ = (
        "_budgets",
        "_can_append",
        "_is_full",
        "_messages",
        "_num_sampled",
        "_sequence",
        "_system_prompt",
        "_template",
        "sequences",
    )

    def __init__(self, template: Template, budgets: TokenBudgets, system_prompt: str | None = None) -> None:
        self._template = template
        self._budgets = budgets
        self._system_prompt = system_prompt
        self._num_sampled = 0
        self._is_full = False
        self._can_append = True
        self._messages: list[Message] = []
        self._sequence = TokenSequence()
        self.sequences = [self._sequence]

    @property
    def prompt_ids(self) -> list[int]:
        """What the engine continues: the live sequence itself, not a copy."""
        return self._sequence.token_ids

    @property
    def num_forks(self) -> int:
        return len(self.sequences) - 1

    @property
    def can_continue(self) -> bool:
        return self.reply_budget() > 0

    def start(self, system_prompt: str | None, observation: str) -> None:
        """Open the episode with the environment's system prompt and first observation."""
        if self._system_prompt is None:
            self._system_prompt = system_prompt
        template = self._template
        self._can_append = template.is_append_only(self._system_prompt)
        if not self._can_append:
            self._messages = [{"role": "user", "content": observation}]
        self._append_context(template.first_prompt(self._system_prompt, observation))

    def reply_budget(self) -> int:
        """Most tokens the next reply may have; 0 when some budget is used up."""
        if self._is_full:
            return 0
        budgets = self._budgets
        left = min(budgets.turn, budgets.rollout - self._num_sampled, budgets.context - len(self._sequence.token_ids))
        return max(left, 0)

    def add_reply(self, completion: Completion) -> Turn:
        """Append a sampled reply verbatim and return its turn, its action being its text."""
        sequence, ids = self._sequence, completion.token_ids
        start = len(sequence.token_ids)
        sequence.token_ids.extend(ids)
        sequence.completion_mask.extend([True] * len(ids))
        sequence.sampler_logprobs.extend(completion.logprobs)
        assert len(sequence.sampler_logprobs) == len(sequence.token_ids), "a log-probability for every token"
        self._num_sampled += len(ids)
        text = self._text_of(list(ids))
        if not self._can_append:
            self._messages.append({"role": "assistant", "content": text})
        return Turn(
            start=start,
            end=start + len(ids),
            text=text,
            action=text,
            finish_reason=completion.finish_reason,
            sequence=len(self.sequences) - 1,
        )

    def add_observation(self, observation: str) -> None:
        """Append the environment's answer up to where the next reply starts.

        One that exactly fills the context is kept, and the episode is full; one that does not fit is left out, and the
        episode is full. A template that is not append-only goes on in a new sequence; behind ``MAX_SEQUENCES`` of them
        the episode is full as well.
        """
        if self._can_append:
            bridge = self._template.bridge(self._system_prompt, observation, self._sequence.token_ids[-1])
            self._append_context(bridge)
            return
        if len(self.sequences) >= MAX_SEQUENCES:
            self._is_full = True
            return
        self._messages.append({"role": "user", "content": observation})
        prompt = self._template.render(self._system_prompt, self._messages)
        if len(prompt) > self._budgets.context:
            self._is_full = True
            return
        self._sequence = TokenSequence()
        self.sequences.append(self._sequence)
        self._append_context(prompt)

    def token_at(self, turn: Turn, text_end: int) -> int:
        """Index, in the turn's sequence, behind the token that holds character ``text_end - 1`` of ``turn.text``.

        ``text_end`` at or beyond the end of the text gives ``turn.end``, the end token included.
        """
        if text_end >= len(turn.text):
            return turn.end
        ids = self.sequences[turn.sequence].token_ids[turn.start : turn.end]
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if len(self._template.codec.decode(ids[:middle])) < text_end:
                low = middle + 1
            else:
                high = middle
        return turn.start + low

    def _append_context(self, ids: list[int]) -> None:
        sequence = self._sequence
        if len(sequence.token_ids) + len(ids) > self._budgets.context:
            self._is_full = True
            return
        sequence.token_ids.extend(ids)
        sequence.completion_mask.extend([False] * len(ids))
        sequence.sampler_logprobs.extend([0.0] * len(ids))

    def _text_of(self, ids: list[int]) -> str:
        if ids and ids[-1] in self._template.end_token_ids:
            ids.pop()
        return self._template.codec.decode(ids)


class ConversationFactory:
    """Makes the conversations of a run; call it once an episode.

    Attributes:
        end_token_ids: Ids every engine request must stop at.
    """

    def __init__(self, template: Template, budgets: TokenBudgets, system_prompt: str | None = None) -> None:
        self.template = template
        self.budgets = budgets
        self.system_prompt = system_prompt
        self.end_token_ids = template.end_token_ids

    def __call__(self) -> Conversation:
        return Conversation(self.template, self.budgets, self.system_prompt)


def build_conversations(
    config: ConversationConfig, tokenizer: Any, model_path: str | Path | None = None
) -> ConversationFactory:
    """The run's conversations.

    Args:
        config: Template, system prompt and budgets.
        tokenizer: The model's.
        model_path: Where its generation settings may name more end tokens.

    Raises:
        ValueError: the tokenizer cannot serve the template.
    """
    budgets = TokenBudgets(config.turn_tokens, config.rollout_tokens, config.context_tokens)
    template = build_template(config.template, tokenizer, model_path, dict(config.template_arguments))
    return ConversationFactory(template, budgets, config.system_prompt)


def build_template(
    name: str,
    tokenizer: Any,
    model_path: str | Path | None = None,
    arguments: dict[str, Any] | None = None,
) -> Template:
    """``plain``, ``chatml`` or ``tokenizer``; ``arguments`` are extra variables of the tokenizer's own template."""
    codec, ends = TextCodec(tokenizer), end_token_ids(tokenizer, model_path)
    if name == "plain":
        return PlainTemplate(codec, ends)
    if name not in ("chatml", "tokenizer"):
        raise ValueError(f"conversation.template is {name!r}; allowed: plain, chatml, tokenizer")
    if name == "chatml":
        _require_chatml_tokens(codec)
    renderer: Renderer = render_chatml if name == "chatml" else TokenizerRenderer(tokenizer, arguments)
    closing = closing_token_id(codec, renderer)
    if closing is not None and closing not in ends:
        ends = (*ends, closing)
    return ChatTemplate(codec, ends, renderer)


def _require_chatml_tokens(codec: TextCodec) -> None:
    for token in ("<|im_start|>", "<|im_end|>"):
        if not codec.is_added_token(token):
            raise ValueError(
                f"conversation.template is 'chatml', but this model's tokenizer has no token {token}; "
                "allowed: plain, or tokenizer for the template it carries"
            )
