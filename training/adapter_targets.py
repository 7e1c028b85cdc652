"""Whether ``learner.lora.target_modules`` names layers of the model, found without loading its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from winnowrl.configs.load import ConfigError

if TYPE_CHECKING:
    from winnowrl.configs.sections.learner import LoraConfig


def check_adapter_targets(lora: LoraConfig, model_path: str) -> None:
    """Refuse target modules that are none of the linear layers of the model in the folder ``model_path``.

    Raises:
        ConfigError: naming the first unknown one and those there are.
    """
    if lora.rank == 0 or not lora.target_modules:
        return
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from winnowrl.training.learner.lora import linear_names

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_path))
    except (OSError, ValueError, KeyError):
        # Loading it will say what is wrong with the model.
        return
    known = linear_names(model)
    unknown = [name for name in lora.target_modules if name not in known]
    if unknown:
        raise ConfigError(f"learner.lora.target_modules names {unknown[0]!r}; allowed: {', '.join(sorted(known))}")
