"""Kubernetes: courses are entries of KubeSpawner's `profile_list`, environments their sub-options."""

from __future__ import annotations

import asyncio
from typing import Any

from jupyterhub.utils import maybe_future
from kubespawner import KubeSpawner
from markupsafe import escape
from traitlets import default

from gpukernel.common.errors import PoolError
from hub_spawner.choices import Card, Chosen, words
from hub_spawner.spawner import GPUSpawnerMixin

__all__ = ["GPUKubeSpawner"]

_SLUG = "gpu-"
_OPTION = "environment"


class GPUKubeSpawner(GPUSpawnerMixin, KubeSpawner):  # type: ignore[misc]
    """A pod for each server, with courses in its profile list.

    An administrator's own `profile_list` comes first and goes on working; a server of one of its entries starts without GPUs.  An
    environment's changes are a ``kubespawner_override``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._own_profiles: Any = self.traits()["profile_list"].get(self)
        self.profile_list = self._profiles

    @default("options_form")
    def _the_choice_page(self) -> Any:
        return self._render_options_form_dynamically

    @default("options_from_form")
    def _the_choice_read(self) -> Any:
        return self._options_from_form

    async def _profiles(self, _: Any) -> list[dict[str, Any]]:
        own = self._own_profiles
        if callable(own):
            own = await maybe_future(own(self))
        listed = list(self._sorted_dict_values(own) or [])
        try:
            cards = await self._cards()
        except PoolError as error:
            # The other profiles go on working without a pool.
            self.log.warning("%s: courses are not listed: %s", self._log_name, error)
            cards = []
        return listed + [self._profile(card) for card in cards]

    def _profile(self, card: Card) -> dict[str, Any]:
        offers = ", ".join(f"{offer} ({words(chance)})" for offer, chance in card.usable) or card.trouble
        # KubeSpawner's form does not escape what it is given.
        entry: dict[str, Any] = {
            "display_name": str(escape(card.title)),
            "slug": f"{_SLUG}{card.course.name}",
            "description": str(escape(offers)),
        }
        if card.environments:
            entry["profile_options"] = {
                _OPTION: {
                    "display_name": "Environment",
                    "choices": {
                        name: {
                            "display_name": str(escape(name)),
                            "kubespawner_override": {
                                trait: value
                                for trait, value in self.environments[name].items()
                                if trait != "prefix"
                            },
                        }
                        for name in card.environments
                    },
                }
            }
        return entry

    def _asked(self) -> Chosen:
        options = self.user_options or {}
        profile = options.get("profile")
        if not isinstance(profile, str) or not profile.startswith(_SLUG):
            return Chosen(course=str(options.get("course") or ""))
        return Chosen(profile.removeprefix(_SLUG), str(options.get(_OPTION) or ""))

    def _may_go_without(self) -> bool:
        profile = (self.user_options or {}).get("profile")
        ours = isinstance(profile, str) and profile.startswith(_SLUG)
        return super()._may_go_without() or (bool(self._own_profiles) and not ours)

    def _options_kept(self, chosen: Chosen) -> dict[str, Any]:
        if not chosen.course:
            return dict(self.user_options or {})  # KubeSpawner checks them against the administrator's list
        profile = f"{_SLUG}{chosen.course}"
        kept = {"profile": profile}
        if chosen.environment:
            kept[_OPTION] = chosen.environment
        return kept

    def _use_environment(self, name: str) -> None:
        """Leave the environment to KubeSpawner, which takes it from the profile."""

    def start(self) -> Any:
        """Start as the mixin does; KubeSpawner's progress follows the future of a start."""
        self._start_future = asyncio.ensure_future(super().start())
        return self._start_future
