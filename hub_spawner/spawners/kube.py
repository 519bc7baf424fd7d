"""Kubernetes: courses are entries of KubeSpawner's `profile_list`, environments their sub-options."""

from __future__ import annotations

import asyncio
from typing import Any

from jupyterhub.utils import maybe_future
from kubespawner import KubeSpawner
from markupsafe import escape
from traitlets import Dict, default

from gpukernel.common.errors import PoolError
from hub_spawner.choices import Card, Chosen, words
from hub_spawner.spawner import GPUSpawnerMixin

__all__ = ["GPUKubeSpawner"]

_SLUG = "gpu-"
_OPTION = "environment"

CLAIM = "gpukernel"
"""The claim's name in a server's pod."""


class GPUKubeSpawner(GPUSpawnerMixin, KubeSpawner):  # type: ignore[misc]
    """A pod for each server, with courses in its profile list.

    An administrator's own `profile_list` comes first and goes on working; a server of one of its entries starts without GPUs.  An
    environment's changes are a ``kubespawner_override``.
    """

    claim_templates = Dict(
        per_key_traits={},
        help="""ResourceClaimTemplates by course: a server's pod gets a claim of its course's as its ceiling, and its kernels lease
        inside of that. The entry \"\" is for courses that are not named; a course without an entry leases from the pool.

        The templates are in the servers' namespace, and their claims have the annotation ``gpukernel.io/kernels: lease-inside``.""",
    ).tag(config=True)

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

    def _claim_template(self) -> str:
        """Return the template of the claim of the course that was chosen; empty where its kernels lease from the pool."""
        if not self._course:
            return ""
        return str(self.claim_templates.get(self._course, self.claim_templates.get("", "")))

    def leases_inside_claim(self) -> bool:
        """Return whether the pod has a claim as its ceiling."""
        return bool(self._claim_template())

    async def get_pod_manifest(self) -> Any:
        """Return KubeSpawner's pod, with the claim of its course."""
        pod = await super().get_pod_manifest()
        if template := self._claim_template():
            claims = [one for one in pod.spec.resource_claims or [] if _name_of(one) != CLAIM]
            pod.spec.resource_claims = [*claims, {"name": CLAIM, "resourceClaimTemplateName": template}]
            (notebook, *_) = pod.spec.containers
            own = [one for one in notebook.resources.claims or [] if _name_of(one) != CLAIM]
            notebook.resources.claims = [*own, {"name": CLAIM}]
        return pod

    def start(self) -> Any:
        """Start as the mixin does; KubeSpawner's progress follows the future of a start."""
        self._start_future = asyncio.ensure_future(super().start())
        return self._start_future


def _name_of(claim: Any) -> Any:
    """Return the name of a pod's claim, an object of the client's or a dict of the configuration."""
    return claim.get("name") if isinstance(claim, dict) else getattr(claim, "name", None)
