// Asks a question and shows each step as it arrives. Everything from the server is inserted as text, never as HTML.
"use strict";
const at = (id) => document.getElementById(id);
const KEY = "gumshoe-key";
let caller = null, running = null, latest = null;

function createElement(tag, text, ...inside) {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  element.append(...inside);
  return element;
}

function headers() {
  const key = sessionStorage.getItem(KEY);
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

function show(problem) {
  at("problem").textContent = problem;
  at("problem").hidden = !problem;
}

function describe(problem) {
  return `${problem.title}: ${problem.detail} [${problem.type.replace("urn:gumshoe:error:", "")}]`;
}

async function describeError(response) {
  try {
    return describe(await response.json());
  } catch {
    return `The server answered ${response.status}.`;
  }
}

async function whoami() {
  let response;
  try {
    response = await fetch("principal", { headers: headers() });
  } catch {
    return show("The server does not answer.");
  }
  at("key-form").hidden = response.status !== 401;
  at("ask").hidden = !response.ok;
  if (response.status === 401) {
    if (sessionStorage.getItem(KEY)) show("This key is not valid.");
    sessionStorage.removeItem(KEY);
    return at("key").focus();
  }
  if (!response.ok) return show(await describeError(response));
  show("");
  caller = await response.json();
  at("whose").hidden = at("when").hidden = !caller.has_inboxes;
  at("inbox").required = at("day").required = caller.has_inboxes;
  const whole = caller.inboxes.filter((each) => !each.includes("*"));
  at("inboxes").replaceChildren(...whole.map((each) => Object.assign(createElement("option"), { value: each })));
  if (whole.length === 1 && caller.inboxes.length === 1) at("inbox").value = whole[0];
  at("question").focus();
}

function renderSource(source) {
  if (source.message_id) {
    const sent = source.sent ? `${source.sent.slice(0, 10)} ` : "";
    return createElement("li", `${sent}${source.sender}: ${source.subject} `, createElement("code", source.message_id));
  }
  const name = source.title || source.url;
  const title = /^https?:/.test(source.url) ? Object.assign(createElement("a", name), { href: source.url, rel: "noreferrer" }) : name;
  return createElement("li", "", title, " ", createElement("code", source.document_id));
}

function call(step) {
  if (!step.tool) return step.text;
  const given = Object.entries(step.arguments).filter(([, value]) => value !== null);
  return `${step.tool}(${given.map(([name, value]) => `${name}=${JSON.stringify(value)}`).join(", ")})`;
}

function showStep(step) {
  const item = createElement("li", "", createElement("code", call(step)));
  if (step.tool && step.text) item.prepend(createElement("p", step.text));
  if (step.result !== null) {
    item.append(createElement("details", "", createElement("summary", "Result"), createElement("pre", step.result)));
  }
  const before = at("steps").children[step.turn - 1];
  if (before) before.replaceWith(item);
  else at("steps").append(item);
  at("steps-part").hidden = false;
  at("status").textContent = `Step ${step.turn} …`;
}

function showAnswer(answer) {
  latest = answer;
  at("answer").textContent = answer.success ? answer.answer : `No answer: ${answer.reason}.`;
  at("sources").replaceChildren(...answer.sources.map(renderSource));
  const chosen = answer.chosen ? `; ${answer.chosen}` : "";
  at("about").textContent = `${answer.turns} turns, ${answer.seconds.toFixed(1)} seconds, by ${answer.policy}${chosen}`;
  at("judge").hidden = !(caller.feedback && answer.success);
  at("answer-part").hidden = false;
  at("status").textContent = "Done.";
  at("answer-title").focus();
}

// Yield the server-sent events of a POST response. EventSource only supports GET.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n");
      const of = (name) => lines.filter((each) => each.startsWith(name)).map((each) => each.slice(name.length)).join("\n");
      if (of("event: ")) yield [of("event: "), JSON.parse(of("data: "))];
    }
  }
}

async function ask(event) {
  event.preventDefault();
  running?.abort();
  running = new AbortController();
  show("");
  at("steps").replaceChildren();
  at("steps-part").hidden = at("answer-part").hidden = true;
  at("go").disabled = true;
  at("stop").hidden = false;
  at("status").textContent = "Asking …";
  const body = { question: at("question").value };
  if (caller.has_inboxes) Object.assign(body, { inbox_address: at("inbox").value, query_date: at("day").value });
  try {
    const response = await fetch("invoke/stream", {
      method: "POST", headers: headers(), body: JSON.stringify(body), signal: running.signal });
    if (!response.ok) throw new Error(await describeError(response));
    let ended = false;
    for await (const [name, data] of events(response)) {
      if (name === "step") showStep(data);
      if (name === "answer") showAnswer(data);
      if (name === "problem") throw new Error(describe(data));
      ended = name === "answer";
    }
    if (!ended) throw new Error("The connection ended before the answer came.");
  } catch (error) {
    at("status").textContent = "";
    if (error.name === "AbortError") at("status").textContent = "Stopped.";
    else show(error instanceof TypeError ? "The server does not answer." : error.message);
  } finally {
    at("go").disabled = false;
    at("stop").hidden = true;
  }
}

async function judge(right) {
  const { question, inbox_address, query_date, answer, source_ids } = latest;
  const body = { question, inbox_address, query_date, answer, source_ids, right };
  at("judge").hidden = true;
  const response = await fetch("feedback", { method: "POST", headers: headers(), body: JSON.stringify(body) });
  at("status").textContent = response.ok ? "Thank you." : await describeError(response);
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, at("key").value);
  at("key").value = "";
  whoami();
});
at("ask").addEventListener("submit", ask);
at("stop").addEventListener("click", () => running?.abort());
at("right").addEventListener("click", () => judge(true));
at("wrong").addEventListener("click", () => judge(false));
const now = new Date();
at("day").value = new Date(now - now.getTimezoneOffset() * 60000).toISOString().slice(0, 10);
whoami();
