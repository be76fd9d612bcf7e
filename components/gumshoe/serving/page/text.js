// Texts of the page: steps as sentences, the passage that supports an answer, and the curl command. No DOM, no state.
"use strict";

const STOP_WORDS = new Set(
  ("a an and are as at be been but by can did do does for from had has have how i in is it its me my no not of on or " +
    "our she so that the their them they this to was we were what when where which who whom why will with you your").split(" "));
const WORD = /[\p{L}\p{N}]+(?:[.,:/-]\p{N}+)*/gu;
const SENTENCE_END = /[.!?]["')\]”’]*(?=\s+[^\s\p{Ll}\p{Sc}])|\n[^\S\n]*\n/gu; // "i.e. £5" ends no sentence
const THREAD = / \(thread .*, [\d,]+ messages\)$/;
const LONGEST_PASSAGE = 320; // characters; of a longer sentence, only the best line is marked

const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const asList = (value) => [].concat(value ?? []).map(String).filter(Boolean);

// Each tool: its verb while it runs, afterwards, and if it failed; what it works on; and what came of it.
const SEARCH = ["Searching for", "Searched for", "Tried to search for"];
const READ = ["Reading", "Read", "Tried to read"];
const TOOLS = {
  search_inbox: { verbs: SEARCH, object: describeMailSearch, outcome: countMessages },
  search_by_meaning: { verbs: SEARCH, object: describeMailSearch, outcome: countMessages },
  search_documents: { verbs: SEARCH, object: ({ query }) => `“${query}”`, outcome: (result) => countHits(result, "passage") },
  read_email: { verbs: READ, object: nameMessage, objectRead: describeMessage },
  read_document: { verbs: READ, object: ({ document_id, page }) => `${namePage(page)}${document_id}`, objectRead: describeDocument },
  return_final_answer: {
    verbs: ["Answering", "Answered", "Tried to answer"],
    object: (given) => {
      const count = asList(given.message_ids ?? given.document_ids).length;
      return count ? `with ${plural(count, "source")}` : "without a source";
    },
  },
};

function describeMailSearch({ keywords, query, sender, recipient, sent_after, sent_before, one_per_thread }) {
  const filters = [[sender, "from"], [recipient, "to"], [sent_after, "since"], [sent_before, "before"]];
  const limits = filters.filter(([value]) => value).map(([value, word]) => `, ${word} ${value}`).join("");
  return `${(query ? `“${query}”` : asList(keywords).join(", ")) || "anything"}${limits}${one_per_thread ? ", one per thread" : ""}`;
}

// If no message has all keywords, one line explains it before the hits.
function countMessages(result) {
  if (!result.startsWith("No message ")) return countHits(result, "message");
  return `nothing with all of these, ${countHits(skipExplanation(result), "message")} with some`;
}

const skipExplanation = (result) => (result.startsWith("No message ") ? result.slice(result.indexOf("\n") + 1) : result);

function nameMessage({ message_id, whole_thread, page }) {
  return `${namePage(page) || (whole_thread ? "the thread of " : "")}${message_id}`;
}

const namePage = (page) => (page > 1 ? `page ${page} of ` : "");

// Long sources are read in pages; only the first one shows what it belongs to.
function describePage(result, noun) {
  const [, page, count] = result.match(/^Page (\d+) of (\d+)\n/) ?? [];
  return page && `page ${page} of ${count} of ${noun}`;
}

function countHits(result, noun) {
  const count = listHits(result).length;
  return count ? plural(count, noun) : "nothing found";
}

// Return the hits of a search. Each has a line that says what it is, a snippet, perhaps its chunk, and the id.
function listHits(result) {
  const lines = result.split("\n"), hits = [];
  for (let at = 0; at < lines.length; at += 1) {
    const place = at + (lines[at + 2]?.startsWith("  chunk: ") ? 3 : 2);
    if (!lines[place]?.startsWith("  id: ")) continue;
    hits.push({ id: lines[place].slice(6).replace(THREAD, ""), title: lines[at] });
    at = place;
  }
  return hits;
}

// Return [{ id, title }] of the messages or documents that searches listed. `handles` has the ids behind handles.
export function listFound(steps, handles) {
  const isSearch = ({ tool, result }) => Object.hasOwn(TOOLS, tool) && TOOLS[tool].outcome && result;
  const found = steps.filter(isSearch).flatMap(({ result }) => listHits(skipExplanation(result)));
  return found.map(({ id, title }) => ({ id: Object.hasOwn(handles, id) ? handles[id] : id, title }));
}

function describeMessage(result) {
  const thread = result.match(/^Thread of (\d+) messages/);
  if (thread) return `a thread of ${thread[1]} messages`;
  const page = describePage(result, "a message");
  if (page) return page;
  const [header] = result.split("\n\n", 1);
  const field = (name) => header.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2).trim();
  const sender = field("From")?.replace(/(.+) <.*>$/, "$1").replace(/^<(.*)>$/, "$1");
  return `${field("Subject") ? `“${field("Subject")}”` : "a message without a subject"}${sender ? ` from ${sender}` : ""}`;
}

