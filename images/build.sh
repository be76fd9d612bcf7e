#!/usr/bin/env bash
# Build images (default: all) with docker, podman or buildah. Base images are pinned by digest.
#   images/build.sh [--with-agent DIR [--requirements FILE] [--agent NAME]] [trainer|worker|agent|agent-documents ...]
# --with-agent DIR      put an agent of your own, the files of DIR, on all images but worker, with tag TAG-agent
# --requirements FILE   packages that it needs; with hashes, they are checked (default: DIR/requirements.txt, if any)
# --agent NAME          load the agent at the end of the build, e.g. my_package.agent:graph
# Environment variables:
# BUILDER   docker, podman or buildah (default: the first one installed)
# REGISTRY  prefix of the image names, e.g. registry.example.com/gumshoe (required)
# TAG       image tag (default: the version in pyproject.toml)
# TRAINER_BASE, WORKER_BASE, AGENT_BASE   other base images than those pinned in the Dockerfiles
# TORCH     torch version of agent-documents, from PyTorch's index of CPU builds
set -euo pipefail
start=$PWD
cd "$(dirname "$0")/.."

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
    sed -n '2,/^set /{/^# /s/^# //p;}' "images/build.sh"
    exit 0
fi

fail() {
    echo "error: $*" >&2
    exit 2
}

agent_files='' requirements='' agent=''
while [[ ${1:-} == --* ]]; do
    [[ -n ${2:-} ]] || fail "$1 needs a value; see images/build.sh --help"
    case $1 in
        --with-agent) agent_files=$(cd "$start" && realpath -- "$2") ;;
        --requirements) requirements=$(cd "$start" && realpath -- "$2") ;;
        --agent) agent=$2 ;;
        *) fail "unknown option $1; see images/build.sh --help" ;;
    esac
    shift 2
done
[[ -n $agent_files || -z $requirements$agent ]] || fail "--requirements and --agent need --with-agent DIR"
if [[ -n $agent_files ]]; then
    [[ -d $agent_files ]] || fail "$agent_files is not a directory; name the one with your agent's package or program"
    [[ -n $requirements || ! -f $agent_files/requirements.txt ]] || requirements=$agent_files/requirements.txt
    [[ -z $requirements || -f $requirements ]] || fail "there is no file $requirements; name your agent's requirements"
fi

if [[ -z ${BUILDER:-} ]]; then
    for tool in docker podman buildah; do
        command -v "$tool" >/dev/null && BUILDER=$tool && break
    done
fi
[[ ${BUILDER:-} =~ ^(docker|podman|buildah)$ ]] || fail "install docker, podman or buildah, or name one as BUILDER"
command -v "$BUILDER" >/dev/null || fail "$BUILDER is not installed"
"$BUILDER" info >/dev/null 2>&1 || fail "$BUILDER does not answer; run '$BUILDER info' to see why, e.g. start its service"
[[ -n ${REGISTRY:-} ]] || fail "set REGISTRY to a registry of yours, e.g. REGISTRY=registry.example.com/gumshoe"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
registry=${REGISTRY%/} tag=${TAG:-$version}
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)

# Print the base image with the current digest of its tag, so that builds can be reproduced.
pinned() {
    local base=$1 digest
    [[ $base != *@sha256:* ]] || { echo "$base" && return; }
    if [[ $BUILDER == buildah ]]; then
        buildah pull --quiet --policy=ifmissing "$base" >/dev/null
        digest=$(buildah inspect --type image --format '{{.FromImageDigest}}' "$base")
    else
        "$BUILDER" pull --quiet "$base" >/dev/null
        digest=$("$BUILDER" image inspect --format '{{index .RepoDigests 0}}' "$base")
        digest=${digest##*@}
    fi
    [[ $digest == sha256:* ]] || fail "$base has no digest; push it to a registry first"
    echo "$base@$digest"
}

# Copy the files of an agent, without hidden ones, which may be secrets, and without virtual environments.
copy_agent() {
    local to=$1
    mkdir -p "$to/files"
    (cd "$agent_files" && find . -mindepth 1 \( -name '.*' -o -name __pycache__ -o -type d -exec test -f '{}/pyvenv.cfg' \; \) \
        -prune -o \( -type f -o -type l \) -print0 | tar --null -T - -cf -) | tar -C "$to/files" -xf -
    chmod -R u=rwX,go=rX "$to/files"
    cp images/agent-layer/install.sh "$to/"
    cat ${requirements:+"$requirements"} </dev/null >"$to/requirements.txt"
}

(($#)) || set -- trainer worker agent agent-documents
for image in "$@"; do
    folder=${image%-documents} more=()
    [[ $image != agent-documents ]] ||
        more=(--build-arg REQUIREMENTS=requirements-documents.txt --build-arg "TORCH=${TORCH:-2.13.0+cpu}")
    file=images/$folder/Dockerfile
    [[ -f $file && $image =~ ^(trainer|worker|agent|agent-documents)$ ]] ||
        fail "unknown image $image; use trainer, worker, agent or agent-documents"
    own=$(tr "[:lower:]" "[:upper:]" <<<"$folder")_BASE
    base=$(pinned "${!own:-$(sed -n 's/^ARG BASE_IMAGE=//p' "$file")}")
    echo "Building $registry/$image:$tag on $base"
    "$BUILDER" build --file "$file" --tag "$registry/$image:$tag" --build-arg "BASE_IMAGE=$base" \
        --build-arg "VERSION=$version" --build-arg "REVISION=$revision" \
        ${more[@]+"${more[@]}"} ${PIP_INDEX_URL:+--build-arg "PIP_INDEX_URL=$PIP_INDEX_URL"} .
    [[ -n $agent_files && $image != worker ]] || continue # no step in the worker image runs an agent
    context=$(mktemp -d)
    copy_agent "$context"
    echo "Building $registry/$image:$tag-agent with the agent in $agent_files"
    "$BUILDER" build --file images/agent-layer/Dockerfile --tag "$registry/$image:$tag-agent" \
        --build-arg "BASE_IMAGE=$registry/$image:$tag" --build-arg "AGENT=$agent" --build-arg "VERSION=$version" \
        --build-arg "REVISION=$revision" ${PIP_INDEX_URL:+--build-arg "PIP_INDEX_URL=$PIP_INDEX_URL"} "$context"
    rm -r "$context"
done

own=$tag${agent_files:+-agent}
[[ $1 == worker ]] && first=$tag || first=$own
cat <<END

Push the images (e.g. $BUILDER push $registry/$1:$first), and paste these lines if they apply:

# parameters of a pipeline (--params FILE)
worker_image: $registry/worker:$tag
trainer_image: $registry/trainer:$own${agent:+
agent: $agent}

# values of the chart (gumshoe deploy --values FILE)
agent: {image: {repository: $registry/agent, tag: "$own"}}            # agent-documents for documents

# kustomization.yaml of an overlay
images:
  - {name: registry.invalid/worker, newName: $registry/worker, newTag: "$tag"}
  - {name: registry.invalid/trainer, newName: $registry/trainer, newTag: "$own"}
END
