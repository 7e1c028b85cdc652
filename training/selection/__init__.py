"""Which rollouts an update trains on: all, a random part, the bandits' choice; replay around any of them."""

from winnowrl.training.candidates import Candidate, RoundStats, make_candidates, set_entropies
from winnowrl.training.selection.bandit import BanditOptions, CbsSelector, CbsStarSelector
from winnowrl.training.selection.base import AllSelector, RandomSelector, Selector
from winnowrl.training.selection.build import SELECTORS, build_selector
from winnowrl.training.selection.refill import Refill, groups_to_train, is_informative, needs_refill
from winnowrl.training.selection.replaying import ReplaySelector

__all__ = [
    "SELECTORS",
    "AllSelector",
    "BanditOptions",
    "Candidate",
    "CbsSelector",
    "CbsStarSelector",
    "RandomSelector",
    "Refill",
    "ReplaySelector",
    "RoundStats",
    "Selector",
    "build_selector",
    "groups_to_train",
    "is_informative",
    "make_candidates",
    "needs_refill",
    "set_entropies",
]
