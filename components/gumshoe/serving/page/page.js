// Asks a question and shows the answer first, then its sources and steps. Everything from the server is inserted as
// text, never as HTML. The key and the recent questions are stored in this tab only.
import { describeCall, describeStep, findPassage, formatCurl, listFound } from "./text.js";

const at = (id) => document.getElementById(id);
const KEY = "gumshoe-key", RECENT = "gumshoe-recent", MOST_RECENT = 10, MOST_CANDIDATES = 12;
let lastKey = null, caller = null, running = null, reading = null, latest = null, steps = [];

function createElement(tag, text, ...inside) {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  element.append(...inside);
  return element;
}

function withClass(name, element) {
  element.className = name;
  return element;
}

// Storage of this tab, or of this page if the browser refuses it or it is full.

const unstored = new Map();

function readStored(name) {
  if (unstored.has(name)) return unstored.get(name);
  try {
    return sessionStorage.getItem(name);
  } catch {
    return null;
  }
}

function store(name, value) {
  unstored.delete(name);
  try {
    if (value === null) sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, value);
  } catch {
    unstored.set(name, value);
  }
}

// Requests and their errors.

class ProblemError extends Error {
  constructor(problem) {
    super(problem.title);
    this.problem = problem;
  }
}

async function send(path, body, signal) {
  const key = readStored(KEY);
  const headers = { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const request = body ? { method: "POST", headers, body: JSON.stringify(body), signal } : { headers, signal };
  const response = await fetch(path, request).catch((error) => {
    throw signal?.aborted ? error : new ProblemError({ title: "The server does not answer", detail: "Try again later." });
  });
  if (response.ok) return response;
  if (response.status === 401 && path !== "principal") showKeyForm(); // e.g. the key has expired
  const found = await response.json().catch(() => null);
  const problem = typeof found?.title === "string" ? found : { title: `The server answered ${response.status}` };
  throw new ProblemError({ ...problem, status: response.status });
}

function problemOf(error) {
  if (error instanceof ProblemError) return error.problem;
  return { title: "The answer is incomplete", detail: error.message };
}

function renderProblem({ title, detail, code, request_id }) {
  const parts = [withClass("problem-title", createElement("p", title))];
  if (detail) parts.push(withClass("problem-detail", createElement("p", detail)));
  const request = request_id ? ` · request ${request_id}` : "";
  if (code) parts.push(withClass("hint", createElement("p", "", createElement("code", code), request)));
  return parts;
}

function showProblem(error) {
  at("problem").replaceChildren(...(error ? renderProblem(problemOf(error)) : []));
  at("problem").hidden = !error;
  if (error) at("problem").scrollIntoView({ block: "nearest" });
}

function setStatus(text, kind = "") {
  at("status").className = kind;
  at("status").textContent = text;
}

// Sign in and out.

function showKeyForm() {
  store(KEY, null);
  at("key-form").hidden = false;
  at("ask").hidden = at("sign-out").hidden = true;
  at("source").close();
  at("key").focus();
}

function leaveNothing() {
  forgetRecent();
  at("ask").reset();
  setToday();
  latest = null;
  at("answer-part").hidden = at("steps-part").hidden = true;
}

function signOut() {
  store(KEY, null);
  leaveNothing(); // some browsers fill forms in again
  location.reload();
}

function setToday() {
  const now = new Date();
  at("day").value = new Date(now - now.getTimezoneOffset() * 60000).toISOString().slice(0, 10);
}

async function loadCaller() {
  try {
    caller = await (await send("principal")).json();
  } catch (error) {
    const isRefused = error instanceof ProblemError && error.problem.status === 401;
    at("key-form").hidden = !isRefused && !readStored(KEY); // another key may help
    at("ask").hidden = true;
    showProblem(isRefused && !readStored(KEY) ? null : error);
    if (isRefused) showKeyForm();
    return;
  }
  lastKey = readStored(KEY);
  showProblem(null);
  at("key-form").hidden = true;
  at("ask").hidden = false;
  at("sign-out").hidden = !readStored(KEY);
  at("mail-fields").hidden = !caller.has_inboxes;
  nameSources(caller.has_inboxes ? ["message", "mail"] : ["document", "documents"]);
  at("consent").checked = caller.consent === "training";
  at("inbox").required = at("day").required = caller.has_inboxes;
  const whole = caller.inboxes.filter((each) => !each.includes("*"));
  at("inboxes").replaceChildren(...whole.map((each) => Object.assign(createElement("option"), { value: each })));
  if (whole.length === 1 && caller.inboxes.length === 1) at("inbox").value = whole[0];
  showRecent();
  at("question").focus();
}

// Recent questions.

function readRecent() {
  return JSON.parse(readStored(RECENT) ?? "[]");
}

function addRecent(body) {
  const others = readRecent().filter((each) => JSON.stringify(each) !== JSON.stringify(body));
  store(RECENT, JSON.stringify([body, ...others].slice(0, MOST_RECENT)));
  showRecent();
}

function forgetRecent() {
  store(RECENT, null);
  showRecent();
}

function showRecent() {
  const recent = readRecent();
  at("recent").replaceChildren(...recent.map((body) => {
    const button = withClass("link", createElement("button", body.question));
    button.addEventListener("click", () => fillForm(body));
    const meta = [body.inbox_address, body.query_date].filter(Boolean).join(", ");
    return createElement("li", "", button, ...(meta ? [withClass("meta", createElement("span", meta))] : []));
  }));
  at("recent-part").hidden = !recent.length;
}

function fillForm({ question, inbox_address, query_date }) {
  at("question").value = question;
  if (inbox_address) at("inbox").value = inbox_address;
  if (query_date) at("day").value = query_date;
  at("go").focus();
}

// Steps.

function renderStep(step, isRunning) {
  const details = createElement("details", "", createElement("summary", describeStep(step, isRunning)));
  for (const text of [step.reasoning, step.text]) {
    if (text) details.append(createElement("p", text));
  }
  if (step.tool) details.append(createElement("p", "", createElement("code", describeCall(step))));
  if (step.result) details.append(Object.assign(createElement("pre", step.result), { tabIndex: 0 }));
  return createElement("li", "", details);
}

function putStep(step, place, isRunning) {
  const item = renderStep(step, isRunning);
  const before = at("steps").children[place];
  if (before) {
    item.firstChild.open = before.firstChild.open;
    before.replaceWith(item);
  } else at("steps").append(item);
}

function showSteps(steps) {
  steps.forEach((step, place) => putStep(step, place, false));
  at("steps-part").hidden = !steps.length;
  at("step-count").textContent = `(${steps.length})`;
}

function showStep(step) {
  const known = steps.findIndex((each) => each.turn === step.turn && each.call === step.call);
  const place = known < 0 ? steps.length : known; // a step comes again with its result
  steps[place] = step;
  putStep(step, place, true);
  at("steps-part").hidden = false;
  at("step-count").textContent = `(${steps.length})`;
  setStatus(step.result === null ? `${describeStep(step, true)} …` : "Thinking …", "running");
}

// Answer and sources.

function sourceName(source) {
  return source.subject || source.title || source.url || source.message_id || source.document_id;
}

function renderLink(url, text) {
  return Object.assign(createElement("a", text), { href: url, rel: "noreferrer", target: "_blank" });
}

function renderSource(source) {
  const name = withClass("link", createElement(caller.sources ? "button" : "span", sourceName(source)));
  if (caller.sources) name.addEventListener("click", () => openSource(source));
  const meta = withClass("meta", createElement("span"));
  if (source.message_id) meta.append([source.sender, source.sent?.slice(0, 10)].filter(Boolean).join(", "), " · ");
  if (/^https?:/.test(source.url)) meta.append(renderLink(source.url, source.url), " · ");
  meta.append(createElement("code", source.message_id ?? source.document_id));
  return createElement("li", "", name, meta);
}

function showAnswer(answer) {
  latest = answer;
  showSteps(answer.steps);
  at("answer").textContent = answer.success ? answer.answer : `No answer: ${answer.reason}.`;
  at("sources").replaceChildren(...answer.sources.map(renderSource));
  at("sources-part").hidden = !answer.sources.length;
  const chosen = answer.chosen ? `; ${answer.chosen}` : "";
  const turns = answer.turns === 1 ? "1 turn" : `${answer.turns} turns`;
  at("about").textContent = `${turns}, ${answer.seconds.toFixed(1)} seconds, by ${answer.policy}${chosen}`;
  showFeedback(answer);
  at("curl").hidden = true;
  at("answer-part").hidden = false;
  setStatus("Done.", "unseen");
  at("answer-title").focus({ preventScroll: true });
  at("answer-part").scrollIntoView({ block: "nearest" });
}

async function openSource(source) {
  reading = new AbortController();
  const { signal } = reading;
  at("source-title").textContent = sourceName(source);
  at("source-hint").textContent = "Loading …";
  for (const id of ["source-details", "source-problem", "source-text"]) at(id).replaceChildren();
  at("source-text").hidden = true;
  at("source").showModal();
  const { inbox_address, query_date } = latest;
  try {
    const body = { source_id: source.message_id ?? source.document_id, inbox_address, query_date };
    const response = await send("source", body, signal);
    showSource(await response.json());
  } catch (error) {
    if (signal.aborted) return;
    at("source-hint").textContent = "";
    at("source-problem").replaceChildren(...renderProblem(problemOf(error)));
  }
}

function showSource({ source, details, text, truncated }) {
  const rows = Object.entries(details);
  if (/^https?:/.test(source.url)) rows.push(["Address", renderLink(source.url, source.url)]);
  at("source-details").replaceChildren(...rows.flatMap(([name, value]) => [createElement("dt", name), createElement("dd", "", value)]));
  const passage = findPassage(text, latest.answer, latest.question);
  const [start, end] = passage ?? [0, 0];
  const mark = createElement("mark", text.slice(start, end));
  at("source-text").replaceChildren(text.slice(0, start), ...(passage ? [mark] : []), text.slice(end));
  at("source-text").hidden = false;
  const found = passage ? "The passage that is closest to the answer is marked." : "No passage is close to the answer.";
  at("source-hint").textContent = truncated ? `${found} The text is too long to show all of it.` : found;
  if (passage) mark.scrollIntoView({ block: "center" });
}

async function copyCurl() {
  const { question, inbox_address, query_date } = latest;
  const given = Object.entries({ question, inbox_address, query_date }).filter(([, value]) => value !== null);
  const hasKey = Boolean(readStored(KEY));
  const command = formatCurl(new URL("invoke", location.href).href, Object.fromEntries(given), hasKey);
  try {
    await navigator.clipboard.writeText(command);
    at("note").textContent = hasKey ? "Copied. Set KEY to your key before you run it." : "Copied.";
  } catch {
    at("curl").textContent = command; // browsers allow copying only over HTTPS, and on this machine
    at("curl").hidden = false;
    getSelection().selectAllChildren(at("curl"));
    at("note").textContent = "Copy the command below.";
  }
}

// Feedback.

function nameSources([noun, all]) {
  at("unanswerable-label").textContent = `This cannot be answered from the ${all}`;
  at("candidates-title").textContent = `Which ${noun} contains it?`;
  at("other-sources-label").textContent = `IDs of other ${noun}s, one per line`;
  at("sources-hint").textContent = `Without a ${noun}, the correction counts, but no agent can be trained on it.`;
}

function showFeedback({ answer }) {
  at("judge").hidden = !caller.feedback;
  at("judge-label").textContent = answer ? "Is this correct?" : "Do you know the answer?";
  at("right").hidden = !answer;
  at("wrong").textContent = answer ? "No" : "Correct it";
  at("note").textContent = "";
  at("correction").reset();
  at("candidates").replaceChildren();
  openCorrection(false);
}

function openCorrection(isOpen) {
  at("correction").hidden = !isOpen;
  at("wrong").ariaExpanded = String(isOpen);
  at("correction-problem").replaceChildren();
  at("known").hidden = at("unanswerable").checked;
  if (!isOpen) return;
  if (!at("candidates").childElementCount) showCandidates();
  at(at("unanswerable").checked ? "unanswerable" : "right-answer").focus();
}

// Offer the sources of the answer, and what its searches listed: the correct one is often among them.
function showCandidates() {
  const named = latest.sources.map((each) => ({ id: each.message_id ?? each.document_id, title: sourceName(each) }));
  const byId = new Map([...listFound(latest.steps, latest.handles), ...named].map((each) => [each.id, each]));
  const ids = [...new Set([...named.map(({ id }) => id), ...byId.keys()])].slice(0, MOST_CANDIDATES);
  at("candidates").replaceChildren(...ids.map((id) => {
    const box = Object.assign(createElement("input"), { type: "checkbox", value: id });
    const label = withClass("choice", createElement("label", "", box, ` ${byId.get(id).title}`));
    return createElement("li", "", label, withClass("meta", createElement("code", id)));
  }));
}

function readCorrection() {
  if (at("unanswerable").checked) {
    // Without success, the answer was "I don't know", which was right.
    return { right: Boolean(latest.answer) && !latest.success, unanswerable: true };
  }
  const chosen = [...at("candidates").querySelectorAll(":checked")].map((each) => each.value);
  const others = at("other-sources").value.split("\n").map((each) => each.trim()).filter(Boolean);
  const answer = at("right-answer").value.trim();
  return { right: false, ...(answer && { right_answer: answer, right_source_ids: [...new Set([...chosen, ...others])] }) };
}

async function sendFeedback(verdict) {
  const about = latest;
  const { question, inbox_address, query_date, answer, source_ids, policy } = about;
  const consent = at("consent").checked ? "training" : "none";
  const buttons = ["right", "wrong", "send"].map(at);
  buttons.forEach((each) => { each.disabled = true; });
  try {
    const body = { question, inbox_address, query_date, answer, source_ids, policy, ...verdict, consent };
    const { kept } = await (await send("feedback", body)).json();
    if (about !== latest) return;
    openCorrection(false);
    at("judge").hidden = true;
    const isLost = verdict.right_answer && !kept;
    at("note").textContent = isLost ? "Thank you. The correction counts, but was not stored." : "Thank you.";
    at("answer-title").focus({ preventScroll: true });
  } catch (error) {
    if (about !== latest) return;
    if (at("correction").hidden) showProblem(error);
    else at("correction-problem").replaceChildren(...renderProblem(problemOf(error)));
  } finally {
    buttons.forEach((each) => { each.disabled = false; });
  }
}

// Ask.

// Yield the server-sent events of a POST response. EventSource only supports GET.
async function* readEvents(response) {
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

async function showEvents(response) {
  for await (const [name, data] of readEvents(response)) {
    if (name === "step") showStep(data);
    if (name === "problem") throw new ProblemError(data);
    if (name === "answer") return showAnswer(data);
  }
  throw new Error("The connection ended before the answer came.");
}

async function ask(event) {
  event.preventDefault();
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  showProblem(null);
  steps = [];
  at("steps").replaceChildren();
  at("steps-part").hidden = true;
  at("answer-part").hidden = true;
  at("go").disabled = true;
  at("stop").hidden = false;
  setStatus("Asking …", "running");
  const body = { question: at("question").value };
  if (caller.has_inboxes) Object.assign(body, { inbox_address: at("inbox").value.trim(), query_date: at("day").value });
  addRecent(body);
  try {
    await showEvents(await send("invoke/stream", body, signal));
  } catch (error) {
    showSteps(steps);
    setStatus(error.name === "AbortError" ? "Stopped." : "");
    if (error.name !== "AbortError") showProblem(error);
  } finally {
    at("go").disabled = false;
    at("stop").hidden = true;
  }
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = at("key").value.trim();
  if (!/^[\x21-\x7e]+$/.test(key)) { // such a key could not even be sent
    showProblem(new ProblemError({ title: "This is not a key", detail: "A key has only ASCII letters, digits and signs. Copy it again." }));
    return;
  }
  if (key !== lastKey) leaveNothing(); // this may be another caller
  store(KEY, key);
  at("key").value = "";
  loadCaller();
});
at("ask").addEventListener("submit", ask);
at("stop").addEventListener("click", () => running?.abort());
// Without success, the answer is "I don't know". If that is right, the question is unanswerable.
at("right").addEventListener("click", () => sendFeedback({ right: true, unanswerable: !latest.success }));
at("wrong").addEventListener("click", () => openCorrection(at("correction").hidden));
at("unanswerable").addEventListener("change", () => { at("known").hidden = at("unanswerable").checked; });
at("correction").addEventListener("submit", (event) => {
  event.preventDefault();
  sendFeedback(readCorrection());
});
at("cancel").addEventListener("click", () => {
  openCorrection(false);
  at("wrong").focus();
});
at("copy").addEventListener("click", copyCurl);
at("sign-out").addEventListener("click", signOut);
at("forget").addEventListener("click", () => {
  forgetRecent();
  at("question").focus();
});
at("close").addEventListener("click", () => at("source").close());
at("source").addEventListener("click", (event) => event.target === at("source") && at("source").close());
at("source").addEventListener("close", () => reading?.abort());
setToday();
loadCaller();
