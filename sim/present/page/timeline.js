// The best layout's timeline, a row for each rank and stream, on a canvas: what is visible is found by bisection, and bars that
// are thinner than a pixel are drawn as one, so that hundreds of thousands of them stay fluent.
const chart = { gutter: 150, ruler: 26, row: 22, bar: 16, view: [0, 1], whole: [0, 1], tracks: [], drag: null };

// Index of the first span of a track that ends behind `us`; ends never fall, since a stream is a FIFO.
function firstVisible(spans, us) {
  let low = 0, high = spans.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[middle][1] > us) high = middle;
    else low = middle + 1;
  }
  return low;
}

function rulerUnit(span) {
  if (span >= 2e6) return [1e6, "s"];
  return span >= 2e3 ? [1e3, "ms"] : [1, "µs"];
}

function drawTrack(context, track, y, x, right, colours) {
  const { spans } = track;
  const pixel = (chart.view[1] - chart.view[0]) / (right - chart.gutter);
  // What shares one pixel gets the colour of the kind that has most of it, as strong as the pixel is full.
  const sums = colours.map(() => 0);
  let shared = null;
  const flush = () => {
    if (shared === null) return;
    const most = sums.reduce((best, sum, kind) => (sum > sums[best] ? kind : best), 0);
    context.fillStyle = colours[most];
    context.globalAlpha = Math.min(1, 0.2 + sums.reduce((a, b) => a + b) / pixel);
    context.fillRect(shared, y, 1, chart.bar);
    context.globalAlpha = 1;
    sums.fill(0);
    shared = null;
  };
  for (let i = firstVisible(spans, chart.view[0]); i < spans.length && spans[i][0] < chart.view[1]; ++i) {
    const [begin, end, label, kind] = spans[i];
    const from = Math.max(chart.gutter, x(begin)), to = Math.min(right, x(end));
    if (to - from < 1.5) {
      const at = Math.floor(from);
      if (shared !== at) flush();
      shared = at;
      sums[kind] += end - begin;
      continue;
    }
    flush();
    context.fillStyle = colours[kind];
    context.fillRect(from, y, Math.max(1, to - from - 0.6), chart.bar);
    if (to - from > 44) {
      const text = answer.timeline.labels[label];
      const room = Math.floor((to - from - 10) / 6.3);
      context.fillStyle = colours.text(colours[kind]);
      context.fillText(text.length > room ? text.slice(0, room - 1) + "…" : text, from + 5, y + chart.bar / 2 + 0.5);
    }
  }
  flush();
}

