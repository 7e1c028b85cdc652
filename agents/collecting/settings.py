"""What all episodes of a collection share."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from winnowrl.agents.engines.base import Completion, Engine, Sampling

if TYPE_CHECKING:
    from winnowrl.agents.collecting.environments import EnvironmentPool
    from winnowrl.agents.conversation import Conversation


class EpisodeSettings:
    """Engine, environments, how conversations begin, how replies are sampled.

    Args:
        engine: Writes the replies.
        environments: Lends the instances.
        new_conversation: Called once per episode.
        sampling: Of every reply; ``max_tokens`` is lowered where a budget leaves less. The environment's stop strings
            are added.
        max_concurrent: Episodes in flight together; 0 sets no limit.
    """

    def __init__(
        self,
        engine: Engine,
        environments: EnvironmentPool,
        new_conversation: Callable[[], Conversation],
        sampling: Sampling,
        max_concurrent: int = 0,
    ) -> None:
        self.environments, self.new_conversation = environments, new_conversation
        self._generate = engine.generate
        self._tells_admission = "on_admitted" in inspect.signature(engine.generate).parameters
        stop = tuple(dict.fromkeys((*sampling.stop, *environments.stop)))
        self._sampling = replace(sampling, stop=stop)
        self._by_budget: dict[int, Sampling] = {}
        self.slots = asyncio.Semaphore(max_concurrent) if max_concurrent else None

    def generate(
        self, prompt_ids: Sequence[int], budget: int, seed: int, on_admitted: Callable[[], None]
    ) -> Awaitable[Completion]:
        """Ask for a reply of at most ``budget`` tokens.

        An engine that does not tell when it admits a request is taken to admit it at once.
        """
        sampling = self.sampling_for(budget)
        if self._tells_admission:
            return self._generate(prompt_ids, sampling, seed, on_admitted=on_admitted)
        on_admitted()
        return self._generate(prompt_ids, sampling, seed)

    def sampling_for(self, budget: int) -> Sampling:
        """Sampling of a reply that may have ``budget`` tokens."""
        found = self._by_budget.get(budget)
        if found is None:
            found = replace(self._sampling, max_tokens=min(budget, self._sampling.max_tokens))
            self._by_budget[budget] = found
        return found
