// Stacked bars of time and of memory, and the use of the links.
function barLabel({ titles, candidate }) {
  const chosen = candidate.layout === chosenLayout;
  return h("div", { class: "label" }, h("span", { class: chosen ? "chosen-label" : null }, titles.join(", ")),
    layoutText(candidate.layout));
}

// rows: {label, segments [{name, value, text}], total, low, high}; all on one scale.
function drawBars(id, table, rows, limit) {
  const end = Math.max(limit || 0, ...rows.map((row) => Math.max(row.high || 0, row.sum)));
  const at = (value) => `${(100 * value) / (end || 1)}%`;
  byId(id).replaceChildren(...rows.flatMap((row) => [
    row.label,
    h("div", { class: "track" },
      h("div", { class: "stack", style: `width:${at(row.sum)}` }, row.segments.map((segment) =>
        tipped(h("div", { class: "segment" + hatched(table, segment.name), "data-name": segment.name,
          style: `flex:${segment.value} 0 0;background-color:${colour(table, segment.name)}` }),
        segment.name.replaceAll("_", " "), [["", segment.text], ["share", percent(segment.value / row.sum)]]))),
      row.high > row.low ? h("div", { class: "interval", style: `left:${at(row.low)};width:${at(row.high - row.low)}` }) : null,
      limit ? h("div", { class: "limit", style: `left:${at(limit)}` }) : null),
    h("div", { class: "total" }, row.total),
  ]));
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
  return { label: barLabel(row), segments, sum: sumOf(segments), total: gib(terms.counted) + " GiB" };
}

const namesOf = (rows) => [...new Set(rows.flatMap((row) => row.segments.map((segment) => segment.name)))];

function drawLinks(shown) {
  const one = (name, share, colourName) => {
    const bar = h("div", { class: "rail" },
      h("div", { class: "fill", style: `width:${Math.min(100, 100 * share)}%;background:var(--${colourName})` }));
    return [h("span", { class: "muted" }, name), bar, h("span", { class: "number" }, percent(share))];
  };
  byId("link-bars").replaceChildren(...shown.flatMap((row) => [
    barLabel(row), ...one("NVLink", row.candidate.nvlink_utilisation, "rest-1"),
    ...one("NIC", row.candidate.nic_utilisation, "rest-2"), h("div", { class: "gap" }),
  ]));
}

function drawAllBars() {
  const shown = shownCandidates();
  if (!shown.length) {
    for (const id of ["time-bars", "memory-bars", "link-bars"]) byId(id).replaceChildren(h("p", { class: "muted" }, "Nothing fits."));
    return;
  }
  const times = shown.map(timeRow), memory = shown.map(memoryRow);
  legend("time-legend", partColours, namesOf(times));
  drawBars("time-bars", partColours, times);
  legend("memory-legend", memoryColours, namesOf(memory));
  drawBars("memory-bars", memoryColours, memory, shown[0].candidate.usable_bytes);
  drawLinks(shown);
}

function startBars() {
  onChoice.push(drawAllBars);
  drawAllBars();
}
