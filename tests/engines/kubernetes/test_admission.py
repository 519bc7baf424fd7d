"""Admission: each expression of the policies is evaluated as it stands, on claims and pods, and each manifest is checked by its schema.

What an evaluation here cannot check: the API server's types (it warns of unknown fields there), its estimate of an expression's cost, and
how it merges what the mutating policy returns; `merged` does that by names, as the lists of pods say.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import celpy
import kubernetes_validate
import pytest
import yaml

from gpukernel.engines.kubernetes.classes import ClassLimits, class_manifests
from gpukernel.engines.kubernetes.names import DRIVER
from gpukernel.engines.kubernetes.quantities import bytes_of

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes"
MANIFESTS = ("admission", "injection", "rbac", "driver", "example", "ceilings")
VERSIONS = ("1.34", "1.35", "1.36", "1.37")
LIMITS = ClassLimits(count=2, memory="4Gi", total="6Gi")
V100 = class_manifests([("v100", "Tesla V100-SXM2-16GB")], LIMITS)[1]
Evaluate = Callable[[str], Any]


def objects(name: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()) if one]


def policy(name: str) -> dict[str, Any]:
    found = [one for file in ("admission", "injection") for one in objects(file)]
    (one,) = (one for one in found if one["kind"].endswith("Policy") and one["metadata"]["name"] == name)
    return dict(one["spec"])


FUNCTIONS: dict[str, Any] = {
    "quantity": lambda text: celpy.celtypes.IntType(bytes_of(str(text))),
    "asInteger": lambda size: size,
    "compareTo": lambda one, other: celpy.celtypes.IntType((one > other) - (one < other)),
    "sum": lambda numbers: celpy.celtypes.IntType(sum(numbers)),
    "max": lambda numbers: celpy.celtypes.IntType(max(numbers)),
    # The authorizer's words are collected in a list.
    "group": lambda asked, word: celpy.celtypes.ListType([*asked, word]),
    "resource": lambda asked, word: celpy.celtypes.ListType([*asked, word]),
    "namespace": lambda asked, word: celpy.celtypes.ListType([*asked, word]),
    "name": lambda asked, word: celpy.celtypes.ListType([*asked, word]),
    "check": lambda asked, word: celpy.celtypes.ListType([*asked, word]),
    "allowed": lambda asked: celpy.celtypes.BoolType(
        "|".join(map(str, asked[1:])) in str(asked[0]).split("\n")
    ),
}
ENVIRONMENT = celpy.Environment()


def evaluator(spec: dict[str, Any], **given: Any) -> Evaluate:
    """Return a function that evaluates expressions of a policy, with its variables, in their order."""
    activation = {name: celpy.json_to_cel(value) for name, value in given.items()}
    activation["variables"] = celpy.celtypes.MapType({})

    def evaluate(expression: str) -> Any:
        program = ENVIRONMENT.program(ENVIRONMENT.compile(expression), functions=FUNCTIONS)
        return program.evaluate(activation)

    for one in spec.get("variables", []):
        activation["variables"][celpy.celtypes.StringType(one["name"])] = evaluate(one["expression"])
    return evaluate


def refusal(name: str, one: dict[str, Any], **given: Any) -> str:
    """Return the sentence with which a policy refuses an object; empty where it does not."""
    spec = policy(name)
    given = {"oldObject": None, "params": V100, **given, "object": one}
    bare = evaluator({}, **given)
    if not all(bare(condition["expression"]) for condition in spec.get("matchConditions", [])):
        return ""
    evaluate = evaluator(spec, **given)
    for rule in spec["validations"]:
        if not evaluate(rule["expression"]):
            return str(evaluate(rule["messageExpression"]))
    return ""


def request(
    memory: str = "", count: int = 1, device_class: str = "v100.gpukernel.io", **more: Any
) -> dict[str, Any]:
    capacity = {"capacity": {"requests": {"memory": memory}}} if memory else {}
    return {
        "deviceClassName": device_class,
        "count": count,
        "allocationMode": "ExactCount",
        **capacity,
        **more,
    }


def claim(*requests: dict[str, Any], template: bool = False) -> dict[str, Any]:
    spec = {"devices": {"requests": [{"name": f"r{n}", "exactly": one} for n, one in enumerate(requests)]}}
    kind = "ResourceClaimTemplate" if template else "ResourceClaim"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "one", "namespace": "ml101"},
        "spec": {"spec": spec} if template else spec,
    }


@pytest.mark.parametrize("template", [False, True])
def test_a_claim_within_its_class_is_let_through(template: bool) -> None:
    assert refusal("claims.gpukernel.io", claim(request("655Mi"), template=template)) == ""
    assert refusal("claims.gpukernel.io", claim(request("3Gi", 2), template=template)) == ""
    assert refusal("claims.gpukernel.io", claim(request(), request("4Gi"), template=template)) == ""
    assert (
        refusal("claims.gpukernel.io", claim(request("9Gi", 9, "other.example.com"), template=template)) == ""
    )
    empty = claim(template=template)
    (empty["spec"]["spec"] if template else empty["spec"]).clear()
    assert refusal("claims.gpukernel.io", empty) == ""


@pytest.mark.parametrize("template", [False, True])
@pytest.mark.parametrize(
    ("requests", "sentence"),
    [
        (
            [request("8Gi")],
            "A slice of v100.gpukernel.io has at most 4Gi of memory, and this claim asks for more in one of its requests.",
        ),
        ([request("1Gi", 3)], "3 slices of v100.gpukernel.io are asked for; one claim has at most 2."),
        (
            [request("1Gi", 1), request("1Gi", 2)],
            "3 slices of v100.gpukernel.io are asked for; one claim has at most 2.",
        ),
        (
            [request("4Gi", 2)],
            "The slices of v100.gpukernel.io have 8192 MiB together; one claim has at most 6Gi. "
            "Ask for fewer slices or for less memory each.",
        ),
        (
            [request(allocationMode="All")],
            "allocationMode “All” is not possible for v100.gpukernel.io; write “count:” with the number of slices.",
        ),
    ],
)
def test_a_claim_beyond_its_class_is_refused_with_a_sentence(
    requests: list[dict[str, Any]], sentence: str, template: bool
) -> None:
    assert refusal("claims.gpukernel.io", claim(*requests, template=template)) == sentence


def alternatives(*found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a claim with a request for each list, which asks for one of its alternatives."""
    made = claim()
    made["spec"]["devices"]["requests"] = [
        {"name": f"r{n}", "firstAvailable": [{"name": f"a{m}", **one} for m, one in enumerate(each)]}
        for n, each in enumerate(found)
    ]
    return made


