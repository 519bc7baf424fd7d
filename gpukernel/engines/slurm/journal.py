"""The sentences of a supply, in its log and in the state that ``gpukernel slurm status`` shows."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from gpukernel.engines.slurm.autoscaler import Settings
from gpukernel.engines.slurm.records import Records

__all__ = ["Journal"]

log = logging.getLogger(__name__)

SENTENCES = 50


class Journal:
    """The journal of the supply on `records`."""

    def __init__(self, records: Records, settings: Settings, clock: Callable[[], float]) -> None:
        self._records, self._clock = records, clock
        self._settings = {
            one.name: getattr(settings, one.name) for one in fields(settings) if one.name != "schedule"
        }
        self._settings["schedule"] = settings.schedule.text
        self._troubles: dict[str, str] = {}
        self._said: deque[tuple[float, str]] = deque(maxlen=SENTENCES)

    def say(self, sentence: str) -> None:
        """Write a sentence down."""
        log.info("%s", sentence)
        self._said.append((self._clock(), sentence))

    def say_once(self, sentence: str) -> None:
        """Write a sentence down that is not among the last ones."""
        if all(sentence != before for _, before in self._said):
            self.say(sentence)

    def trouble(self, who: str, sentence: str) -> None:
        """Write down that somebody does not answer, once while the sentence stays the same."""
        if self._troubles.get(who) != sentence:
            self._troubles[who] = sentence
            log.warning("%s", sentence)
            self._said.append((self._clock(), sentence))
        self.publish(self._records.state() or {})

    def answers(self, *who: str) -> None:
        """Write down that those answer who did not."""
        for one in who:
            if self._troubles.pop(one, ""):
                self.say(f"{one} answers again.")

    def publish(self, state: dict[str, Any]) -> None:
        """Write the state for whoever asks: `state`, with the time, the settings, the troubles and the last sentences."""
        self._records.publish(
            {
                **state,
                "trouble": " ".join(self._troubles.values()),
                "at": self._clock(),
                "settings": self._settings,
                "log": [{"at": at, "sentence": sentence} for at, sentence in self._said],
            }
        )
