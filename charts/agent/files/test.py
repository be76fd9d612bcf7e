"""Test an installed chart: vLLM serves the adapters and completes a text, and the agent server answers."""

import json
import os
import urllib.request


def answer(url, body=None, **headers):
    """Return the JSON answer of a URL."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def main():
    """Print a line for each successful check. Exits with 1 at the first failure."""
    agent, key = os.environ["AGENT"], os.environ.get("KEY")
    access = {"Authorization": f"Bearer {key}"} if key else {}
    adapters = os.environ["ADAPTERS"].split(",")
    model_key = os.environ.get("VLLM_API_KEY")
    model_access = {"Authorization": f"Bearer {model_key}"} if model_key else {}
    for url in os.environ["MODELS"].split(","):
        listed = [each["id"] for each in answer(f"{url}/v1/models", **model_access)["data"]]
        missing = [each for each in adapters if each not in listed]
        if missing:
            raise SystemExit(f"{url} does not serve {missing}; it serves {listed}")
        print(f"{url} serves {', '.join(adapters)}")
        for adapter in adapters:
            request = {"model": adapter, "prompt": "The answer is", "max_tokens": 4}
            done = answer(f"{url}/v1/completions", request, **model_access)
            print(f"{adapter} completes the prompt with {done['choices'][0]['text']!r}")
    print("the agent server is", answer(f"{agent}/readyz")["status"])
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    kinds = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
    inbox, has_inboxes = os.environ["INBOX"], os.environ["ENVIRONMENT"] == "email"
    if not (key or inbox):
        print(f"set test.keySecret{' and test.inbox' if has_inboxes else ''} to test MCP and a question too")
        return
    tools = [each["name"] for each in answer(f"{agent}/mcp", call, **kinds, **access)["result"]["tools"]]
    print("MCP tools:", ", ".join(sorted(tools)))
    if inbox or not has_inboxes:
        body = {"question": os.environ["QUESTION"], **({"inbox_address": inbox} if has_inboxes else {})}
        found = answer(f"{agent}/invoke", body, **access)
        print(f"asked {found['question']!r}: {found['turns']} turns by {found['policy']}, success {found['success']}")


main()