function describeDocument(result) {
  const page = describePage(result, "a document");
  if (page) return page;
  const title = result.split("\n", 1)[0].trim();
  return title ? `“${title}”` : "a document without a title";
}

function describeOther(step, isRunning) {
  if (!step.tool) return "Wrote a text without calling a tool";
  const given = Object.entries(step.arguments).filter(([, value]) => value !== null);
  const words = given.map(([name, value]) => `${name} ${JSON.stringify(value)}`).join(", ");
  return `${isRunning ? "Calling" : "Called"} ${step.tool}${words && ` with ${words}`}`;
}

// Return a step as a sentence, e.g. "Searched for budget, van lease: 3 messages".
export function describeStep(step, isRunning) {
  const tool = Object.hasOwn(TOOLS, step.tool) ? TOOLS[step.tool] : null;
  if (!tool) return describeOther(step, isRunning);
  const [running, done, failed] = tool.verbs;
  const object = tool.object(step.arguments);
  if (step.result === null) return `${isRunning ? running : done} ${object}`;
  if (step.result.startsWith("Error: ")) return `${failed} ${object}: ${step.result.slice(7).split(/; |\n/, 1)[0]}`;
  if (tool.objectRead) return `${done} ${tool.objectRead(step.result)}`;
  return `${done} ${object}${tool.outcome ? `: ${tool.outcome(step.result)}` : ""}`;
}

// Return the call of a step as the model made it.
export function describeCall(step) {
  const given = Object.entries(step.arguments).filter(([, value]) => value !== null);
  return `${step.tool}(${given.map(([name, value]) => `${name}=${JSON.stringify(value)}`).join(", ")})`;
}

function findTerms(text) {
  return new Set((text.toLowerCase().match(WORD) ?? []).filter((word) => !STOP_WORDS.has(word)));
}

function weigh(term) {
  return /\p{N}/u.test(term) ? 3 : 1 + Math.min(term.length, 10) / 10;
}

// Return [start, end] of each part of a text between separators, without the spaces around it.
function split(text, from, to, separator) {
  const spans = [];
  const add = (start, end) => {
    const part = text.slice(start, end);
    const left = part.length - part.trimStart().length;
    if (part.trim()) spans.push([start + left, start + left + part.trim().length]);
  };
  let start = from;
  for (const found of text.slice(from, to).matchAll(separator)) {
    const end = from + found.index + found[0].length;
    add(start, end);
    start = end;
  }
  add(start, to);
  return spans;
}

// Return a pattern that matches an answer word for word, whatever stands between the words.
function verbatimPattern(answer) {
  const words = answer.match(/[\p{L}\p{N}]+/gu) ?? [];
  if (!words.length) return null;
  const pattern = `(?<![\\p{L}\\p{N}])${words.join("[^\\p{L}\\p{N}]{1,4}")}(?![\\p{L}\\p{N}])`;
  return new RegExp(pattern, "iu");
}

function bestSpan(text, spans, score) {
  let best = null, most = 0;
  for (const [start, end] of spans) {
    const points = score(text.slice(start, end));
    if (points > most) [best, most] = [[start, end], points];
  }
  return best;
}

// Return [start, end] of the sentence that resembles an answer most, or null if none does. A sentence that contains the
// answer word for word counts most, then numbers and rare words of the answer, and last the words of the question.
export function findPassage(text, answer, question) {
  const answerTerms = findTerms(answer), questionTerms = findTerms(question);
  const verbatim = verbatimPattern(answer);
  const score = (part) => {
    const terms = findTerms(part);
    const sum = (wanted) => [...wanted].filter((term) => terms.has(term)).reduce((total, term) => total + weigh(term), 0);
    const own = sum(answerTerms) + (verbatim?.test(part) ? 10 : 0);
    return own && own + 0.3 * sum(questionTerms);
  };
  const sentences = split(text, 0, text.length, SENTENCE_END);
  const best = bestSpan(text, sentences, score);
  if (!best || best[1] - best[0] <= LONGEST_PASSAGE) return best;
  return bestSpan(text, split(text, ...best, /\n/g), score) ?? best;
}

// Return a shell command that asks the same question. It reads the key from the variable KEY.
export function formatCurl(url, body, hasKey) {
  const quote = (word) => `'${word.replaceAll("'", "'\\''")}'`;
  const lines = [`curl -sS ${quote(url)}`, "-H 'Content-Type: application/json'"];
  if (hasKey) lines.push('-H "Authorization: Bearer $KEY"');
  return [...lines, `-d ${quote(JSON.stringify(body))}`].join(" \\\n  ");
}
