"use strict";
// Draw each chart with uPlot. All charts show the same steps, and a pointer on one of them shows its step in all.
const { steps, charts } = JSON.parse(document.getElementById("data-charts").textContent);
const at = (id) => document.getElementById(id);
const styles = getComputedStyle(document.documentElement);
const color = (name, alpha = "") => () => styles.getPropertyValue(name).trim() + alpha;
const first = steps[0];
const last = steps[steps.length - 1];
const OPACITY = ["26", "40"]; // of bands, the widest first
const HEIGHT = 240; // pixels
const INCREMENTS = [...Array(9).keys()].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power)); // of steps
const plots = [];

function element(tag, text = "", className = "", ...children) {
  const made = document.createElement(tag);
  if (text !== "") made.textContent = text;
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function format(value, chart) {
  if (value === null || value === undefined) return "–";
  if (chart.share) return `${(100 * value).toFixed(1)}%`;
  return Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });
}

// Each item of a legend stands for one or two rows of uPlot's data: a line, or the ends of a band.
function items(chart) {
  let row = 1;
  const bands = chart.bands.map((band) => ({ ...band, rows: [row++, row++], key: "c0" }));
  const lines = chart.lines.map((line, number) => ({ ...line, rows: [row++], key: `c${number % 6}` }));
  return [...bands, ...lines];
}

function seriesOf(item) {
  const stroke = color(`--${item.key}`);
  if (item.values === undefined) {
    const isPoint = item.low.filter((each) => each !== null).length === 1;
    const end = { stroke: "transparent", points: { stroke, show: isPoint } };
    return [end, end];
  }
  const points = { stroke, fill: stroke, size: item.sparse ? 8 : 5, ...(item.sparse ? { show: true } : {}) };
  return [{ stroke, width: 2, spanGaps: true, points }];
}

function valueRange(chart) {
  return (_, low, high) => {
    if (low === null) return [chart.low ?? 0, chart.high ?? 1];
    const pad = (high - low || Math.abs(high) || 1) * 0.08;
    return [chart.low ?? low - pad, chart.high ?? high + pad];
  };
}

function stepRange(_, low, high) {
  const pad = (high - low) * 0.02 || 0.5;
  return [low - pad, high + pad];
}

function axesOf(chart) {
  const tick = chart.share
    ? (value) => `${Number((100 * value).toFixed(4))}%`
    : (value) => value.toLocaleString("en", { maximumSignificantDigits: 6 });
  const axis = {
    stroke: color("--soft"),
    grid: { stroke: color("--line"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
  };
  const widest = (_, texts) => Math.max(...(texts ?? [""]).map((text) => text.length)) * 7 + 14;
  return [
    { ...axis, incrs: INCREMENTS, size: 28, values: (_, splits) => splits.map((step) => step.toLocaleString("en")) },
    { ...axis, size: widest, values: (_, splits) => splits.map(tick) },
  ];
}

function optionsOf(chart, width) {
  const fills = chart.bands.map((_, number) => color("--c0", OPACITY[number]));
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    padding: [8, 12, 0, 0],
    scales: { x: { time: false, range: stepRange }, y: { range: valueRange(chart) } },
    axes: axesOf(chart),
    series: [{}, ...items(chart).flatMap(seriesOf)],
    bands: fills.map((fill, number) => ({ series: [2 * number + 2, 2 * number + 1], fill })),
    cursor: {
      y: false,
      sync: { key: "run" },
      drag: { x: true, y: false, setScale: false },
      bind: { dblclick: () => () => zoom(first, last) },
    },
    hooks: { setSelect: [zoomToSelection], setCursor: [showValues] },
  };
}

function draw(chart, figure) {
  const place = figure.querySelector(".chart");
  const data = [steps, ...items(chart).flatMap((item) => (item.values ? [item.values] : [item.low, item.high]))];
  const plot = new uPlot(optionsOf(chart, place.clientWidth), data, place);
  plot.chart = chart;
  plot.values = [];
  plots.push(plot);
  place.setAttribute("aria-label", `${chart.title}, ${chart.unit}, steps ${first} to ${last}`);
  new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place);
  for (const item of items(chart)) figure.querySelector(".legend").append(legendItem(plot, item));
  const details = figure.querySelector("details");
  details.addEventListener("toggle", () => details.append(table(plot)), { once: true });
  showValues(plot);
}

