"""Test the optional components: certificates, proxy, OpenShift, other GPUs, and what all of them depend on."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from gumshoe.cluster import pod_environment as pods
from tests.certificates import CertificateAuthority
from tests.charts.test_agent_chart import merge, render, values_of
from tests.manifests.access import Access, list_allowed
from tests.manifests.kustomize import MANIFESTS, OVERLAYS, Object, build_over, of_kind, overlay
from tests.manifests.test_manifests import runtime_pod

CHART = MANIFESTS.parent / "charts" / "agent"
COMPONENTS = MANIFESTS / "components"


def preflight_pod(objects: Any) -> Object:
    return dict(of_kind(objects, "Job")["gumshoe-preflight"]["spec"]["template"])


@pytest.fixture
def trusted(tmp_path: Path) -> list[Object]:
    """Return an overlay with the components `trust` and `proxy`, filled in as documented."""
    for name in ("trust", "proxy"):
        shutil.copytree(COMPONENTS / name, tmp_path / name)
    (tmp_path / "trust" / "ca-bundle.crt").write_bytes(CertificateAuthority().certificate)
    (tmp_path / "proxy" / "proxy.env.example").rename(tmp_path / "proxy" / "proxy.env")
    return build_over(["overlays/dev"], [str(tmp_path / name) for name in ("trust", "proxy")], tmp_path / "mine")


def test_trainers_and_preflight_trust_the_bundle_like_pipeline_steps(trusted: list[Object]) -> None:
    bundle = of_kind(trusted, "ConfigMap")[pods.CA_CONFIG_MAP]["data"]
    assert set(bundle) == {pods.CA_KEY}
    assert "BEGIN CERTIFICATE" in bundle[pods.CA_KEY]
    for pod in (runtime_pod(trusted)["spec"], preflight_pod(trusted)["spec"]):
        (container,) = pod["containers"]
        env = {each["name"]: each["value"] for each in container["env"]}
        assert {env[name] for name in pods.CA_VARIABLES} == {f"{pods.TRUST_DIRECTORY}/{pods.CA_KEY}"}
        (mount,) = (each for each in container["volumeMounts"] if each["mountPath"] == pods.TRUST_DIRECTORY)
        (volume,) = (each for each in pod["volumes"] if each["name"] == mount["name"])
        assert volume["configMap"]["name"] == pods.CA_CONFIG_MAP


def test_trainers_and_preflight_use_the_proxy_like_pipeline_steps(trusted: list[Object]) -> None:
    proxy = of_kind(trusted, "ConfigMap")[pods.PROXY_CONFIG_MAP]["data"]
    assert set(proxy) == set(pods.PROXY_VARIABLES)
    assert set(pods.NO_PROXY_HOSTS) <= set(proxy["NO_PROXY"].split(","))
    for pod in (runtime_pod(trusted)["spec"], preflight_pod(trusted)["spec"]):
        assert {"configMapRef": {"name": pods.PROXY_CONFIG_MAP}} in pod["containers"][0]["envFrom"]
    policy = of_kind(trusted, "NetworkPolicy")["gumshoe-proxy"]["spec"]
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert {int(url.rpartition(":")[2]) for name, url in proxy.items() if name != "NO_PROXY"} == ports


def test_a_missing_bundle_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"ca-bundle\.crt"):
        build_over(["overlays/dev"], ["components/trust"], tmp_path / "mine")


@pytest.mark.parametrize("name", OVERLAYS)
def test_openshift_chooses_the_user(name: str, tmp_path: Path) -> None:
    assert "runAsUser" in str(overlay(name)), "elsewhere, the user is fixed"
    objects = build_over([f"overlays/{name}"], ["components/openshift"], tmp_path / "mine")
    for pod in (runtime_pod(objects)["spec"], preflight_pod(objects)["spec"]):
        assert not {"runAsUser", "fsGroup", "supplementalGroups"} & pod["securityContext"].keys()
        assert not [each for each in pod["containers"] if "runAsUser" in each["securityContext"]]
        assert pod["securityContext"]["runAsNonRoot"] is True
    for role in ("gumshoe-deploy", "gumshoe-operate"):
        allowed = list_allowed(of_kind(objects, "Role")[role]["rules"])
        assert Access("route.openshift.io", "routes/custom-host", "create") in allowed, "to choose the host of a Route"


@pytest.mark.parametrize("resource", ["amd.com/gpu", "habana.ai/gaudi", "nvidia.com/mig-1g.10gb"])
@pytest.mark.parametrize("name", ["dev", "prod"])
def test_other_gpus_replace_nvidia_s_everywhere(name: str, resource: str, tmp_path: Path) -> None:
    text = (COMPONENTS / "amd" / "kustomization.yaml").read_text()
    made = text.replace("amd.com~1gpu", resource.replace("/", "~1")).replace("amd.com/gpu", resource)
    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / "kustomization.yaml").write_text(made)
    objects = build_over([f"overlays/{name}"], [str(tmp_path / "gpus")], tmp_path / "mine")
    before, after = of_kind(overlay(name), "ResourceQuota")["gumshoe"], of_kind(objects, "ResourceQuota")["gumshoe"]
    amounts = {**before["spec"]["hard"]}
    amounts[f"requests.{resource}"] = amounts.pop("requests.nvidia.com/gpu")
    assert after["spec"]["hard"] == amounts
    relevant = [each for each in objects if each["kind"] not in ("ConfigMap", "Pipeline", "PipelineVersion")]
    words = set(re.findall(r"nvidia\.com/[\w.-]+", yaml.safe_dump(relevant)))
    assert words - {resource} <= {"nvidia.com/gpu.product"}, "a label of nodes"
    for queue in of_kind(objects, "ClusterQueue").values():
        (group,) = queue["spec"]["resourceGroups"]
        assert resource in group["coveredResources"]
        for flavor in group["flavors"]:
            assert [each["name"] for each in flavor["resources"]] == group["coveredResources"]
    assert f"--gpu-resource={resource}" in preflight_pod(objects)["spec"]["containers"][0]["args"]


@pytest.mark.parametrize("name", ["metadata", "pod-identity"])
def test_credentials_without_keys_come_from_the_same_addresses_as_in_the_chart(name: str, tmp_path: Path) -> None:
    objects = build_over(["overlays/dev"], [f"components/{name}"], tmp_path / "mine")
    rules = of_kind(objects, "NetworkPolicy")[f"gumshoe-{name}"]["spec"]["egress"]
    values = merge(values_of("standard"), {"networkPolicy": {"credentials": name}})
    policies = [each["spec"] for (kind, _), each in render(values).items() if kind == "NetworkPolicy"]
    in_chart = [rule for each in policies for rule in each.get("egress", [])]
    assert all(each in in_chart for each in rules)


def test_manifests_and_chart_allow_the_same_dns_servers() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    policies = of_kind(overlay("prod"), "NetworkPolicy")
    assert policies["gumshoe-dns"]["spec"]["podSelector"] == {}
    assert policies["gumshoe-dns"]["spec"]["egress"] == values["networkPolicy"]["dns"]
    others = [
        rule for name, each in policies.items() if name != "gumshoe-dns" for rule in each["spec"].get("egress", [])
    ]
    assert not {53, 5353} & {port["port"] for rule in others for port in rule.get("ports", [])}


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_have_no_sidecar_of_istio(name: str) -> None:
    for pod in (runtime_pod(overlay(name)), preflight_pod(overlay(name))):
        assert pods.ISTIO_LABELS.items() <= pod["metadata"]["labels"].items()
