"""Check the namespace and what pods find in it: service accounts, permissions, secrets and storage."""

from collections.abc import Iterator

from gumshoe.cluster.preflight.client import (
    ACCOUNTS,
    CLAIMS,
    NAMESPACES,
    SECRETS,
    STORAGE_CLASSES,
    ClusterReader,
    NotAllowedError,
    Object,
    Resource,
)
from gumshoe.cluster.preflight.result import Finding, ok, problem, warning
from gumshoe.cluster.trainjob import SECRET_KEYS

MANIFESTS_NAMESPACE = "gumshoe"
"""The namespace of the overlays in Gumshoe's manifests."""
PIPELINE, UNPRIVILEGED = "gumshoe-pipeline", ("gumshoe-trainer", "gumshoe-rollout")
CACHE = "gumshoe-cache"
_TRAIN_PERMISSIONS = (  # needed by pipeline steps to train on several nodes
    (Resource("trainer.kubeflow.org/v1alpha1", "trainjobs"), ("create", "get", "list", "watch", "patch", "delete")),
    (Resource("apps/v1", "deployments"), ("create", "get", "patch", "delete")),
    (Resource("v1", "services"), ("create", "get", "patch", "delete")),
    (Resource("v1", "secrets"), ("create", "get", "patch", "delete")),
    (Resource("v1", "pods"), ("list",)),
    (Resource("v1", "events"), ("list",)),
    (Resource("v1", "pods/log"), ("get",)),
    (Resource("kueue.x-k8s.io/v1beta2", "workloads"), ("list",)),
)
_DEPLOY_PERMISSIONS = (  # the minimum that pipeline steps need to deploy an adapter
    (Resource("v1", "secrets"), ("create", "list", "update")),
    (Resource("v1", "configmaps"), ("create", "patch")),
    (Resource("serving.kserve.io/v1beta1", "inferenceservices"), ("create", "get", "patch")),
    (Resource("serving.kserve.io/v1alpha1", "servingruntimes"), ("create", "get", "patch")),
)
_KEY_PAIRS = {"gumshoe-s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}  # keys that must be set together
_CONSEQUENCES = {
    "gumshoe-s3": "steps can access S3 only with a role of their service account or node",
    "gumshoe-models": "gated models cannot be downloaded, and external judges cannot be used",
}
_ENFORCE = "pod-security.kubernetes.io/enforce"
_PART_OF, _PIPELINES_ENABLED = "app.kubernetes.io/part-of", "pipelines.kubeflow.org/enabled"
_PROFILE_LABELS = {_PART_OF: "kubeflow-profile", _PIPELINES_ENABLED: "true"}


def suggest_manifests(reader: ClusterReader, remedy: str = "install Gumshoe's manifests") -> tuple[str, str, str]:
    """Return the advice and the commands to install what Gumshoe's manifests contain."""
    if reader.namespace != MANIFESTS_NAMESPACE:
        remedy += (
            f"; the overlays use namespace {MANIFESTS_NAMESPACE}: set `namespace: {reader.namespace}` in yours, or "
            f"check namespace {MANIFESTS_NAMESPACE} instead"
        )
    return (
        remedy,
        reader.kubectl("delete job gumshoe-preflight --ignore-not-found"),
        reader.kubectl("apply --server-side -k manifests/overlays/prod", namespaced=False),
    )


def check_namespace(reader: ClusterReader) -> Iterator[Finding]:
    """Check that the namespace exists, and its pod security level."""
    found = reader.get(NAMESPACES, reader.namespace, namespaced=False)
    if found is None:
        yield problem(
            f"namespace {reader.namespace} does not exist",
            *suggest_manifests(
                reader, "create it; Gumshoe's manifests contain it with labels, quotas and service accounts"
            ),
        )
        return
    if (found.get("status") or {}).get("phase") == "Terminating":
        yield problem(
            f"namespace {reader.namespace} is being deleted, and accepts no new objects",
            "wait until it is deleted, then create it again",
            reader.kubectl(f"wait --for=delete namespace/{reader.namespace} --timeout=10m", namespaced=False),
            suggest_manifests(reader)[-1],
        )
        return
    labels = found["metadata"].get("labels") or {}
    yield from _check_profile(reader, found, labels)
    level = labels.get(_ENFORCE)
    if level in ("baseline", "restricted"):
        yield ok(f"namespace {reader.namespace} exists, with pod security level {level}")
    else:
        label = f"{_ENFORCE} is {level or 'unset'}"
        yield warning(
            f"namespace {reader.namespace} accepts privileged pods ({label})",
            "restrict it; Gumshoe's pods need no more than baseline",
            reader.kubectl(f"label namespace {reader.namespace} --overwrite {_ENFORCE}=baseline", namespaced=False),
        )


def _check_profile(reader: ClusterReader, namespace: Object, labels: dict[str, str]) -> Iterator[Finding]:
    """Check the labels that Kubeflow needs on the namespace of a profile. It does not correct them itself."""
    owners = namespace["metadata"].get("ownerReferences") or []
    if not any(each["kind"] == "Profile" for each in owners):
        return

    def label(name: str) -> str:
        value = _PROFILE_LABELS[name]
        return reader.kubectl(f"label namespace {reader.namespace} --overwrite {name}={value}", namespaced=False)

    wrong = {name: labels.get(name, "unset") for name, value in _PROFILE_LABELS.items() if labels.get(name) != value}
    if _PART_OF in wrong:
        yield problem(
            f"Kubeflow does not accept connections from namespace {reader.namespace}: it belongs to a profile, but "
            f"{_PART_OF} is {wrong[_PART_OF]}",
            "correct the label; Kubeflow's NetworkPolicies select it",
            label(_PART_OF),
        )
    if _PIPELINES_ENABLED in wrong:
        yield warning(
            f"Kubeflow Pipelines may not prepare namespace {reader.namespace}: it belongs to a profile, but "
            f"{_PIPELINES_ENABLED} is {wrong[_PIPELINES_ENABLED]}",
            "set the label, if runs have no ConfigMap kfp-launcher or no Secret mlpipeline-minio-artifact",
            label(_PIPELINES_ENABLED),
        )
    if not wrong:
        yield ok(f"namespace {reader.namespace} belongs to a Kubeflow profile, with the labels that Kubeflow needs")


def check_accounts(reader: ClusterReader) -> Iterator[Finding]:
    """Check that the service accounts exist, with exactly the permissions they need."""
    found = {name: reader.get(ACCOUNTS, name) for name in (PIPELINE, *UNPRIVILEGED)}
    if missing := [name for name, each in found.items() if each is None]:
        yield problem(f"service account {', '.join(missing)} does not exist", *suggest_manifests(reader))
    for name, each in found.items():
        if each is not None:
            yield _check_pipeline_account(reader) if name == PIPELINE else _check_unprivileged_account(reader, each)


def _check_pipeline_account(reader: ClusterReader) -> Finding:
    who = f"{reader.namespace}:{PIPELINE}"
    try:
        trains, deploys = (
            [
                f"{verb} {each.rbac_name}"
                for each, verbs in rights
                for verb in verbs
                if not reader.is_allowed(PIPELINE, verb, each)
            ]
            for rights in (_TRAIN_PERMISSIONS, _DEPLOY_PERMISSIONS)
        )
    except NotAllowedError as error:
        look = reader.kubectl(f"auth can-i --list --as system:serviceaccount:{who}")
        return warning(f"{PIPELINE} exists; its permissions: {error}", "check them yourself", look)
    bind = (
        reader.kubectl(f"create rolebinding {{0}} --role {{0}} --serviceaccount {who}"),
        reader.kubectl(f"auth can-i {{1}} --as system:serviceaccount:{who}"),
    )
    if trains:
        return problem(
            f"{PIPELINE} may not {', '.join(trains)}",
            "install Gumshoe's manifests, bind their Role gumshoe-train, and check again",
            *(each.format("gumshoe-train", trains[0]) for each in bind),
        )
    if deploys:
        return warning(
            f"{PIPELINE} may not {', '.join(deploys)}, so pipelines cannot deploy adapters",
            "if they should, bind the Role gumshoe-deploy and check again",
            *(each.format("gumshoe-deploy", deploys[0]) for each in bind),
        )
    return ok(f"{PIPELINE} exists and has the permissions that steps need")


def _check_unprivileged_account(reader: ClusterReader, found: Object) -> Finding:
    name = found["metadata"]["name"]
    if found.get("automountServiceAccountToken") is not False:
        return warning(
            f"pods of {name} get a Kubernetes token that they do not need",
            "disable it",
            reader.kubectl(f"""patch serviceaccount {name} -p '{{"automountServiceAccountToken": false}}'"""),
        )
    try:
        if reader.is_allowed(name, "get", SECRETS):
            return warning(
                f"{name} may read the namespace's secrets, but needs no permissions",
                "remove its role bindings",
                reader.kubectl("get rolebindings,clusterrolebindings -o wide"),
            )
    except NotAllowedError as error:
        return ok(f"{name} exists, without a token (its permissions: {error})")
    return ok(f"{name} exists, without a token and without permissions")


def check_secrets(reader: ClusterReader) -> Iterator[Finding]:
    """Check that the secrets have the keys that steps read. Of the values only emptiness is checked."""
    for name in SECRET_KEYS:
        try:
            found = reader.get(SECRETS, name)
        except NotAllowedError as error:
            yield warning(
                f"{name}: {error}", "check the names of its keys yourself", reader.kubectl(f"describe secret {name}")
            )
            continue
        yield _check_secret(reader, name, found)


def _check_secret(reader: ClusterReader, name: str, found: Object | None) -> Finding:
    known, together = SECRET_KEYS[name], _KEY_PAIRS.get(name, ())
    first = " ".join(f"--from-literal={key}=…" for key in (together or known[:1]))
    make = reader.kubectl(f"create secret generic {name} {first}")
    if found is None:
        return warning(
            f"secret {name} does not exist: {_CONSEQUENCES[name]}", "create it, if steps should have it", make
        )
    data = found.get("data") or {}
    again = (reader.kubectl(f"delete secret {name}"), make)
    if empty := sorted(key for key in known if key in data and not data[key]):
        return problem(f"secret {name}: {', '.join(empty)} is empty", "create it again with a value", *again)
    lacking = [key for key in together if key not in data]
    if lacking and len(lacking) < len(together):
        return problem(f"secret {name} has no {', '.join(lacking)}, which the other key requires", "add it", *again)
    if unknown := sorted(set(data) - set(known)):
        return warning(
            f"secret {name} has keys that no step reads: {', '.join(unknown)}",
            f"check their spelling; steps read {', '.join(known)}",
        )
    if not data:
        return warning(f"secret {name} is empty: {_CONSEQUENCES[name]}", "create it again", *again)
    return ok(f"secret {name} has {', '.join(sorted(data))}")


def check_storage(reader: ClusterReader) -> Iterator[Finding]:
    """Check that volumes can be provisioned, and that the cache has one."""
    classes = {each["metadata"]["name"]: each for each in reader.list_all(STORAGE_CLASSES, namespaced=False)}
    default = next((name for name, each in classes.items() if _is_default(each)), None)
    if default:
        yield ok(f"the default StorageClass is {default}")
    else:
        have = f"existing: {', '.join(sorted(classes))}" if classes else "none exist"
        name = min(classes, default="NAME")
        mark = '{"metadata":{"annotations":{"storageclass.kubernetes.io/is-default-class":"true"}}}'
        yield warning(
            f"no StorageClass is the default ({have})",
            "make one the default, or name one in the cache's volume claim",
            reader.kubectl(f"patch storageclass {name} -p '{mark}'", namespaced=False),
        )
    yield _check_cache(reader, reader.get(CLAIMS, CACHE), classes, default)


def _is_default(storage_class: Object) -> bool:
    marked = storage_class["metadata"].get("annotations") or {}
    return marked.get("storageclass.kubernetes.io/is-default-class") == "true"


def _check_cache(
    reader: ClusterReader, claim: Object | None, classes: dict[str, Object], default: str | None
) -> Finding:
    if claim is None:
        return warning(
            f"volume claim {CACHE} does not exist: each pod downloads base models for itself",
            *suggest_manifests(reader, "install Gumshoe's manifests, which contain it"),
        )
    phase, modes = (claim.get("status") or {}).get("phase"), claim["spec"].get("accessModes") or []
    name = claim["spec"].get("storageClassName", default) or ""
    see = reader.kubectl(f"describe pvc {CACHE}")
    if phase == "Pending" and (classes.get(name) or {}).get("volumeBindingMode") == "WaitForFirstConsumer":
        text = f"volume claim {CACHE} gets its volume from {name} when the first pod uses it"
    elif phase == "Pending" and name not in classes:
        return problem(
            f"volume claim {CACHE} waits for StorageClass {name or '(none named and no default)'}",
            f"name an existing one: {', '.join(sorted(classes)) or '(none exist; install a provisioner)'}",
            see,
        )
    elif phase != "Bound":
        return problem(f"volume claim {CACHE} is {phase}, without a volume", "look for the cause", see)
    else:
        text = f"volume claim {CACHE} has its volume"
    if reader.nodes > 1 and not {"ReadWriteMany", "ReadOnlyMany"} & set(modes):
        return warning(
            f"{text}, which only one node can mount ({', '.join(modes)})",
            f"use a StorageClass with ReadWriteMany for {reader.nodes} nodes (NFS, CephFS, EFS, Filestore), and create "
            "the claim again",
            reader.kubectl("get storageclass", namespaced=False),
        )
    return ok(f"{text} ({', '.join(modes)})")
