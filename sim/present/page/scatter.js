// Time against memory, with the layouts that nothing beats in both, and what a GPU may use.
const marks = {  // path of a mark around (0, 0), by class: shapes differ as well as colours
  "pure CP": "m-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
  "TP + CP": "m-3.6,-3.6h7.2v7.2h-7.2z",
  "with PP": "m0,-4.6l4.4,8h-8.8z",
  "TP alone": "m0,-4.8l4.8,4.8l-4.8,4.8l-4.8,-4.8z",
  "DP alone": "m0,4.6l4.4,-8h-8.8z",
};
const gibOf = (candidate) => candidate.memory_bytes.counted / 2 ** 30;

function paretoFront(candidates) {
  const front = [];
  for (const c of [...candidates].sort((a, b) => gibOf(a) - gibOf(b) || a.step_us - b.step_us)) {
    if (!front.length || c.step_us < front.at(-1).step_us) front.push(c);
  }
  return front;
}

// What the picture says, for who does not see it.
function scatterText() {
  const front = paretoFront(answer.all);
  return `Time against memory of ${count(answer.all.length)} layouts. The Pareto front: `
    + front.map((c) => `${gibOf(c).toFixed(1)} GiB, ${time(c.step_us)}, ${c.layout}`).join("; ");
}

// Maps [low, high] to pixels.
function scale(low, high, from, to, log) {
  const f = log ? Math.log : (value) => value;
  const map = (value) => from + ((f(value) - f(low)) / (f(high) - f(low) || 1)) * (to - from);
  map.ticks = !log ? ticks(low, high, Math.min(6, Math.abs(to - from) / 60))
    : [...Array(40).keys()].flatMap((i) => [1, 2, 5].map((d) => d * 10 ** (i - 20))).filter((v) => v >= low && v <= high);
  return map;
}

function drawScatter() {
  const box = byId("scatter");
  if (!answer.all.length) return box.replaceChildren(h("p", { class: "muted" }, "No layout was replayed."));
  const width = Math.max(280, box.clientWidth), height = 412, left = 74, right = 24, top = 28, bottom = 46;
  const limit = answer.all[0].usable_bytes / 2 ** 30;
  const xs = answer.all.map(gibOf), ys = answer.all.map((c) => c.step_us);
  const lowest = (values) => values.reduce((a, b) => Math.min(a, b)), highest = (values) => values.reduce((a, b) => Math.max(a, b));
  const x0 = Math.min(lowest(xs), limit), x1 = Math.max(highest(xs), limit), pad = (x1 - x0 || 1) * 0.05;
  const y0 = lowest(ys), y1 = highest(ys);
  const x = scale(Math.max(0, x0 - pad), x1 + pad, left, width - right, false);
  const log = y0 > 0 && y1 / y0 > 6;  // far apart
  const y = scale(log ? y0 * 0.9 : y0 - (y1 - y0 || y1) * 0.08, y1 * 1.04, height - bottom, top, log);

  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": scatterText() });
  for (const tick of x.ticks) {
    picture.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: height - bottom }),
      svg("text", { x: x(tick), y: height - bottom + 18, "text-anchor": "middle" }, plain(tick)));
  }
  for (const tick of y.ticks) {
    picture.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }),
      svg("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, axisTime(tick)));
  }
  picture.append(
    svg("text", { x: width - right, y: height - 8, "text-anchor": "end" }, "memory of the fullest GPU, GiB" + (log ? "; time is logarithmic" : "")),
    svg("text", { x: left - 8, y: 13, "text-anchor": "end" }, timeName),
    svg("rect", { class: "over", x: x(limit), y: top, width: Math.max(0, width - right - x(limit)), height: height - bottom - top }),
    svg("line", { class: "limit", x1: x(limit), x2: x(limit), y1: top, y2: height - bottom }),
    svg("text", { class: "limit-text", x: x(limit) + 4, y: top - 8, "text-anchor": "end" }, `usable: ${limit.toFixed(1)} GiB`));

  const front = paretoFront(answer.all);
  picture.append(svg("path", { class: "front", id: "pareto-front",
    d: front.map((c, i) => (i ? `H${x(gibOf(c))}V${y(c.step_us)}` : `M${x(gibOf(c))},${y(c.step_us)}`)).join("") }));
  // One path for all marks of a class: thousands of them stay fast.
  const classes = Object.keys(marks).filter((name) => answer.all.some((c) => layoutClass(c) === name));
  for (const name of classes) {
    const d = answer.all.filter((c) => layoutClass(c) === name)
      .map((c) => `M${x(gibOf(c)).toFixed(1)},${y(c.step_us).toFixed(1)}${marks[name]}`).join("");
    picture.append(svg("path", { d, class: "marks", fill: colour(classColours, name), "fill-opacity": 0.8, stroke: "var(--panel)", "stroke-width": 0.7 }));
  }
  const ring = (c, attributes) => svg("circle", { class: "ring", cx: x(gibOf(c)), cy: y(c.step_us), r: 8, ...attributes });
  const best = answer.best[0] || answer.all[0];
  const beyond = x(gibOf(best)) > width - 140;
  picture.append(ring(best), svg("text", { class: "strong", x: x(gibOf(best)) + (beyond ? -13 : 13), y: y(best.step_us) + 4,
    "text-anchor": beyond ? "end" : "start" }, "best"));
  const chosen = answer.all.find((c) => c.layout === chosenLayout);
  if (chosen) picture.append(ring(chosen, { style: "stroke:var(--accent)" }));
  const pointer = svg("circle", { class: "ring", r: 7, visibility: "hidden" });
  picture.append(pointer);

  let near = null;
  picture.addEventListener("pointermove", (event) => {
    const frame = picture.getBoundingClientRect(), unit = width / frame.width;
    const px = (event.clientX - frame.left) * unit, py = (event.clientY - frame.top) * unit;
    let distance = 24 ** 2;
    near = null;
    for (const c of answer.all) {
      const d = (x(gibOf(c)) - px) ** 2 + (y(c.step_us) - py) ** 2;
      if (d < distance) [near, distance] = [c, d];
    }
    pointer.setAttribute("visibility", near ? "visible" : "hidden");
    picture.style.cursor = near ? "pointer" : "default";
    if (!near) return hideTip();
    pointer.setAttribute("cx", x(gibOf(near)));
    pointer.setAttribute("cy", y(near.step_us));
    showTip(event, near.layout, candidateRows(near));
  });
  picture.addEventListener("pointerleave", () => {
    pointer.setAttribute("visibility", "hidden");
    hideTip();
  });
  picture.addEventListener("click", () => near && choose(near.layout));
  box.replaceChildren(picture);
  byId("scatter-legend").replaceChildren(
    ...classes.map((name) => h("span", {}, svg("svg", { width: 12, height: 12, viewBox: "-6 -6 12 12" },
      svg("path", { d: "M0,0" + marks[name], fill: colour(classColours, name) })), name)),
    h("span", {}, svg("svg", { width: 22, height: 12 }, svg("path", { class: "front", d: "M0,3H11V9H22" })), "Pareto front"));
}

function drawFront() {
  if (!answer.all.length) return byId("front").remove();
  byId("front").append(tableOf("The Pareto front, from little memory to little time",
    ["Layout", "Class", numeric("Memory, GiB"), numeric(timeName)],
    paretoFront(answer.all).map((c) => [layoutText(c.layout), layoutClass(c), gib(c.memory_bytes.counted), time(c.step_us)])));
}

function startScatter() {
  onChoice.push(drawScatter);
  drawFront();
  keepDrawn(byId("scatter"), drawScatter);
}