@pytest.mark.parametrize(
    ("beyond", "sentence"),
    [
        (request("5Gi"), "has at most 4Gi of memory"),
        (request("1Gi", 3), "3 slices of v100.gpukernel.io are asked for; one claim has at most 2."),
        (request("4Gi", 2), "have 8192 MiB together; one claim has at most 6Gi."),
        (request(allocationMode="All"), "“All” is not possible"),
    ],
)
def test_an_alternative_is_no_way_around_the_bounds(beyond: dict[str, Any], sentence: str) -> None:
    assert refusal("claims.gpukernel.io", alternatives([request("4Gi"), request("3Gi", 2)])) == ""
    assert refusal("claims.gpukernel.io", alternatives([request(device_class="other"), request("4Gi")])) == ""
    assert sentence in refusal("claims.gpukernel.io", alternatives([request("1Gi"), beyond]))


def test_several_requests_with_alternatives_count_together() -> None:
    one = [request("1Gi"), request("3Gi")]
    assert refusal("claims.gpukernel.io", alternatives(one, one)) == ""
    assert "3 slices of v100" in refusal("claims.gpukernel.io", alternatives(one, one, one))
    large = [request("1Gi"), request("4Gi")]
    assert "have 8192 MiB together" in refusal("claims.gpukernel.io", alternatives(large, large))
    mixed = alternatives(one, one)
    mixed["spec"]["devices"]["requests"].append({"name": "more", "exactly": request("1Gi")})
    assert "3 slices of v100" in refusal("claims.gpukernel.io", mixed)


