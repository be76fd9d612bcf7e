"use strict";
// Data is shown as text, never as markup: use `textContent` only.
const data = (id) => JSON.parse(document.getElementById(`data-${id}`).textContent);
const at = (id) => document.getElementById(id);
const episodes = data("episodes").map((each, number) => ({ ...each, number }));
const prompts = data("prompts");
const unusable = new Set(["unparseable call", "no call", "unknown tool", "bad arguments"]);
const inputs = ["search", "show", "policy", "kind", "least", "most", "order"].map((id) => at(id) ?? { value: "" });
const oneColumn = matchMedia("(max-width: 56rem)"); // as in report.css

const filters = {
  "": () => true,
  wrong: (each) => !each.correct,
  correct: (each) => each.correct,
  changed: (each) => each.change !== null,
  gained: (each) => each.change === "gained",
  lost: (each) => each.change === "lost",
  unusable: (each) => unusable.has(each.ending),
  "gave-up": (each) => each.answer === null || each.does_not_know,
  source: (each) => each.answer !== null && !each.right_source && !each.unanswerable,
  disagreed: (each) => new Set(each.verdicts.map((verdict) => verdict.correct)).size > 1,
};

function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : noun.endsWith("ch") ? "es" : "s"}`;
}

function element(tag, text = "", className = "", ...children) {
  const made = document.createElement(tag);
  if (text !== "") made.textContent = text;
  if (className) made.className = className;
  made.append(...children);
  return made;
}

for (const each of episodes) {
  const reasons = each.verdicts.map((verdict) => verdict.why).join(" ");
  each.text = [each.scenario, each.question, each.answer, each.reference, each.detail, reasons].join(" ").toLowerCase();
  const answer = each.answer === null ? each.ending : each.answer;
  const tag = each.change ? [element("span", each.change === "gained" ? "won" : "lost", `tag ${each.change}`)] : [];
  const policy = `${each.policy} · ${count(each.turns, "turn")} · reward ${each.reward.toFixed(2)}`;
  each.item = element("li", "", each.correct ? "correct" : "", element("b", each.question),
    element("small", `${each.correct ? "✓" : "✗"} ${answer}`), element("small", policy, "", ...tag));
  each.item.setAttribute("role", "option");
  each.item.setAttribute("aria-selected", "false");
  each.item.id = `option${each.number}`;
  each.item.addEventListener("click", () => choose(each));
}

let shown = [];
let current = null;

function list() {
  const [search, show, policy, kind, least, most, order] = inputs.map((input) => input.value);
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  shown = episodes.filter((each) => filters[show](each)
    && (!policy || each.policy === policy) && (!kind || each.kind === kind)
    && (least === "" || each.reward >= Number(least)) && (most === "" || each.reward <= Number(most))
    && words.every((word) => each.text.includes(word)));
  if (order) {
    const [sign, field] = order.startsWith("-") ? [-1, order.slice(1)] : [1, order];
    shown.sort((one, other) => sign * (one[field] - other[field]) || one.number - other.number);
  }
  at("list").replaceChildren(...shown.map((each) => each.item));
  at("count").textContent = `${shown.length.toLocaleString("en")} of ${episodes.length.toLocaleString("en")}`;
}

function tokens(turn) {
  const text = element("pre");
  turn.tokens.forEach((token, place) => {
    const logprob = turn.logprobs[place];
    const piece = element("span", token);
    if (logprob !== undefined) {
      const share = Math.exp(logprob);
      piece.title = `p = ${share.toFixed(3)}`;
      const step = [0.2, 0.5, 0.8, 0.95].findIndex((bound) => share < bound);
      if (step >= 0) piece.className = `p${step}`;
    }
    text.append(piece);
  });
  return text;
}

function turnShown(turn, number, episode) {
  if (turn.origin === "prompt") {
    const whole = element("pre", prompts[episode.policy] + turn.text);
    return element("details", "", "turn", element("summary", "prompt"), whole);
  }
  if (turn.origin === "sampled") {
    const head = element("small", `turn ${number}: ${turn.more ? "continued" : "sampled"}`);
    return element("section", "", "turn sampled", head, tokens(turn));
  }
  const parts = turn.parts.map(([text, right]) => element("span", text, right ? "right" : ""));
  const found = turn.parts.some(([, right]) => right);
  const names = {
    results: "search results",
    source: "source",
    error: "error",
    several: "results of several calls",
    end: "end of the reasoning, whose budget is used up",
  };
  const head = element("small", `injected: ${names[turn.what]}`);
  if (found || turn.right) head.append(element("span", " · correct source", "mark"));
  return element("section", "", "turn injected", head, element("pre", "", turn.right ? "right" : "", ...parts));
}

function facts(each) {
  const found = element("dl");
  const add = (name, ...content) => found.append(element("dt", name), element("dd", "", "", ...content));
  add("reference", each.reference);
  add("answer", each.answer === null ? `none: ${each.ending}` : each.answer);
  for (const verdict of each.verdicts) {
    const word = element("span", verdict.correct ? "correct" : "wrong", verdict.correct ? "correct-word" : "wrong-word");
    add(verdict.judge, word, [" ", verdict.rule && `(${verdict.rule})`, verdict.why].filter(Boolean).join(" "));
  }
  if (each.detail) add("fault", each.detail);
  if (each.mistakes) add("mistakes answered", String(each.mistakes));
  const gold = new Set(each.gold);
  const called = (id) => (each.titles[id] ? `${each.titles[id]} (${id})` : id);
  add("sources", ...(each.sources.length ? each.sources.flatMap((source, place) => [place ? ", " : "",
    element("span", called(source), gold.has(source.trim().replace(/^<+|>+$/g, "")) ? "mark" : "")]) : ["none"]));
  if (each.unanswerable) add("correct source", "none: the question is unanswerable");
  else add("correct source", `${each.gold.map(called).join(", ")}: ${each.found ? "found" : "not found"}, ${each.read ? "read" : "not read"}, ${each.right_source ? "given" : "not given"}`);
  if (each.inbox) add("asked", `${each.inbox}, ${each.asked_on}`);
  const spent = each.prompt_tokens === null ? "" : `, ${each.prompt_tokens.toLocaleString("en")} prompt and ${each.sampled_tokens.toLocaleString("en")} sampled tokens`;
  add("effort", `${count(each.turns, "turn")}, ${count(each.searches, "search")} (${each.repeated_searches} repeated, ${each.empty_searches} empty), ${each.seconds.toFixed(1)} s${spent}`);
  if (each.chosen) add("chosen", each.chosen.why);
  add("reward", each.reward.toFixed(3));
  return found;
}

function scale() {
  const found = element("p", "Token probability below", "hint scale");
  found.append(...[0.2, 0.5, 0.8, 0.95].map((bound, step) => element("span", String(bound), `p${step}`)));
  return found;
}

function backToList() {
  const button = element("button", "↑ Back to the list");
  button.id = "back";
  button.addEventListener("click", focusList);
  return button;
}

function open(each) {
  if (current) current.item.setAttribute("aria-selected", "false");
  current = each;
  each.item.setAttribute("aria-selected", "true");
  at("list").setAttribute("aria-activedescendant", each.item.id);
  const tabs = element("div", "", "tabs");
  const siblings = episodes.filter((other) => other.scenario === each.scenario);
  if (siblings.length > 1) {
    for (const other of siblings) {
      const number = siblings.filter((one) => one.policy === other.policy).length > 1 ? `/${other.sample}` : "";
      const tab = element("button", `${other.correct ? "✓" : "✗"} ${other.policy}${number}`);
      tab.setAttribute("aria-pressed", String(other === each));
      tab.addEventListener("click", () => {
        open(other);
        at("episode").querySelector(".tabs [aria-pressed=true]").focus();
      });
      tabs.append(tab);
    }
  }
  let turn = 0;
  const turns = data(`e${each.number}`).map((segment) => {
    if (segment.origin === "sampled" && !segment.more) turn += 1;
    return turnShown(segment, turn, each);
  });
  const title = element("h3", each.question);
  title.tabIndex = -1;
  const pane = at("episode");
  pane.replaceChildren(backToList(), title, tabs, facts(each), scale(), ...turns);
  pane.scrollTop = 0;
  showAddress(`#${encodeURIComponent(each.scenario)}/${encodeURIComponent(each.policy)}/${each.sample}`);
}

