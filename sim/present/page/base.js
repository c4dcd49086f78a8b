// What all parts of the page share: the answer, elements, numbers as people read them, colours, the tooltip, the chosen layout.
const answer = JSON.parse(document.getElementById("answer").textContent);
const question = answer.question;
const timeName = { training: "Step", prefill: "First token", decode: "Between tokens" }[question.workload.phase] || "Step";
const byId = (id) => document.getElementById(id);

// h("td", {class: "number"}, "3", otherElement): texts become text nodes, so that nothing in the data is read as markup.
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === false || value == null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null));
  return element;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// ---- numbers ----
const known = (value) => typeof value === "number" && Number.isFinite(value);
const count = (value) => (known(value) ? value.toLocaleString("en-US") : "–");
function digits3(value) {
  const size = Math.abs(value);
  if (size >= 999.5) return Math.round(value).toLocaleString("en-US");
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}
// Durations as the rule of sim/base/number_text.h has them: "812 µs", "3.21 s", "2 min 36 s", "60 h 26 min".
function wholeUnits(seconds) {
  const whole = Math.round(seconds), minutes = Math.floor((whole + 30) / 60);
  return whole >= 7200 ? `${count(Math.floor(minutes / 60))} h ${minutes % 60} min` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
}
function time(us) {
  if (!known(us)) return "–";
  if (us === 0) return "0 s";
  const size = Math.abs(us);
  if (size >= 120e6) return (us < 0 ? "-" : "") + wholeUnits(size / 1e6);
  if (size >= 999.5e3) return digits3(us / 1e6) + " s";
  return size >= 999.5 ? digits3(us / 1e3) + " ms" : digits3(us) + " µs";
}
// Of an axis, which has one unit, as a column has.
const axisTime = (us) => (us >= 7200e6 ? digits3(us / 3600e6) + " h" : us >= 120e6 ? digits3(us / 1e6) + " s" : time(us));
// "3.02 – 3.47 s", "1 min 49 s – 3 min 22 s"
function interval(low, high) {
  if (high >= 120e6) return (low === 0 ? "0" : low >= 60e6 ? wholeUnits(low / 1e6) : time(low)) + " – " + time(high);
  const [a, b] = [time(low), time(high)], unit = b.slice(b.indexOf(" "));
  return (low === 0 ? "0" : a.endsWith(unit) ? a.slice(0, -unit.length) : a) + " – " + b;
}
const gib = (bytes) => (known(bytes) ? (bytes / 2 ** 30).toFixed(1) : "–");
const percent = (share, decimals = 1) => (known(share) ? (100 * share).toFixed(decimals) + " %" : "–");
const signed = (share) => (share > 0 ? "+" : share < 0 ? "−" : "±") + percent(Math.abs(share));
const plain = (value) => (known(value) ? String(Number(value.toPrecision(6))) : String(value));

// Round numbers that cut [low, high] into about `wanted` pieces.
function ticks(low, high, wanted) {
  const raw = (high - low) / Math.max(1, wanted);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) out.push(i * step);
  return out;
}

// ---- colours: names of custom properties of style.css; report_html.cc writes partColours and kindColours ----
const memoryColours = {  // by the terms' names in the answer
  parameters: "state-1", "master copies": "state-2", gradients: "state-3", optimizer: "state-4", gathered: "gathered",
  unsharded: "unsharded", activations: "act-3", working: "act-2", attention: "attention", logits: "act-4", "kv cache": "cache",
  communicators: "rest-1", context: "rest-2", slack: "rest-3",
};
const colour = (table, name) => `var(--${table[name] || "other"})`;
const hatched = (table, name) => (table[name] === "bubble" ? " hatched" : "");
const swatch = (table, name) =>
  h("i", { class: "swatch" + hatched(table, name), style: `background-color:${colour(table, name)}` });
function legend(id, table, names) {
  const order = Object.keys(table), place = (name) => (order.includes(name) ? order.indexOf(name) : order.length);
  const sorted = [...names].sort((a, b) => place(a) - place(b));
  byId(id).replaceChildren(...sorted.map((name) => h("span", {}, swatch(table, name), name.replaceAll("_", " "))));
}

// ---- tooltip ----
function showTip(event, head, rows) {
  const tip = byId("tooltip");
  tip.replaceChildren(h("div", { class: "head" }, head),
    h("dl", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14;
  const top = event.clientY + 14 + height > innerHeight ? event.clientY - 14 - height : event.clientY + 14;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, top) + "px";
}
const hideTip = () => { byId("tooltip").hidden = true; };
const tipped = (element, head, rows) => {
  element.addEventListener("pointermove", (event) => showTip(event, head, rows));
  element.addEventListener("pointerleave", hideTip);
  return element;
};

// ---- layouts ----
// A layout's text, which may break after its commas.
const layoutText = (layout) => h("code", { class: "layout" }, layout.split(",").flatMap((field, i) => (i ? [",", h("wbr"), field] : [field])));
function layoutClass(candidate) {
  const { pp, tp, cp } = candidate.layout_fields;
  if (pp > 1) return "with PP";
  if (tp > 1 && cp > 1) return "TP + CP";
  return cp > 1 ? "pure CP" : tp > 1 ? "TP alone" : "DP alone";
}
const classColours = { "pure CP": "cp", "TP + CP": "tp-cp", "with PP": "pp", "TP alone": "tp", "DP alone": "dp" };
const candidateRows = (c) => [
  [timeName, `${time(c.step_us)} (${interval(c.low_us, c.high_us)})`], ...(known(c.ttft_us) ? [["First token", time(c.ttft_us)]] : []), ["Rank", c.rank],
  ["Its kind the fastest", percent(c.chance, 0)], ["Expected beyond the fastest", time(c.regret_us)],
  ["Tokens/s/GPU", count(Math.round(c.tokens_per_s_per_gpu))], ["MFU", percent(c.mfu)],
  ["Memory", `${gib(c.memory_bytes.counted)} of ${gib(c.usable_bytes)} GiB, ${c.fits} to fit`], ["Exposed communication", time(c.exposed_us)],
  ["Bound by", c.bound],
];

// Candidates of the bars: the chosen one, the first of the ranking, the best of each class; each once, with all its titles.
function shownCandidates() {
  const shown = new Map();
  const add = (title, candidate) => {
    const row = shown.get(candidate.layout);
    if (row) row.titles.push(title);
    else shown.set(candidate.layout, { titles: [title], candidate });
  };
  answer.best.slice(0, Math.max(1, question.top)).forEach((c) => add(`No. ${c.rank}`, c));
  for (const best of answer.classes) if (best.candidate) add(best.name, best.candidate);
  const chosen = answer.all.find((c) => c.layout === chosenLayout);
  if (chosen && !shown.has(chosen.layout)) add("chosen", chosen);
  return [...shown.values()];
}

let chosenLayout = null;
const onChoice = [];  // called after another layout was chosen
function choose(layout) {
  chosenLayout = layout === chosenLayout ? null : layout;
  for (const call of onChoice) call();
}
// Draws now and whenever the element's width changes: in the next frame, since drawing may change heights.
function keepDrawn(element, draw) {
  draw();
  let width = element.clientWidth;
  new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    requestAnimationFrame(draw);
  }).observe(element);
}
