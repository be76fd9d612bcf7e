#!/usr/bin/env bash
# Ask a question with curl: first for the answer alone, then with each step as it is taken (server-sent events).
#   GUMSHOE_KEY=gum_... examples/curl.sh '{"question": "When is the invoice due?", "inbox_address": "ann@example.com"}'
set -euo pipefail
url=${GUMSHOE_URL:-http://127.0.0.1:8000}
body=${1:-'{"question": "When is the invoice due?", "inbox_address": "ann@example.com"}'}
options=(--silent --show-error --fail-with-body --header "Content-Type: application/json" --data "$body")
if [[ -n ${GUMSHOE_KEY:-} ]]; then
    options+=(--header "Authorization: Bearer $GUMSHOE_KEY")
fi

curl "${options[@]}" "$url/invoke"
echo
curl "${options[@]}" --no-buffer "$url/invoke/stream"
