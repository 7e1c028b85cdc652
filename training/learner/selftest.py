"""One real update of a tiny random model, for ``winnowrl doctor``."""

from __future__ import annotations

import math


def one_step_on_a_tiny_model() -> str:
    """Run one DeepSpeed step on a two-layer model; returns what happened in a few words.

    Raises:
        RuntimeError: the step did not change the weights, or its loss is not a number.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from winnowrl.configs.sections.learner import LearnerConfig
    from winnowrl.training.batch import TrainingSequence
    from winnowrl.training.learner.build import assemble_learner
    from winnowrl.training.losses import ObjectiveSpec

    shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, **shape)).float()
    before = model.model.layers[0].self_attn.q_proj.weight.detach().clone()
    learner = assemble_learner(model, LearnerConfig(learning_rate=1e-3), ObjectiveSpec())
    batch = [
        TrainingSequence([1, 2, 3, 4 + i], [False, False, True, True], [0.0, 0.0, -1.0, -1.0], 1.0 - 2 * i, 0, i)
        for i in range(2)
    ]
    try:
        result = learner.update(batch)
        change = float((dict(learner.named_weights())["model.layers.0.self_attn.q_proj.weight"] - before).abs().max())
    finally:
        learner.close()
    if not (change > 0 and math.isfinite(result.metrics["loss/total"])):
        raise RuntimeError(f"the step changed no weight, or its loss is {result.metrics['loss/total']}")
    return f"one step on {torch.get_num_threads()} threads, loss {result.metrics['loss/total']:.3f}"
