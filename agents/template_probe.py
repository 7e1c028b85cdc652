"""Finds out what a chat template does by rendering dummy conversations, and proves what may be appended."""

from __future__ import annotations

from collections.abc import Sequence

from winnowrl.agents.templates import CompiledTemplate, Message, Renderer, Slot, with_system
from winnowrl.agents.text_codec import TextCodec

# Plain words no template looks for.
USER = ("winnowuserzero", "winnowuserone", "winnowusertwo")
ASSISTANT = ("winnowreplyzero", "winnowreplyone")
MARGIN = "\n "


def compile_template(
    codec: TextCodec, end_token_ids: Sequence[int], renderer: Renderer, system_prompt: str | None, *, has_role: bool
) -> CompiledTemplate:
    """Compile a template for one system prompt; ``has_role``: it has a system role.

    ``first`` is None where the template changes a message in a way that is not stripping its margins; it is then
    rendered whole. The bridges are None unless both hold on dummy conversations of one, two and three turns:

    1. No text up to the end of an earlier user message changes when the conversation goes on.
    2. What stands between a reply, the next user message and the next reply is the same at every turn.
    """
    first_text, second_text, third_text = (
        renderer(with_system(has_role, system_prompt, _dummy(num_turns))) for num_turns in (1, 2, 3)
    )
    strips = _margins(renderer)
    first = _cut(first_text, USER[0])
    if first is None or strips is None:
        return CompiledTemplate(None, {}, None)
    # Behind a system prompt folded into the first message, the left margin is inside that message.
    is_folded = bool(system_prompt) and not has_role
    first_slot = Slot.around(codec, *first, (strips[0] and not is_folded, strips[1]))
    between = _bridge_texts(first_text, second_text, third_text)
    if between is None:
        return CompiledTemplate(first_slot, {}, None)
    before, after = between
    after_cut = Slot.around(codec, before, after, strips)
    closing = _closing_pieces(codec, renderer, before)
    after_end = {
        end: Slot.around(codec, _behind_end_token(codec, end, closing, before), after, strips, is_behind_added=True)
        for end in end_token_ids
    }
    return CompiledTemplate(first_slot, after_end, after_cut)


def _dummy(num_turns: int) -> list[Message]:
    messages: list[Message] = []
    for turn in range(num_turns):
        messages.append({"role": "user", "content": USER[turn]})
        if turn < num_turns - 1:
            messages.append({"role": "assistant", "content": ASSISTANT[turn]})
    return messages


def _cut(text: str, word: str) -> tuple[str, str] | None:
    """Text before and behind ``word``, or None unless it stands there exactly once."""
    parts = text.split(word)
    return (parts[0], parts[1]) if len(parts) == 2 else None


def _bridge_texts(first: str, second: str, third: str) -> tuple[str, str] | None:
    """Text between a reply and the next user message, and between that and the next reply; None if not provable."""
    if not _same_history(first, second, USER[0]) or not _same_history(second, third, USER[1]):
        return None
    bridges = []
    for text, reply, user in ((second, ASSISTANT[0], USER[1]), (third, ASSISTANT[1], USER[2])):
        behind_reply = _cut(text, reply)
        around_user = _cut(behind_reply[1], user) if behind_reply else None
        if around_user is None:
            return None
        bridges.append(around_user)
    return bridges[0] if bridges[0] == bridges[1] else None


def _same_history(shorter: str, longer: str, last_user: str) -> bool:
    short, long = _cut(shorter, last_user), _cut(longer, last_user)
    return short is not None and long is not None and short[0] == long[0]


def _margins(renderer: Renderer) -> tuple[bool, bool] | None:
    """Whether the template strips the left and right margin of a user message; None if it does something else."""
    bare = renderer([{"role": "user", "content": USER[0]}])
    wide = renderer([{"role": "user", "content": f"{MARGIN}{USER[0]}{MARGIN}"}])
    for left in (False, True):
        for right in (False, True):
            text = f"{'' if left else MARGIN}{USER[0]}{'' if right else MARGIN}"
            if bare.replace(USER[0], text) == wide:
                return (left, right)
    return None


def closing_token_id(codec: TextCodec, renderer: Renderer) -> int | None:
    """Id of the added token with which the template closes a reply, None when it closes it with text.

    It is the first added token behind the reply, unless that one opens the next message.
    """
    behind = _cut(renderer(_dummy(2)), ASSISTANT[0])
    between = _cut(behind[1], USER[1]) if behind else None
    closing = _closing_pieces(codec, renderer, between[0]) if between else []
    return codec.encode_markup(closing[-1])[0] if closing else None


def _closing_pieces(codec: TextCodec, renderer: Renderer, before: str) -> list[str]:
    """The beginning of ``before``, up to and including the added token that closes a reply; empty without one.

    The token closes if the template also writes it behind a reply that nothing follows; else it opens the next message.
    """
    try:
        last = _cut(renderer(_dummy(2)[:2], opens_reply=False), ASSISTANT[0])
    except ValueError:
        return []
    pieces = codec.split_at_added_tokens(before)
    first = next((index for index, piece in enumerate(pieces) if codec.is_added_token(piece)), None)
    if last is None or first is None:
        return []
    is_shared = codec.split_at_added_tokens(last[1])[: first + 1] == pieces[: first + 1]
    return pieces[: first + 1] if is_shared else []


def _behind_end_token(codec: TextCodec, end_token_id: int, closing: Sequence[str], before: str) -> str:
    """The part of ``before`` that follows a reply which wrote ``end_token_id``.

    Where the token stands in ``before``, the part behind it. Elsewhere it took the place of the token that closes a
    reply, if there is one. Otherwise all of ``before``: a reply that ended on the opening of another role's turn (a call
    to a tool) keeps that token, and the whole header of the user follows it, who is the one that answers here.
    """
    pieces = codec.split_at_added_tokens(before)
    for index, piece in enumerate(pieces):
        if codec.is_added_token(piece) and codec.encode_markup(piece)[0] == end_token_id:
            return "".join(pieces[index + 1 :])
    return "".join(pieces[len(closing) :])