def pod(*limits: dict[str, str], **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one"},
        "spec": {
            "containers": [
                {"name": f"c{n}", "image": "python:3.12", **({"resources": {"limits": one}} if one else {})}
                for n, one in enumerate(limits)
            ],
            **more,
        },
    }


def test_a_pod_has_as_many_slices_by_name_as_its_class_says() -> None:
    slices, class_s = "gpukernel.io/v100-slice", "deviceclass.resource.kubernetes.io/v100.gpukernel.io"
    assert refusal("pods.gpukernel.io", pod({slices: "2"}, {}, {"cpu": "8"})) == ""
    assert refusal("pods.gpukernel.io", pod({slices: "1", class_s: "1"})) == ""
    assert refusal("pods.gpukernel.io", pod({"cpu": "500m"})) == ""
    assert (
        refusal("pods.gpukernel.io", pod({"gpukernel.io/a100-slice": "9"})) == ""
    )  # another class says that
    first = [{"name": "i", "image": "i", "resources": {"limits": {slices: "1"}}}]
    for beyond in (
        pod({slices: "3"}),
        pod({slices: "2"}, {slices: "1"}),
        pod({slices: "2"}, initContainers=first),
        pod({class_s: "3"}),  # the class by its own name, whatever name it gives its devices
        pod({slices: "2"}, {class_s: "1"}),
        pod({class_s: "2"}, initContainers=first),
    ):
        said = refusal("pods.gpukernel.io", beyond)
        assert said == "3 slices of v100.gpukernel.io are asked for; one pod has at most 2."


def test_only_who_may_speak_for_a_person_names_one() -> None:
    named = claim(request())
    named["metadata"]["annotations"] = {"gpukernel.io/person": "anna"}
    hub = "system:serviceaccount:hub:hub"

    def said(user: str, one: dict[str, Any], before: dict[str, Any] | None = None, allowed: str = "") -> str:
        who = {"userInfo": {"username": user}, "namespace": "ml101"}
        return refusal("persons.gpukernel.io", one, request=who, oldObject=before, authorizer=[allowed])

    assert said("bob", claim(request())) == ""
    assert said("bob", named) == (
        "bob may not ask for slices of anna: that takes the verb “use” on gpukernel.io/persons in this namespace."
    )
    assert said(hub, named, allowed="gpukernel.io|persons|ml101|anna|use") == ""
    assert said(hub, named, allowed="gpukernel.io|persons|ml102|anna|use") != ""
    assert said("bob", named, before=named) == ""  # it stands there already
    assert said("bob", named, before=claim(request())) != ""
    template = claim(request(), template=True)
    assert said("bob", template) == ""
    template["spec"]["metadata"] = {"annotations": {"gpukernel.io/person": "anna"}}
    assert "may not ask" in said("bob", template)
    assert "may not ask" in said("bob", template, before=template)  # a template makes new claims each time


_TYPES = re.compile(r"Object[A-Za-z.]*\{")
_FIELDS = re.compile(r"(?<=[{,\s])(\w+):")


def injected(one: dict[str, Any]) -> dict[str, Any]:
    """Return a pod as the mutating policy leaves it."""
    spec = policy("inject.gpukernel.io")
    bare = evaluator({}, object=one)
    if not all(bare(condition["expression"]) for condition in spec["matchConditions"]):
        return one
    evaluate = evaluator(spec, object=one)
    (mutation,) = spec["mutations"]
    expression = mutation["applyConfiguration"]["expression"]
    as_maps = _FIELDS.sub(r'"\1":', _TYPES.sub("{", expression))  # cel-python has no types of Kubernetes
    return merged(one, evaluate(as_maps))


def merged(one: Any, patch: Any) -> Any:
    """Merge as server-side apply does in a pod: maps by keys, lists of named things by names."""
    if isinstance(patch, dict):
        found = dict(one or {})
        for name, value in patch.items():
            found[str(name)] = merged(found.get(str(name)), value)
        return found
    if isinstance(patch, list):
        found = {entry["name"]: entry for entry in one or []}
        for entry in patch:
            found[str(entry["name"])] = merged(found.get(str(entry["name"])), entry)
        return list(found.values())
    return str(patch)