function showAddress(hash) {
  try {
    history.replaceState(null, "", hash);
  } catch {
    // A sandboxed frame without an address, such as those of Kubeflow, does not allow it.
  }
}

// Open an episode and scroll to it. In one column it is below the list, so that the focus moves there too.
function choose(each, focus = oneColumn.matches) {
  open(each);
  at("episode").scrollIntoView({ block: oneColumn.matches ? "start" : "nearest" });
  if (focus) at("episode").querySelector("h3").focus({ preventScroll: true });
}

function focusList() {
  at("list").focus({ preventScroll: true });
  at("list").scrollIntoView({ block: "nearest" });
  if (current) current.item.scrollIntoView({ block: "nearest" });
}

function fromAddress() {
  let parts = [];
  try {
    parts = location.hash.slice(1).split("/").map(decodeURIComponent);
  } catch {
    return; // not an address of this page
  }
  const [scenario, policy, sample] = parts;
  const found = episodes.find((each) => each.scenario === scenario && (!policy || each.policy === policy)
    && (!sample || String(each.sample) === sample));
  if (found) choose(found);
}

for (const input of document.querySelectorAll(".filters :is(input, select)")) input.addEventListener("input", list);
document.querySelector(".filters").addEventListener("submit", (event) => event.preventDefault());
at("clear").addEventListener("click", () => {
  document.querySelector(".filters").reset();
  list();
});
for (const button of document.querySelectorAll("[data-show]")) {
  button.addEventListener("click", () => {
    document.querySelector(".filters").reset();
    at("show").value = button.dataset.show;
    at("policy").value = button.dataset.policy;
    list();
    at("list").scrollTop = 0;
    at("list").focus({ preventScroll: true });
    at("episodes").scrollIntoView();
    if (shown.length) open(shown[0]);
  });
}
at("list").addEventListener("keydown", (event) => {
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -shown.length, End: shown.length };
  if (event.key === "Enter" && current) choose(current, true);
  if (!(event.key in steps) || !shown.length) return;
  event.preventDefault();
  const next = shown[Math.min(shown.length - 1, Math.max(0, shown.indexOf(current) + steps[event.key]))];
  open(next);
  next.item.scrollIntoView({ block: "nearest" });
});
at("episode").addEventListener("keydown", (event) => {
  if (event.key === "Escape") focusList();
});
window.addEventListener("hashchange", fromAddress);
list();
fromAddress();
