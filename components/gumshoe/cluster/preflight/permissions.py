"""The namespace, and what pods find in it: accounts with their rights, secrets, storage."""

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

MADE_FOR = "gumshoe"
"""The namespace that the manifests are for."""
PIPELINE, WITHOUT_RIGHTS = "gumshoe-pipeline", ("gumshoe-trainer", "gumshoe-rollout")
CACHE = "gumshoe-cache"
_TRAINS = (  # what a pipeline's steps do to train on several nodes
    (Resource("trainer.kubeflow.org/v1alpha1", "trainjobs"), ("create", "get", "list", "watch", "patch", "delete")),
    (Resource("apps/v1", "deployments"), ("create", "get", "patch", "delete")),
    (Resource("v1", "services"), ("create", "get", "patch", "delete")),
    (Resource("v1", "pods"), ("list",)),
    (Resource("v1", "events"), ("list",)),
    (Resource("v1", "pods/log"), ("get",)),
    (Resource("kueue.x-k8s.io/v1beta2", "workloads"), ("list",)),
)
_DEPLOYS = (  # what they cannot do without to put an adapter into service
    (Resource("v1", "secrets"), ("create", "list", "update")),
    (Resource("v1", "configmaps"), ("create", "patch")),
    (Resource("serving.kserve.io/v1beta1", "inferenceservices"), ("create", "get", "patch")),
    (Resource("serving.kserve.io/v1alpha1", "servingruntimes"), ("create", "get", "patch")),
)
_TOGETHER = {"gumshoe-s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}  # keys that are no use alone
_WITHOUT = {
    "gumshoe-s3": "steps reach S3 only by a role of their service account or node",
    "gumshoe-models": "gated models cannot be fetched, and no judge outside can be asked",
}
_ENFORCE = "pod-security.kubernetes.io/enforce"


def by_manifests(asked: ClusterReader, mend: str = "install Gumshoe's manifests") -> tuple[str, str, str]:
    """What to do where something lacks that the manifests hold, in words and commands; `dev` for a small cluster."""
    if asked.namespace != MADE_FOR:
        mend += f"; they are for namespace {MADE_FOR}: name {asked.namespace} in an overlay of your own, or look there"
    return (
        mend,
        asked.kubectl(f"-n {MADE_FOR} delete job gumshoe-preflight --ignore-not-found", namespaced=False),
        asked.kubectl("apply -k manifests/overlays/prod", namespaced=False),
    )


def namespace(asked: ClusterReader) -> Iterator[Finding]:
    """That the namespace is there, and what pods it takes."""
    found = asked.get(NAMESPACES, asked.namespace, namespaced=False)
    if found is None:
        yield problem(
            f"there is no namespace {asked.namespace}",
            *by_manifests(asked, "make it; Gumshoe's manifests hold it with its labels, quotas and accounts"),
        )
        return
    if (found.get("status") or {}).get("phase") == "Terminating":
        yield problem(
            f"namespace {asked.namespace} is being removed, and takes nothing new",
            "wait until it is gone, then make it again",
            asked.kubectl(f"wait --for=delete namespace/{asked.namespace} --timeout=10m", namespaced=False),
            by_manifests(asked)[-1],
        )
        return
    level = (found["metadata"].get("labels") or {}).get(_ENFORCE)
    if level in ("baseline", "restricted"):
        yield ok(f"namespace {asked.namespace} is there, for pods that are {level}")
    else:
        said = f"{_ENFORCE} is {level or 'unset'}"
        yield warning(
            f"namespace {asked.namespace} takes pods with any rights over their node ({said})",
            "confine them; Gumshoe's own pods need no more than that",
            asked.kubectl(f"label namespace {asked.namespace} --overwrite {_ENFORCE}=baseline", namespaced=False),
        )


def accounts(asked: ClusterReader) -> Iterator[Finding]:
    """That the service accounts are there, and may do what they are to do and nothing else."""
    found = {name: asked.get(ACCOUNTS, name) for name in (PIPELINE, *WITHOUT_RIGHTS)}
    if missing := [name for name, each in found.items() if each is None]:
        yield problem(f"there is no service account {', '.join(missing)}", *by_manifests(asked))
    for name, each in found.items():
        if each is not None:
            yield _may_work(asked) if name == PIPELINE else _may_nothing(asked, each)


def _may_work(asked: ClusterReader) -> Finding:
    who = f"{asked.namespace}:{PIPELINE}"
    try:
        trains, deploys = (
            [f"{verb} {each.right}" for each, verbs in rights for verb in verbs if not asked.may(PIPELINE, verb, each)]
            for rights in (_TRAINS, _DEPLOYS)
        )
    except NotAllowedError as error:
        look = asked.kubectl(f"auth can-i --list --as system:serviceaccount:{who}")
        return warning(f"{PIPELINE} is there; its rights: {error}", "look yourself", look)
    bind = (
        asked.kubectl(f"create rolebinding {{0}} --role {{0}} --serviceaccount {who}"),
        asked.kubectl(f"auth can-i {{1}} --as system:serviceaccount:{who}"),
    )
    if trains:
        return problem(
            f"{PIPELINE} may not {', '.join(trains)}",
            "install Gumshoe's manifests, whose Role gumshoe-train allows it, and bind it; then try",
            *(each.format("gumshoe-train", trains[0]) for each in bind),
        )
    if deploys:
        return warning(
            f"{PIPELINE} may not {', '.join(deploys)}: no pipeline puts an adapter into service by itself",
            "bind the Role gumshoe-deploy, where that is not as it is meant; then try",
            *(each.format("gumshoe-deploy", deploys[0]) for each in bind),
        )
    return ok(f"{PIPELINE} is there, and may do what steps do")


def _may_nothing(asked: ClusterReader, found: Object) -> Finding:
    name = found["metadata"]["name"]
    if found.get("automountServiceAccountToken") is not False:
        return warning(
            f"pods of {name} are given a token of Kubernetes, which they do not need",
            "take it from them",
            asked.kubectl(f"""patch serviceaccount {name} -p '{{"automountServiceAccountToken": false}}'"""),
        )
    try:
        if asked.may(name, "get", SECRETS):
            return warning(
                f"{name} may read the namespace's secrets, and is to have no rights",
                "remove what binds it",
                asked.kubectl("get rolebindings,clusterrolebindings -o wide"),
            )
    except NotAllowedError as error:
        return ok(f"{name} is there, without a token (its rights: {error})")
    return ok(f"{name} is there, without a token and without rights")


def secrets(asked: ClusterReader) -> Iterator[Finding]:
    """That secrets have the keys that steps read. Values are looked at for being empty alone."""
    for name in SECRET_KEYS:
        try:
            found = asked.get(SECRETS, name)
        except NotAllowedError as error:
            yield warning(
                f"{name}: {error}", "look yourself, at the names of its keys", asked.kubectl(f"describe secret {name}")
            )
            continue
        yield _of_secret(asked, name, found)


def _of_secret(asked: ClusterReader, name: str, found: Object | None) -> Finding:
    known, together = SECRET_KEYS[name], _TOGETHER.get(name, ())
    first = " ".join(f"--from-literal={key}=…" for key in (together or known[:1]))
    make = asked.kubectl(f"create secret generic {name} {first}")
    if found is None:
        return warning(f"there is no secret {name}: {_WITHOUT[name]}", "make it, where steps are to have it", make)
    data = found.get("data") or {}
    again = (asked.kubectl(f"delete secret {name}"), make)
    if empty := sorted(key for key in known if key in data and not data[key]):
        return problem(f"secret {name}: {', '.join(empty)} is empty", "make it again, with a value", *again)
    lacking = [key for key in together if key not in data]
    if lacking and len(lacking) < len(together):
        return problem(
            f"secret {name} has no {', '.join(lacking)}, without which the other is no use", "add it", *again
        )
    if unknown := sorted(set(data) - set(known)):
        return warning(
            f"secret {name} has keys that no step reads: {', '.join(unknown)}",
            f"see whether they are misspelt; steps read {', '.join(known)}",
        )
    if not data:
        return warning(f"secret {name} holds nothing: {_WITHOUT[name]}", "make it again", *again)
    return ok(f"secret {name} has {', '.join(sorted(data))}")


def storage(asked: ClusterReader) -> Iterator[Finding]:
    """That there are volumes to be had, and that the cache has one."""
    classes = {each["metadata"]["name"]: each for each in asked.every(STORAGE_CLASSES, namespaced=False)}
    default = next((name for name, each in classes.items() if _is_default(each)), None)
    if default:
        yield ok(f"volumes come from StorageClass {default} unless another is named")
    else:
        have = f"there are {', '.join(sorted(classes))}" if classes else "there is none at all"
        name = min(classes, default="NAME")
        mark = '{"metadata":{"annotations":{"storageclass.kubernetes.io/is-default-class":"true"}}}'
        yield warning(
            f"no StorageClass is the default ({have})",
            "make one the default, or name one in the volume claim of the cache",
            asked.kubectl(f"patch storageclass {name} -p '{mark}'", namespaced=False),
        )
    yield _cache(asked, asked.get(CLAIMS, CACHE), classes, default)


def _is_default(storage_class: Object) -> bool:
    marked = storage_class["metadata"].get("annotations") or {}
    return marked.get("storageclass.kubernetes.io/is-default-class") == "true"


def _cache(asked: ClusterReader, claim: Object | None, classes: dict[str, Object], default: str | None) -> Finding:
    if claim is None:
        return warning(
            f"there is no volume claim {CACHE}: each pod fetches base models for itself",
            *by_manifests(asked, "install Gumshoe's manifests, which hold it"),
        )
    phase, modes = (claim.get("status") or {}).get("phase"), claim["spec"].get("accessModes") or []
    name = claim["spec"].get("storageClassName", default) or ""
    see = asked.kubectl(f"describe pvc {CACHE}")
    if phase == "Pending" and (classes.get(name) or {}).get("volumeBindingMode") == "WaitForFirstConsumer":
        text = f"volume claim {CACHE} gets its volume from {name} with the first pod that uses it"
    elif phase == "Pending" and name not in classes:
        return problem(
            f"volume claim {CACHE} waits for a StorageClass {name or '(none is named, and none is the default)'}",
            f"name one that is there in the claim: {', '.join(sorted(classes)) or 'none is; install a provisioner'}",
            see,
        )
    elif phase != "Bound":
        return problem(f"volume claim {CACHE} is {phase}, without a volume", "see why", see)
    else:
        text = f"volume claim {CACHE} has its volume"
    if asked.nodes > 1 and not {"ReadWriteMany", "ReadOnlyMany"} & set(modes):
        return warning(
            f"{text}, which one node alone can mount ({', '.join(modes)})",
            f"take a StorageClass with ReadWriteMany for {asked.nodes} nodes (NFS, CephFS, EFS, Filestore), and make "
            "the claim again",
            asked.kubectl("get storageclass", namespaced=False),
        )
    return ok(f"{text} ({', '.join(modes)})")
