"""The configuration of a run: one dataclass of sections, each with its own checks, and the checks between sections."""

from __future__ import annotations

from dataclasses import dataclass, field

from winnowrl.configs.sections.allocator import AllocatorConfig
from winnowrl.configs.sections.collector import CollectorConfig
from winnowrl.configs.sections.engine import ConversationConfig, EngineConfig, SamplingConfig
from winnowrl.configs.sections.environment import EnvironmentConfig
from winnowrl.configs.sections.gate import GateConfig
from winnowrl.configs.sections.learner import LearnerConfig
from winnowrl.configs.sections.model import ModelConfig
from winnowrl.configs.sections.objective import ObjectiveConfig
from winnowrl.configs.sections.run import CheckpointConfig, DiagnosticsConfig, EvaluationConfig, RunSection
from winnowrl.configs.sections.selector import SelectorConfig


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run."""

    run: RunSection = field(default_factory=RunSection)
    model: ModelConfig = field(default_factory=ModelConfig)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    conversation: ConversationConfig = field(default_factory=ConversationConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    allocator: AllocatorConfig = field(default_factory=AllocatorConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    selector: SelectorConfig = field(default_factory=SelectorConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    diagnostics: DiagnosticsConfig = field(default_factory=DiagnosticsConfig)
