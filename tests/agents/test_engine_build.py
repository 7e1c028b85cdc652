"""From configuration to engines."""

from __future__ import annotations

import asyncio

import pytest

from winnowrl.agents.conversation import build_conversations
from winnowrl.agents.engines.build import ENGINES, base_sampling, build_engine
from winnowrl.agents.engines.scripted import ScriptedEngine
from winnowrl.configs.sections.engine import (
    DTYPES,
    ENGINE_TYPES,
    TEMPLATES,
    ConversationConfig,
    EngineConfig,
    SamplingConfig,
)


@pytest.fixture(scope="module")
def conversations(tiny_model_path):
    from transformers import AutoTokenizer

    config = ConversationConfig(template="chatml", turn_tokens=7, rollout_tokens=20, context_tokens=200)
    return build_conversations(config, AutoTokenizer.from_pretrained(str(tiny_model_path)), tiny_model_path)


def test_every_type_has_a_builder_and_fields_that_exist():
    assert set(ENGINES) == set(ENGINE_TYPES) - {"auto"}
    assert set(EngineConfig.TYPES) == set(ENGINE_TYPES)
    for names in EngineConfig.TYPES.values():
        assert set(names) <= set(EngineConfig.__dataclass_fields__)


def test_scripted_engine_is_imported_by_name(conversations, tmp_path, monkeypatch):
    (tmp_path / "shouting_script.py").write_text("def shout(prompt_ids, seed):\n    return 'GO'\n")
    monkeypatch.syspath_prepend(tmp_path)
    engine = build_engine(EngineConfig(type="scripted", script="shouting_script:shout"), "nowhere", conversations)
    assert isinstance(engine, ScriptedEngine)
    completion = asyncio.run(engine.generate([1], base_sampling(SamplingConfig(), conversations), 0))
    assert conversations.template.codec.decode(list(completion.token_ids)) == "GO<|im_end|>"
    with pytest.raises(ValueError, match=r"engine\.script is 'shouting_script:absent', which cannot be imported"):
        build_engine(EngineConfig(type="scripted", script="shouting_script:absent"), "nowhere", conversations)


def test_transformers_engine_is_built_with_the_conversations_context(conversations, tiny_model_path):
    engine = build_engine(EngineConfig(type="transformers", dtype="float32"), tiny_model_path, conversations)

    async def run():
        reply = await engine.generate([5] * 198, base_sampling(SamplingConfig(), conversations), 0)
        await engine.close()
        return reply

    reply = asyncio.run(run())
    assert 1 <= len(reply.token_ids) <= 2


def test_openai_is_refused_for_training_and_built_for_evaluation(conversations):
    config = EngineConfig(type="openai")
    with pytest.raises(ValueError, match="for evaluation only"):
        build_engine(config, "nowhere", conversations)
    asyncio.run(build_engine(config, "nowhere", conversations, for_training=False).close())


def test_missing_model_is_one_sentence(conversations):
    with pytest.raises(ValueError, match="no model at '/absent/model'"):
        build_engine(EngineConfig(type="transformers"), "/absent/model", conversations)


def test_context_beyond_the_model_is_named(tiny_model_path):
    from transformers import AutoTokenizer

    config = ConversationConfig(template="plain", context_tokens=4096)
    long = build_conversations(config, AutoTokenizer.from_pretrained(str(tiny_model_path)), tiny_model_path)
    with pytest.raises(ValueError, match=r"context_tokens is 4096; this model was made for at most 1024 tokens"):
        build_engine(EngineConfig(type="vllm"), tiny_model_path, long)


def test_rotary_factors_that_change_with_the_length_are_refused(tmp_path):
    from transformers import AutoConfig

    from winnowrl.agents.engines.build import require_context_fits

    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    AutoConfig.for_model(
        "phi3",
        hidden_size=32,
        num_attention_heads=4,
        max_position_embeddings=128,
        original_max_position_embeddings=32,
        rope_parameters=rope | {"original_max_position_embeddings": 32, "partial_rotary_factor": 1.0},
    ).save_pretrained(tmp_path)
    require_context_fits(tmp_path, 32)
    with pytest.raises(ValueError, match=r"context_tokens is 33; beyond 32 tokens .*longrope.*lower it to 32"):
        require_context_fits(tmp_path, 33)


def test_base_sampling_stops_at_every_end_token(conversations):
    sampling = base_sampling(SamplingConfig(temperature=0.7, stop=["\n"]), conversations)
    assert (sampling.max_tokens, sampling.temperature, sampling.stop) == (7, 0.7, ("\n",))
    assert sampling.stop_token_ids == conversations.end_token_ids == (2,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EngineConfig(type="sglang"), r"engine\.type is 'sglang'; allowed: auto, vllm, transformers"),
        (lambda: EngineConfig(dtype="int8"), r"engine\.dtype is 'int8'"),
        (lambda: EngineConfig(max_concurrent_requests=0), r"engine\.max_concurrent_requests is 0"),
        (lambda: EngineConfig(block_tokens=20), r"engine\.block_tokens is 20; allowed: 0 or a multiple of 16"),
        (lambda: EngineConfig(gpu_memory_fraction=1.5), r"engine\.gpu_memory_fraction is 1\.5"),
        (lambda: EngineConfig(timeout_s=0), r"engine\.timeout_s is 0"),
        (lambda: EngineConfig(type="scripted"), r"engine\.script is ''; allowed: module:function"),
        (lambda: SamplingConfig(temperature=-1), r"sampling\.temperature is -1"),
        (lambda: SamplingConfig(top_p=0), r"sampling\.top_p is 0"),
        (lambda: SamplingConfig(stop=[""]), r"sampling\.stop is \[''\]"),
        (lambda: ConversationConfig(template="llama"), r"conversation\.template is 'llama'; allowed: plain, chatml"),
        (lambda: ConversationConfig(turn_tokens=0), r"conversation\.turn_tokens is 0"),
        (lambda: ConversationConfig(turn_tokens=9, context_tokens=9), "the prompt needs room too"),
        (lambda: ConversationConfig(template="plain", template_arguments={"a": 1}), "conversation.template_arguments"),
    ],
)
def test_wrong_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("changed", [{"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 5}])
def test_sampling_the_learner_cannot_recompute_is_refused_for_training(changed):
    SamplingConfig(temperature=0.7).require_trainable()
    with pytest.raises(ValueError, match=f"sampling.{next(iter(changed))}"):
        SamplingConfig(**changed).require_trainable()


def test_named_choices_are_valid():
    for dtype in DTYPES:
        EngineConfig(dtype=dtype)
    for template in TEMPLATES:
        ConversationConfig(template=template)
