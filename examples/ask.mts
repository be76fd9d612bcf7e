// Ask a question over HTTP. Prints each step, then the answer and its sources.
//   npx -y tsx examples/ask.mts "When is the invoice due?" ann@example.com
// Types of all requests and responses: npx -y openapi-typescript http://127.0.0.1:8000/openapi.json -o gumshoe.d.ts
const [question, inbox] = process.argv.slice(2);
const url = process.env.GUMSHOE_URL ?? "http://127.0.0.1:8000";
const key = process.env.GUMSHOE_KEY;
if (!question) {
  console.error("usage: npx -y tsx examples/ask.mts QUESTION [INBOX]");
  process.exit(2);
}

const response = await fetch(`${url}/invoke`, {
  method: "POST",
  headers: { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) },
  body: JSON.stringify({ question, inbox_address: inbox, steps: true }), // documents have no inbox
}).catch((error) => {
  console.error(`${url} does not answer: ${error.cause?.message || error.cause?.code || error.message}`);
  process.exit(1);
});
const result = await response.json();
if (!response.ok) {
  console.error(`${result.title}: ${result.detail} [${result.code}]`);
  process.exit(1);
}
for (const step of result.steps) {
  console.error(`${step.turn}. ${step.tool} ${JSON.stringify(step.arguments)}`);
}
console.log(result.success ? result.answer : `No answer: ${result.reason}`);
for (const id of result.source_ids) {
  console.log(`  ${id}`);
}
export {}; // a module, so that `await` is allowed here
