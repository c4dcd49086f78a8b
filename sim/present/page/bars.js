// Stacked bars of time and of memory, and the use of the links: each chart with its scale beneath it.
function barLabel({ titles, candidate }) {
  const chosen = candidate.layout === chosenLayout;
  return h("div", { class: "label" }, h("span", { class: chosen ? "chosen-label" : null }, titles.join(", ")),
    layoutText(candidate.layout));
}

// Where a value of [0, end] stands on a bar's track, its marks (behind the bars of each row) and their texts (beneath them all).
function barScale(end, unit, unitName) {
  const at = (value) => `${(100 * value) / (end || 1)}%`;
  const values = ticks(0, (end || 1) / unit, 7);
  const each = (make) => values.map((value) => make(`left:${at(value * unit)}`, value));
  return {
    at, marks: () => each((style) => h("i", { class: "mark", style })),
    axis: h("div", { class: "axis", "aria-hidden": "true" }, each((style, value) => h("span", { style }, `${plain(value)} ${unitName}`))),
  };
}

// rows: {label, segments [{name, value, text}], total, low, high}; all on one scale of `unit`. The interval has a line of its own
// beneath the bar: across it none would be seen on every colour.
function drawBars(id, table, rows, [unit, unitName], limit) {
  const end = Math.max(limit || 0, ...rows.map((row) => Math.max(row.high || 0, row.sum)));
  const { at, marks: marksOf, axis } = barScale(end, unit, unitName);
  const says = (row) => `${row.total}: ` + row.segments.map((s) => `${s.name} ${s.text}, ${percent(s.value / row.sum)}`).join("; ");
  byId(id).replaceChildren(...rows.flatMap((row) => [
    row.label,
    h("div", { class: "track" }, marksOf(),
      h("div", { class: "stack", role: "img", "aria-label": says(row), style: `width:${at(row.sum)}` }, row.segments.map((segment) =>
        tipped(h("div", { class: "segment" + hatched(table, segment.name), "data-name": segment.name,
          style: `flex:${segment.value} 0 0;background-color:${colour(table, segment.name)}` }),
        segment.name.replaceAll("_", " "), [["", segment.text], ["share", percent(segment.value / row.sum)]]))),
      row.high > row.low ? h("div", { class: "interval", style: `left:${at(row.low)};width:${at(row.high - row.low)}` }) : null,
      limit ? h("div", { class: "limit", style: `left:${at(limit)}` }) : null),
    h("div", { class: "total" }, row.total, row.detail ? h("span", { class: "sub" }, row.detail) : null),
  ]), h("span", { class: "label" }), axis, h("span"));
}

const sumOf = (segments) => segments.reduce((sum, segment) => sum + segment.value, 0);
const positive = (segments) => segments.filter((segment) => segment.value > 0);

function timeRow(row) {
  const { candidate } = row;
  const segments = positive(Object.entries(candidate.parts_us).map(([name, value]) => ({ name, value, text: time(value) })));
  return { label: barLabel(row), segments, sum: sumOf(segments), low: candidate.low_us, high: candidate.high_us,
    total: time(candidate.step_us) };
}

// The peak without the context, as usable_bytes limits it. Loss and layers do not work at the same time: the smaller of the two
// is no part of it.
function memoryRow(row) {
  const terms = row.candidate.memory_bytes;
  const layers = (terms.unsharded || 0) + (terms.working || 0) + (terms.attention || 0);
  const absent = ["context", ...((terms.logits || 0) > layers ? ["unsharded", "working", "attention"] : ["logits"])];
  const segments = positive(Object.keys(memoryColours).filter((name) => !absent.includes(name))
    .map((name) => ({ name, value: terms[name] || 0, text: gib(terms[name]) + " GiB" })));
  const { memory_low_bytes: low, memory_high_bytes: high, left_bytes: left } = row.candidate;
  return { label: barLabel(row), segments, sum: sumOf(segments), low, high, total: gib(terms.counted) + " GiB",
    detail: `${gib(left)} left` };
}

const namesOf = (rows) => [...new Set(rows.flatMap((row) => row.segments.map((segment) => segment.name)))];

// Links are seldom full: the scale ends at the smallest of a few round shares that holds all of them.
function drawLinks(shown) {
  const shares = shown.flatMap(({ candidate }) => [candidate.nvlink_utilisation, candidate.nic_utilisation]);
  const highest = Math.max(...shares), end = [0.1, 0.2, 0.5].find((round) => highest <= round) || 1;
  const { at, marks: marksOf, axis } = barScale(end, 0.01, "%");
  const one = (name, share) => [h("span", { class: "muted" }, name),
    h("div", { class: "rail" }, marksOf(), h("div", { class: "fill", style: `width:${at(Math.min(share, end))}` })),
    h("span", { class: "number" }, percent(share))];
  byId("link-note").textContent = `Of the GPU's NVLink port, and of its share of a NIC, over the whole step: the busiest is used `
    + `${percent(highest)} of the time.` + (end < 1 ? ` The bars end at ${percent(end, 0)}.` : "");
  byId("link-bars").replaceChildren(...shown.flatMap((row) => [
    barLabel(row), ...one("NVLink", row.candidate.nvlink_utilisation), ...one("NIC", row.candidate.nic_utilisation),
    h("div", { class: "gap" }),
  ]), h("span", { class: "label" }), h("span"), axis, h("span"));
}

function drawAllBars() {
  const shown = shownCandidates();
  if (!shown.length) {
    for (const id of ["time-bars", "memory-bars", "link-bars"]) byId(id).replaceChildren(h("p", { class: "muted" }, "Nothing fits."));
    return;
  }
  const times = shown.map(timeRow), memory = shown.map(memoryRow);
  legend("time-legend", partColours, namesOf(times));
  drawBars("time-bars", partColours, times, rulerUnit(Math.max(...times.map((row) => Math.max(row.high, row.sum)))));
  legend("memory-legend", memoryColours, namesOf(memory));
  drawBars("memory-bars", memoryColours, memory, [2 ** 30, "GiB"], shown[0].candidate.usable_bytes);
  drawLinks(shown);
  drawMemoryLeft(shown);
}

function startBars() {
  onChoice.push(drawAllBars);
  drawAllBars();
}
