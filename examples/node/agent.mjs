// An agent in JavaScript (Node 20 or later), without dependencies. Gumshoe starts it once per episode:
//   gumshoe rollout --agent '{command: [node, examples/node/agent.mjs]}' …
// It reads the question on standard input, asks the model over OpenAI's API, and calls the tools over MCP.
import { text } from "node:stream/consumers";

const { OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL, GUMSHOE_MCP_URL } = process.env;
const task = JSON.parse(await text(process.stdin));

async function post(url, body, headers = {}) {
  const response = await fetch(url, {
    method: "POST",
    headers: {
      Authorization: `Bearer ${OPENAI_API_KEY}`,
      "Content-Type": "application/json",
      Accept: "application/json, text/event-stream",
      ...headers,
    },
    body: JSON.stringify(body),
  });
  const answer = await response.text();
  if (!response.ok) throw new Error(`${response.status}: ${answer}`);
  // A slow tool is answered with events, whose last one is the result.
  const events = answer.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return JSON.parse(events.length ? events.at(-1).slice(5) : answer);
}

async function callTool({ name, arguments: given }) {
  if (!task.tools.some((tool) => tool.function.name === name)) return `Error: there is no tool ${name}`;
  const version = "2026-07-28";
  const _meta = {
    "io.modelcontextprotocol/protocolVersion": version,
    "io.modelcontextprotocol/clientCapabilities": {},
  };
  const params = { name, arguments: JSON.parse(given), _meta };
  const headers = { "MCP-Protocol-Version": version, "Mcp-Method": "tools/call", "Mcp-Name": name };
  const { result, error } = await post(GUMSHOE_MCP_URL, { jsonrpc: "2.0", id: 1, method: "tools/call", params }, headers);
  if (error) throw new Error(error.message);
  return result.content.map((part) => part.text ?? "").join("");
}

const messages = [
  { role: "system", content: task.system_prompt },
  { role: "user", content: task.user_prompt },
];
for (let hasAnswered = false; !hasAnswered; ) {
  const body = { model: OPENAI_MODEL, messages, tools: task.tools };
  const { message } = (await post(`${OPENAI_BASE_URL}/chat/completions`, body)).choices[0];
  messages.push(message);
  for (const call of message.tool_calls ?? []) {
    messages.push({ role: "tool", tool_call_id: call.id, content: await callTool(call.function) });
    hasAnswered ||= call.function.name === "return_final_answer";
  }
  if (!message.tool_calls?.length) {
    console.log(JSON.stringify({ answer: message.content, sources: [] })); // the last line is the answer
    hasAnswered = true;
  }
}