function legendItem(plot, item) {
  const value = element("b");
  plot.values.push([item, value]);
  const key = element("i", "", `key ${item.key} ${item.values ? "" : item.label.split(" ")[0]}`);
  const button = element("button", "", "", key, item.label, value);
  button.type = "button";
  button.setAttribute("aria-pressed", "true");
  button.addEventListener("click", () => {
    const show = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", String(show));
    for (const row of item.rows) plot.setSeries(row, { show });
  });
  return button;
}

function textAt(item, index, chart) {
  if (item.values || item.low[index] === null) return format((item.values ?? item.low)[index], chart);
  return `${format(item.low[index], chart)} to ${format(item.high[index], chart)}`;
}

// Show the values of the step under the pointer, or those of the last step of each line.
function showValues(plot) {
  const index = plot.cursor.idx ?? null;
  for (const [item, value] of plot.values ?? []) {
    const known = item.values ?? item.low;
    value.textContent = textAt(item, index ?? known.findLastIndex((each) => each !== null), plot.chart);
  }
  at("at").textContent = index === null ? "last step" : `step ${steps[index].toLocaleString("en")}`;
}

function table(plot) {
  const shown = items(plot.chart);
  const cell = (tag, text, scope = "") => Object.assign(element(tag, text), scope && { scope });
  const labels = ["Step", ...shown.map((item) => item.label)];
  const head = element("tr", "", "", ...labels.map((label) => cell("th", label, "col")));
  const known = [...steps.keys()].filter((index) => shown.some((item) => (item.values ?? item.low)[index] !== null));
  const rows = known.map((index) => element("tr", "", "", cell("th", steps[index].toLocaleString("en"), "row"),
    ...shown.map((item) => cell("td", textAt(item, index, plot.chart)))));
  const whole = element("table", "", "", element("thead", "", "", head), element("tbody", "", "", ...rows));
  const region = element("div", "", "values", whole);
  region.tabIndex = 0;
  region.setAttribute("role", "region");
  region.setAttribute("aria-label", `Values: ${plot.chart.title}`);
  return region;
}

function zoom(low, high) {
  const [from, to] = [Math.max(first, Math.min(low, high)), Math.min(last, Math.max(low, high))];
  if (from > to) return;
  for (const plot of plots) plot.setScale("x", { min: from, max: to });
  at("first").value = from;
  at("last").value = to;
}

function numberIn(id, otherwise) {
  const found = at(id).valueAsNumber;
  return Number.isNaN(found) ? otherwise : Math.round(found);
}

function zoomToSelection(plot) {
  const { left, width } = plot.select;
  if (!width) return;
  plot.setSelect({ left: 0, width: 0 }, false);
  const [low, high] = [left, left + width].map((place) => plot.posToVal(place, "x"));
  if (Math.ceil(low) <= Math.floor(high)) zoom(Math.ceil(low), Math.floor(high));
}

if (charts.length) {
  document.querySelector(".zoom").hidden = first === last;
  const figures = document.querySelectorAll("figure");
  charts.forEach((chart, number) => draw(chart, figures[number]));
  zoom(first, last);
  for (const id of ["first", "last"]) {
    Object.assign(at(id), { min: first, max: last });
    at(id).addEventListener("change", () => zoom(numberIn("first", first), numberIn("last", last)));
  }
  document.querySelector(".zoom").addEventListener("submit", (event) => event.preventDefault());
  document.querySelector(".zoom").addEventListener("reset", () => setTimeout(zoom, 0, first, last));
  const redraw = () => plots.forEach((plot) => plot.redraw(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}
