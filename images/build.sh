#!/usr/bin/env bash
# Build images (default: all) with docker, podman or buildah. Base images are pinned by digest.
#   images/build.sh [trainer|worker|agent|agent-documents ...]
# Environment variables:
# BUILDER   docker, podman or buildah (default: the first one installed)
# REGISTRY  prefix of the image names, e.g. registry.example.com/gumshoe (required)
# TAG       image tag (default: the version in pyproject.toml)
# TRAINER_BASE, WORKER_BASE, AGENT_BASE   other base images than those pinned in the Dockerfiles
# TORCH     torch version of agent-documents, from PyTorch's index of CPU builds
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
    sed -n '2,/^set /{/^# /s/^# //p}' "images/build.sh"
    exit 0
fi

fail() {
    echo "error: $*" >&2
    exit 2
}

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

(($#)) || set -- trainer worker agent agent-documents
for image in "$@"; do
    folder=${image%-documents} more=()
    [[ $image != agent-documents ]] ||
        more=(--build-arg REQUIREMENTS=requirements-documents.txt --build-arg "TORCH=${TORCH:-2.13.0+cpu}")
    file=images/$folder/Dockerfile
    [[ -f $file && $image =~ ^(trainer|worker|agent|agent-documents)$ ]] ||
        fail "unknown image $image; use trainer, worker, agent or agent-documents"
    own=${folder^^}_BASE
    base=$(pinned "${!own:-$(sed -n 's/^ARG BASE_IMAGE=//p' "$file")}")
    echo "Building $registry/$image:$tag on $base"
    "$BUILDER" build --file "$file" --tag "$registry/$image:$tag" --build-arg "BASE_IMAGE=$base" \
        --build-arg "VERSION=$version" --build-arg "REVISION=$revision" \
        ${more[@]+"${more[@]}"} ${PIP_INDEX_URL:+--build-arg "PIP_INDEX_URL=$PIP_INDEX_URL"} .
done

cat <<END

Push the images (e.g. $BUILDER push $registry/$1:$tag), and paste these lines if they apply:

# parameters of a pipeline (--params FILE)
worker_image: $registry/worker:$tag
trainer_image: $registry/trainer:$tag

# values of the chart (gumshoe deploy --values FILE)
agent: {image: {repository: $registry/agent, tag: "$tag"}}            # agent-documents for documents

# kustomization.yaml of an overlay
images:
  - {name: registry.invalid/worker, newName: $registry/worker, newTag: "$tag"}
  - {name: registry.invalid/trainer, newName: $registry/trainer, newTag: "$tag"}
END