def test_an_annotation_gives_all_containers_of_a_pod_a_slice() -> None:
    plain = pod({"cpu": "1"}, {})
    assert injected(plain) == plain
    asks = copy.deepcopy(plain)
    asks["metadata"]["annotations"] = {"gpukernel.io/inject": "true"}
    done = injected(asks)
    assert done["spec"]["resourceClaims"] == [{"name": "gpukernel", "resourceClaimTemplateName": "gpukernel"}]
    assert [one["resources"] for one in done["spec"]["containers"]] == [
        {"limits": {"cpu": "1"}, "claims": [{"name": "gpukernel"}]},
        {"claims": [{"name": "gpukernel"}]},
    ]
    assert [one["image"] for one in done["spec"]["containers"]] == ["python:3.12"] * 2
    kubernetes_validate.validate(done, "1.36", strict=True)
    assert injected(done) == done  # once is enough
    asks["metadata"]["annotations"]["gpukernel.io/template"] = "large"
    assert injected(asks)["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == "large"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", MANIFESTS)
def test_every_manifest_is_what_its_schema_says(name: str, version: str) -> None:
    for one in objects(name):
        if name == "injection" and version < "1.36":  # as its head says
            assert one["apiVersion"].endswith("/v1")
            one["apiVersion"] += "beta1"
        kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_classes_are_what_their_schema_says(version: str) -> None:
    for one in class_manifests([("v100", "Tesla V100-SXM2-16GB"), ("a100-80gb", "NVIDIA A100")], LIMITS):
        kubernetes_validate.validate(one, version, strict=True)
    names = [
        one["spec"].get("extendedResourceName") for one in class_manifests([("v100", "Tesla V100")], LIMITS)
    ]
    assert names == [None, "gpukernel.io/v100-slice"]


def test_a_class_has_all_models_of_its_name_and_no_other() -> None:
    tesla = "Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"
    odd = 'NVIDIA A100 \U0001f600"] || true || "" in ["'  # whoever names devices writes no expressions
    made = class_manifests([*(("V100", one) for one in tesla), ("A100", odd)], LIMITS)
    assert [one["metadata"]["name"] for one in made] == [DRIVER, "a100.gpukernel.io", "v100.gpukernel.io"]

    def classes(model: str) -> list[str]:
        evaluate = evaluator({}, device={"driver": DRIVER, "attributes": {DRIVER: {"model": model}}})
        return [
            one["metadata"]["name"].partition(".")[0]
            for one in made[1:]
            if all(bool(evaluate(selector["cel"]["expression"])) for selector in one["spec"]["selectors"])
        ]

    assert [classes(model) for model in (*tesla, odd, "Tesla T4")] == [["v100"], ["v100"], ["a100"], []]


def test_the_example_s_selector_passes_over_servers_of_which_nothing_was_said() -> None:
    # An attribute that is not there is an error of the expression, and the scheduler places no pod then.
    shared = next(one for one in objects("example") if one["metadata"]["name"] == "shared-slice")
    (selector,) = shared["spec"]["devices"]["requests"][0]["exactly"]["selectors"]
    for attributes, fits in (
        ({"roundTrip": "near"}, True),
        ({"roundTrip": "far"}, False),
        ({"server": "gpu1"}, False),
    ):
        evaluate = evaluator({}, device={"attributes": {"gpukernel.io": attributes}})
        assert bool(evaluate(selector["cel"]["expression"])) is fits


def test_every_manifest_of_the_folder_is_tested() -> None:
    # Zero to JupyterHub's values and Kueue's objects have tests of their own.
    assert {one.stem for one in FOLDER.glob("*.yaml")} - {"z2jh-values", "kueue"} == set(MANIFESTS)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"count": 0}, "A claim has one device at least, not 0."),
        ({"memory": "4GB"}, "“4GB” is no quantity; write 655Mi or 2Gi."),
        ({"memory": "8Gi"}, "All of a claim's devices cannot have less (4Gi) than one (8Gi)."),
    ],
)
def test_bounds_that_make_no_sense_are_refused(limits: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        ClassLimits(**limits)
