"""Fragments are encoded as they stand inside a sequence, whatever the tokenizer does at the start of a text."""

from __future__ import annotations

import pytest

from winnowrl.agents.conversation import Conversation, TokenBudgets, build_template
from winnowrl.agents.engines.base import Completion
from winnowrl.agents.text_codec import TextCodec, end_token_ids


@pytest.fixture(scope="module")
def byte_level(tiny_model_path):
    from transformers import AutoTokenizer

    return TextCodec(AutoTokenizer.from_pretrained(str(tiny_model_path)))


@pytest.fixture(scope="module", params=["first", "always"])
def sentence_piece(request):
    """A tokenizer that marks the start of a text, or of every stretch between added tokens, with a space."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=request.param)
    core.decoder = decoders.Metaspace(prepend_scheme=request.param)
    trainer = trainers.BpeTrainer(
        vocab_size=80,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=[*"abcdefghijklmnopqrstuvwxyz\n.:[]▁"],
        show_progress=False,
    )
    core.train_from_iterator(["go to the drawer.\nopen the drawer.\n"] * 8, trainer)
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = (
        "<s>{% for m in messages %}{% if m['role'] == 'user' %}{{ '[inst] ' + m['content'] + ' [end]' }}"
        "{% else %}{{ ' ' + m['content'] + '</s>' }}{% endif %}{% endfor %}"
    )
    return tokenizer


@pytest.mark.parametrize(
    "text", ["", "a", " a", "a ", "\n\n", "héllo  日本 🙂", "go to drawer 1\n", "<|im_end|>", "x" * 9000]
)
def test_text_comes_back_unchanged(byte_level, text):
    assert byte_level.decode(byte_level.encode_text(text)) == text
    assert byte_level.decode(byte_level.encode_markup(text)) == text


def test_only_markup_makes_control_tokens(byte_level):
    text = "a<|im_end|>b"
    assert 2 not in byte_level.encode_text(text)
    assert byte_level.encode_markup(text).count(2) == 1
    # The tokenizer it was made from is left as it was.
    assert 2 in byte_level.tokenizer.encode(text)


def test_a_fragment_gets_no_space_of_its_own(sentence_piece):
    codec = TextCodec(sentence_piece)
    first, second = codec.encode_text("open"), codec.encode_text("er")
    assert codec.decode(codec.encode_text("go\n") + second) == "go\ner"
    assert not any(token.startswith("▁") for token in sentence_piece.convert_ids_to_tokens(first + second))


def test_begin_token_is_found(sentence_piece, byte_level):
    assert TextCodec(sentence_piece).leading_ids == [1]
    assert byte_level.leading_ids == []


def test_pieces_join_to_the_text(byte_level):
    text = "<|im_start|>user\nhi<|im_end|><|im_end|>\n"
    pieces = byte_level.split_at_added_tokens(text)
    assert pieces == ["<|im_start|>", "user\nhi", "<|im_end|>", "<|im_end|>", "\n"]
    assert [byte_level.is_added_token(piece) for piece in pieces] == [True, False, True, True, False]


def test_end_tokens_of_a_tokenizer_alone(byte_level):
    assert end_token_ids(byte_level.tokenizer) == (2,)


def test_repeated_texts_are_encoded_once(byte_level):
    assert byte_level.encode_text("Nothing happens.") is byte_level.encode_text("Nothing happens.")


def test_first_prompt_is_the_tokenizers_own(sentence_piece):
    template = build_template("plain", sentence_piece)
    assert template.first_prompt(None, "go to the drawer.") == sentence_piece("go to the drawer.").input_ids


def test_a_whole_conversation_is_tokenised_as_the_template_is(sentence_piece):
    template = build_template("tokenizer", sentence_piece)
    conversation = Conversation(template, TokenBudgets(100, 1000, 1000))
    conversation.start(None, "open")
    rendered = "<s>[inst] open [end]"
    assert conversation.prompt_ids == sentence_piece.encode(rendered, add_special_tokens=False)
    # Behind the opened prompt a model of this family starts its reply with a space and closes it with </s>.
    rendered += " go</s>[inst] the drawer [end]"
    natural = sentence_piece.encode(rendered, add_special_tokens=False)
    start = len(conversation.prompt_ids)
    reply = natural[start : natural.index(2, start) + 1]
    conversation.add_reply(Completion(reply, [-1.0] * len(reply), "stop", 0))
    conversation.add_observation("the drawer")
    assert conversation.prompt_ids == natural
