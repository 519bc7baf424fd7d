"""A `KernelSpecManager` that lists the slices that this person may take now, beside the ordinary kernels.

The server extension puts it around the server's own manager, whatever its class.  ``GPUKernelSpecManager`` in a server's configuration
holds its settings.

Guarantees
----------
* A listing waits at most 30 ms for the pool; one that is away or slow leaves the set that was known, each with a note.
* A kernelspec that somebody installed under an offer's name stays what it is: only the words behind its name are the pool's.
* Names are those of the static set (``gpu-v100-0.02``), so a notebook runs under nbclient and papermill, too.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel
from traitlets import Dict, Float, Instance, List, Type, Unicode
from traitlets import default as default_of

from gpukernel.common.account import own_name
from gpukernel.jupyter import logo
from gpukernel.jupyter.kernelspecs import SliceSpec, figure
from gpukernel.jupyter.lease_manager import lease_manager
from gpukernel.jupyter.offers import STANDARD_SHARES, Offer, OfferBook, name_of

__all__ = ["GPUKernelSpecManager"]

ASK_SECONDS = 20.0
NBSP = "\N{NO-BREAK SPACE}"
PROVISIONER = "gpu-slice"
_NAME = re.compile(
    r"gpu-(?P<model>.+?)-(?P<share>0\.\d+|1\.0)(?:-(?P<priority>batch|scavenger))?(?:-(?P<base>.+))?"
)


def _is_slice(spec: KernelSpec) -> bool:
    provisioner = spec.metadata.get("kernel_provisioner") or {}
    return bool(provisioner.get("provisioner_name") == PROVISIONER)


class GPUKernelSpecManager(KernelSpecManager):
    """The ordinary kernels, and one for each offer of the pool on each base kernel."""

    pool = Unicode(
        "", help="Address of the pool; empty: GPUKERNEL_POOL, else the socket in the state directory."
    ).tag(config=True)
    shares = List(
        Float(), list(STANDARD_SHARES), help="The sizes to list, as parts of a device's memory."
    ).tag(config=True)
    course = Unicode(
        os.environ.get("GPUKERNEL_COURSE", ""),
        help="The course that slices are for, whose offers are listed; a JupyterHub sets it.",
    ).tag(config=True)
    bases = List(
        Unicode(),
        ["python3"],
        help="Names of the kernelspecs to offer on slices: any language's, or a conda environment's. The first gives the plain names.",
    ).tag(config=True)
    slice_config = Dict(
        help="More settings of the kernels' provisioner, for example {'acquire': 'on_first_use'}."
    ).tag(config=True)
    ordinary_class = Type(
        KernelSpecManager,
        klass=KernelSpecManager,
        help="What lists the ordinary kernels where this class is the server's kernel_spec_manager_class itself.",
    ).tag(config=True)

    ordinary = Instance(KernelSpecManager)
    book = Instance(OfferBook)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._note = ""
        self._custom: dict[str, Offer] = {}
        self._logos: tempfile.TemporaryDirectory[str] | None = None
        self.book.refresh()

    @default_of("ordinary")
    def _ordinary_default(self) -> KernelSpecManager:
        return self.ordinary_class(parent=self.parent)

    @default_of("book")
    def _book_default(self) -> OfferBook:
        return OfferBook(self._ask, self.shares)

    def _ask(self) -> tuple[Offer, ...]:
        from gpukernel.client.pool import resolve_address

        async def ask() -> tuple[Offer, ...]:
            address = resolve_address(self.pool or None)
            return await asyncio.wait_for(
                lease_manager().offers(address, self.course, self.shares), ASK_SECONDS
            )

        return asyncio.run(ask())

    def find_kernel_specs(self) -> dict[str, str]:
        """Return every kernel's name and its directory; the offers' directories hold their logos only."""
        found: dict[str, str] = dict(self.ordinary.find_kernel_specs())
        for name, (offer, _) in self._offered(found).items():
            found.setdefault(name, self._logo_directory(offer.share))
        return found

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return the kernelspec; a slice of any size exists, ``gpu-v100-0.07`` for example, whether or not it is listed."""
        found = self.ordinary.find_kernel_specs()
        offered = self._offered(found).get(kernel_name)
        if kernel_name in found or (spec_of := self._any_size(kernel_name)) is None:
            return self._installed(kernel_name, offered)
        offer, base = offered or spec_of
        return self._on_slice(offer, base, self.ordinary.get_kernel_spec(base))

    def get_all_specs(self) -> dict[str, Any]:
        """Return all kernelspecs in the order of menus, with one look at the pool for all of them."""
        listed: dict[str, Any] = {}
        order: dict[str, tuple[int, str, float]] = {}
        found = self.ordinary.find_kernel_specs()
        offered = self._offered(found)
        bases: dict[str, KernelSpec] = {}
        for name in {**found, **offered}:
            try:
                if name in found:
                    spec = self._installed(name, offered.get(name))
                    # A course's people see what the course offers, whatever sizes are installed for others.
                    if self.course and offered and name not in offered and _is_slice(spec):
                        continue
                else:
                    offer, base = offered[name]
                    if base not in bases:
                        bases[base] = self.ordinary.get_kernel_spec(base)
                    spec = self._on_slice(offer, base, bases[base])
                order[name] = self._place(spec, offered[name][1] if name in offered else "")
            except NoSuchKernel:
                continue
            except Exception:
                self.log.warning("Error loading kernelspec %r", name, exc_info=True)
                continue
            listed[name] = {"resource_dir": spec.resource_dir, "spec": spec.to_dict()}
        return {name: listed[name] for name in sorted(listed, key=order.__getitem__)}

    def _place(self, spec: KernelSpec, base: str) -> tuple[int, str, float]:
        """Return where a kernel stands in lists: ordinary ones first, as they were found, then slices by base, model and size."""
        if not _is_slice(spec):
            return -1, "", 0.0
        config = spec.metadata["kernel_provisioner"].get("config") or {}
        number = self.bases.index(base) if base in self.bases else 0
        return number, str(config.get("model", "")), float(config.get("share") or 0)

    def remove_kernel_spec(self, name: str) -> str:
        """Remove an installed kernelspec."""
        return str(self.ordinary.remove_kernel_spec(name))

    def add_size(self, share: float, model: str) -> str:
        """List a size of one's own from now on; return its kernel's name.

        Raises
        ------
        InvalidSpec
            The share cannot be.
        """
        spec = SliceSpec(round(share, 4), model)
        self._custom[spec.name] = Offer(spec.share, spec.model)
        return spec.name

    # --- how it is made ---

    def _offered(self, found: dict[str, str]) -> dict[str, tuple[Offer, str]]:
        """Return, by kernel name, the offer and its base; the offers' notes are in `_note`."""
        offers = self.book.read()
        self._note = offers.note
        listed = {name_of(one.share, one.model, one.priority): one for one in offers.offers}
        custom = {name: one for name, one in self._custom.items() if name not in listed}
        result: dict[str, tuple[Offer, str]] = {}
        for number, base in enumerate(self.bases):
            if base not in found:
                continue
            for name, offer in {**listed, **custom}.items():
                result[name if number == 0 else f"{name}-{base}"] = (offer, base)
        return result

    def _any_size(self, name: str) -> tuple[Offer, str] | None:
        parts = _NAME.fullmatch(name)
        if parts is None or not 0.001 <= (share := float(parts["share"])) <= 1:
            return None
        base = parts["base"] or (self.bases[0] if self.bases else "python3")
        slugs = {name_of(share, one.model): one.model for one in self.book.read().offers}
        plain = f"gpu-{parts['model']}-{figure(share)}"
        model = slugs.get(plain) or parts["model"].replace("-", " ").upper()
        start = next((one.start for one in self.book.read().offers), "")
        priority = parts["priority"] or ""
        return Offer(share, "" if model == "ANY" else model, start=start, priority=priority), base

    def _words(self, offer: Offer) -> str:
        words = self._note or offer.words()
        # With non-breaking spaces, launchers break the line at the commas.
        return f"{NBSP}— " + ", ".join(part.replace(" ", NBSP) for part in words.split(", ")) if words else ""

    def _installed(self, name: str, offered: tuple[Offer, str] | None) -> KernelSpec:
        spec = self.ordinary.get_kernel_spec(name)
        if _is_slice(spec):
            if offered is not None:
                spec.display_name += self._words(offered[0])
            elif self._note:
                spec.display_name += self._words(Offer(1.0, ""))
        return spec

    def _on_slice(self, offer: Offer, base: str, of_base: KernelSpec) -> KernelSpec:
        spec = SliceSpec(offer.share, offer.model, priority=offer.priority)
        config = {**self.slice_config, "share": offer.share, "model": offer.model}
        if offer.priority:
            config["priority"] = offer.priority
        if self.pool:
            config.setdefault("pool", self.pool)
        if self.course:
            config.setdefault("course", self.course)
        if offer.start:
            config.setdefault("acquire", offer.start)
        language = f" ({of_base.display_name})" if base != self.bases[0] else ""
        return self.kernel_spec_class(
            resource_dir=self._logo_directory(offer.share),
            argv=list(of_base.argv),
            env=dict(of_base.env),
            language=of_base.language,
            interrupt_mode=of_base.interrupt_mode,
            display_name=f"{spec.display_name}{language}{self._words(offer)}",
            metadata={
                **of_base.metadata,
                "kernel_provisioner": {"provisioner_name": PROVISIONER, "config": config},
            },
        )

    def _logo_directory(self, share: float) -> str:
        if self._logos is None:
            self._logos = tempfile.TemporaryDirectory(prefix=f"gpukernel-logos-{own_name()}-")
        directory = Path(self._logos.name, figure(share))
        if not directory.is_dir():
            directory.mkdir()
            (directory / "logo-svg.svg").write_text(logo.svg(share), encoding="utf-8")
            for side in (32, 64):
                (directory / f"logo-{side}x{side}.png").write_bytes(logo.png(share, side))
        return os.fspath(directory)
