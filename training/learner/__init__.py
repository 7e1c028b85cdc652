"""The learner: DeepSpeed around a policy that reads prefix trees."""

from winnowrl.training.learner.build import assemble_learner, build_learner
from winnowrl.training.learner.learner import DeepSpeedLearner

__all__ = ["DeepSpeedLearner", "assemble_learner", "build_learner"]