// Black or white, whichever stands out from a colour (#rrggbb).
function textOn(background) {
  const [r, g, b] = [1, 3, 5].map((i) => (parseInt(background.slice(i, i + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.3 ? "#111417" : "#ffffff";
}

function drawRuler(context, x, right, height, style) {
  const [low, high] = chart.view, [unit, name] = rulerUnit(high - low);
  const marksAt = ticks(low / unit, high / unit, (right - chart.gutter) / 90);
  const decimals = marksAt.length > 1 ? Math.max(0, -Math.floor(Math.log10(marksAt[1] - marksAt[0]) + 1e-9)) : 0;
  context.textAlign = "center";
  for (const mark of marksAt) {
    const at = Math.round(x(mark * unit)) + 0.5;
    context.strokeStyle = style("--line");
    context.beginPath();
    context.moveTo(at, chart.ruler - 5);
    context.lineTo(at, height);
    context.stroke();
    context.fillStyle = style("--muted");
    if (at > chart.gutter + 16 && at < right - 24) context.fillText(`${mark.toFixed(decimals)} ${name}`, at, 11);
  }
  context.textAlign = "start";
}

function drawTimeline() {
  const canvas = byId("timeline-canvas"), width = Math.max(400, canvas.parentElement.clientWidth);
  const height = chart.ruler + chart.tracks.length * chart.row + 8, ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + "px";
  }
  const properties = getComputedStyle(document.documentElement);
  const style = (name) => properties.getPropertyValue(name).trim();
  const context = canvas.getContext("2d"), right = width - 8, [low, high] = chart.view;
  const x = (us) => chart.gutter + ((us - low) / (high - low)) * (right - chart.gutter);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = `11.5px ${getComputedStyle(document.body).fontFamily}`;
  context.textBaseline = "middle";
  drawRuler(context, x, right, height, style);
  const colours = answer.timeline.kinds.map((kind) => style("--" + (kindColours[kind] || "other")));
  const contrast = new Map(colours.map((background) => [background, textOn(background)]));
  colours.text = (background) => contrast.get(background);
  chart.tracks.forEach((track, i) => {
    const y = chart.ruler + i * chart.row + 3, first = !i || chart.tracks[i - 1].rank !== track.rank;
    if (first && i) {
      context.fillStyle = style("--line");
      context.fillRect(0, y - 3, width, 1);
    }
    context.fillStyle = style("--ink");
    if (first) context.fillText(`rank ${track.rank}`, 10, y + chart.bar / 2);
    context.fillStyle = style("--muted");
    context.fillText(track.stream.slice(0, 13), 72, y + chart.bar / 2);
    drawTrack(context, track, y, x, right, colours);
  });
  if (chart.drag?.ruler) {
    context.fillStyle = style("--accent");
    context.globalAlpha = 0.18;
    context.fillRect(Math.min(chart.drag.from, chart.drag.to), 0, Math.abs(chart.drag.to - chart.drag.from), height);
    context.globalAlpha = 1;
  }
  byId("timeline-view").textContent = interval(low, high);
  canvas.dataset.beginUs = low;
  canvas.dataset.endUs = high;
}

let timelineFrame = 0;
function drawTimelineSoon() {
  cancelAnimationFrame(timelineFrame);
  timelineFrame = requestAnimationFrame(drawTimeline);
}

function setView(low, high) {
  const [first, last] = chart.whole;
  const span = Math.min(last - first, Math.max(high - low, 0.01));
  const begin = Math.min(Math.max(low, first), last - span);
  chart.view = [begin, begin + span];
  drawTimelineSoon();
}
function zoom(factor, around) {
  const [low, high] = chart.view, centre = around ?? (low + high) / 2;
  setView(centre - (centre - low) * factor, centre + (high - centre) * factor);
}
const pan = (share) => setView(chart.view[0] + share * (chart.view[1] - chart.view[0]), chart.view[1] + share * (chart.view[1] - chart.view[0]));

function timeAt(px) {
  const width = byId("timeline-canvas").clientWidth - 8 - chart.gutter;
  return chart.view[0] + ((px - chart.gutter) / width) * (chart.view[1] - chart.view[0]);
}

function tipAt(event) {
  const track = chart.tracks[Math.floor((event.offsetY - chart.ruler) / chart.row)];
  const us = timeAt(event.offsetX), reach = (chart.view[1] - chart.view[0]) / byId("timeline-canvas").clientWidth;
  if (!track || event.offsetY < chart.ruler || event.offsetX < chart.gutter) return hideTip();
  const span = track.spans[firstVisible(track.spans, us - reach)];
  if (!span || span[0] > us + reach) return hideTip();
  showTip(event, answer.timeline.labels[span[2]], [
    ["Kind", answer.timeline.kinds[span[3]]], ["Takes", time(span[1] - span[0])],
    ["From", time(span[0])], ["To", time(span[1])], ["On", `rank ${track.rank}, ${track.stream}`],
  ]);
}

function onDrag(event) {
  const { drag } = chart;
  if (!drag) return tipAt(event);
  if (drag.ruler) {
    drag.to = event.offsetX;
    return drawTimelineSoon();
  }
  const us = timeAt(event.offsetX) - timeAt(drag.from);
  drag.from = event.offsetX;
  setView(chart.view[0] - us, chart.view[1] - us);
}

function listenToTimeline(canvas) {
  canvas.addEventListener("pointerdown", (event) => {
    chart.drag = { ruler: event.offsetY < chart.ruler, from: event.offsetX, to: event.offsetX };
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("dragging");
    hideTip();
  });
  canvas.addEventListener("pointermove", onDrag);
  const release = () => {
    const { drag } = chart;
    chart.drag = null;
    canvas.classList.remove("dragging");
    if (drag?.ruler && Math.abs(drag.to - drag.from) > 4) setView(timeAt(Math.min(drag.from, drag.to)), timeAt(Math.max(drag.from, drag.to)));
    else drawTimelineSoon();
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", (event) => zoom(0.4, timeAt(event.offsetX)));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;  // the page scrolls
    event.preventDefault();
    if (event.shiftKey) pan(Math.sign(event.deltaX || event.deltaY) * 0.1);
    else zoom(Math.exp(event.deltaY * 0.002), timeAt(event.offsetX));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const act = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => setView(...chart.whole),
      ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2) }[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  });
}

// What the picture says, for who does not see it. Spans of a stream do not overlap.
function drawBusy() {
  const whole = chart.whole[1] - chart.whole[0];
  byId("busy").append(tableOf(`Of ${time(whole)}`,
    [numeric("Rank"), "Stream", numeric("Operations"), numeric("Busy"), numeric("Share")],
    chart.tracks.map(({ rank, stream, spans }) => {
      const busy = spans.reduce((sum, [begin, end]) => sum + end - begin, 0);
      return [String(rank), stream, count(spans.length), time(busy), percent(busy / whole)];
    })));
}

function startTimeline() {
  const compute = (track) => (track.stream === "compute" ? 0 : 1);
  chart.tracks = answer.timeline.tracks.sort((a, b) => a.rank - b.rank || compute(a) - compute(b));
  if (!chart.tracks.length) {
    byId("timeline").querySelector(".timeline-box").replaceChildren(h("p", { class: "muted" }, "No layout was replayed."));
    byId("busy").remove();
    return;
  }
  let first = Infinity, last = -Infinity;
  for (const track of chart.tracks) {
    first = Math.min(first, track.spans[0][0]);
    last = Math.max(last, track.spans.at(-1)[1]);
  }
  chart.whole = [Math.min(0, first), last > first ? last : first + 1];
  chart.view = [...chart.whole];
  legend("timeline-legend", kindColours, answer.timeline.kinds);
  drawBusy();
  byId("zoom-in").addEventListener("click", () => zoom(0.5));
  byId("zoom-out").addEventListener("click", () => zoom(2));
  byId("zoom-all").addEventListener("click", () => setView(...chart.whole));
  listenToTimeline(byId("timeline-canvas"));
  keepDrawn(byId("timeline-canvas").parentElement, drawTimeline);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawTimeline);
}
