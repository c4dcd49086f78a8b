// The parts that stay as they are: figures, warnings, next command, classes, published rows, counts, inputs.
const facts = (rows) => h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
const tableOf = (caption, titles, rows) => h("div", { class: "scroll" }, h("table", {}, h("caption", {}, caption),
  h("thead", {}, h("tr", {}, titles.map((t) => h("th", { class: t.number ? "number" : null, scope: "col" }, t.title ?? t)))),
  h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, i) =>
    h("td", { class: titles[i].number ? "number" : titles[i].class }, cell)))))));

function drawFigures() {
  const { model, workload, cluster, software } = question;
  byId("kicker").textContent = `cpsim plan: ${workload.phase} of ${model.name} on ${cluster.name}, software profile ${software.name}, `
    + `products in ${workload.linear_dtype}`;
  const best = answer.best[0];
  if (!best) return byId("figures").remove();
  const figure = (name, value, detail) => h("div", { class: "figure" }, h("div", { class: "name" }, name),
    h("div", { class: /^\d/.test(value) ? "value" : "value words" }, value), h("div", { class: "detail" }, detail));
  byId("figures").replaceChildren(
    figure(timeName, time(best.step_us), interval(best.low_us, best.high_us)),
    ...(known(best.ttft_us) ? [figure("First token", time(best.ttft_us),
      workload.aggregated ? `of requests that come ${workload.aggregated}` : "the prompts of all requests read at once")] : []),
    figure("Tokens/s/GPU", count(Math.round(best.tokens_per_s_per_gpu)), `${count(best.layout_fields.gpus)} of ${count(cluster.gpus)} GPUs`),
    figure("MFU", percent(best.mfu), "of the peak of all GPUs"),
    figure("Memory", `${gib(best.memory_bytes.counted)} GiB`, `of ${gib(best.usable_bytes)} GiB usable`),
    figure("Memory left", `${gib(best.left_bytes)} GiB`,
      `${gib(best.memory_low_bytes)} to ${gib(best.memory_high_bytes)} GiB needed: ${best.fits} to fit`),
    figure("Exposed transfers", time(best.exposed_us), `${percent(best.exposed_us / best.step_us)} of the time`),
    figure("Bound by", best.bound, answer.run_command ? "cprun train makes its steps in small" : "cprun runs its attention alone"));
}

// Selected too, for browsers that do not let a page from a file copy.
async function copy(text, button) {
  getSelection().selectAllChildren(byId("next-command"));
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    button.textContent = "Press Ctrl+C";
    return;
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

function drawCalls() {
  if (answer.warnings.length) {
    byId("warnings").append(h("div", { class: "warning", role: "note" },
      answer.warnings.length > 1 ? h("ul", {}, answer.warnings.map((text) => h("li", {}, text))) : answer.warnings[0]));
  }
  if (!answer.next_command) return;
  const button = h("button", { type: "button", onclick: () => copy(answer.next_command, button) }, "Copy");
  byId("next").append(h("div", { class: "command" }, h("span", { class: "muted" }, "Next"),
    h("code", { id: "next-command" }, answer.next_command), button));
}

function drawClasses() {
  if (!answer.classes.length) return;
  const rows = answer.classes.map(({ name, candidate, why }) =>
    [name, candidate ? layoutText(candidate.layout) : "–", candidate ? time(candidate.step_us) : "–", why]);
  byId("classes").append(h("h3", {}, "Best of each class, against the best of all"),
    tableOf("Each class by its best layout", ["Class", "Layout", { title: timeName, number: true }, "Difference"], rows));
}

const numeric = (title) => ({ title, number: true });
const candidateOf = (layout) => answer.all.find((candidate) => candidate.layout === layout);
const slower = (candidate, best) => signed(candidate.step_us / best.step_us - 1);

// Of the layouts that the bars show.
function drawMemoryLeft(shown) {
  const rows = shown.map(({ titles, candidate: c }) => [titles.join(", "), gib(c.memory_bytes.counted),
    `${gib(c.memory_low_bytes)} – ${gib(c.memory_high_bytes)}`, gib(c.left_bytes), c.fits]);
  byId("memory-left").replaceChildren(h("h3", {}, "Memory left"),
    tableOf(`GiB of the fullest GPU, of ${gib(shown[0].candidate.usable_bytes)} that it may use`,
      ["Layout", numeric("Predicted"), numeric("May be needed"), numeric("Left"), "To fit"], rows));
}

// The next layouts on the front that need less memory than the best: what remains when the best does not fit after all.
function smallerLayouts(best) {
  return paretoFront(answer.all).filter((c) => gibOf(c) < gibOf(best)).reverse().slice(0, 3);
}

function drawDoubts() {
  const best = answer.best[0], box = byId("doubts-text");
  if (!best) return box.append(h("p", { class: "muted" }, "Nothing fits."));
  box.append(h("p", {}, `${percent(best.chance)} that the best layout, or one of its degrees and strategy, is the fastest of all; it is `
    + `expected to take ${time(best.regret_us)} (${percent(best.regret_us / best.step_us)}) longer than whichever is. Intervals share most `
    + "of their errors, so that layouts are told apart better than their widths suggest."));

  const trying = answer.worth_trying.map(candidateOf).filter((c) => c && c.layout !== best.layout);
  box.append(h("h3", {}, "If another layout is faster"), trying.length
    ? tableOf("Worth trying beside the best: with it, nine times in ten, the fastest or one of its kind is among them",
      ["Layout", numeric(timeName), numeric("Than the best"), numeric("Its kind the fastest"), numeric("Memory, GiB"), "To fit"],
      trying.slice(0, 8).map((c) => [layoutText(c.layout), time(c.step_us), slower(c, best), percent(c.chance),
        gib(c.memory_bytes.counted), c.fits]))
    : h("p", { class: "muted" }, "Nothing else is worth trying."));
  if (trying.length > 8) {
    box.append(h("p", { class: "muted" }, `${count(trying.length - 8)} more are in the field worth_trying of the JSON answer.`));
  }

  const worths = [["attention of a layer, by each strategy", answer.strategies_worth_us],
    ...answer.worths.map(({ rate, us }) => [rate, us])]
    .filter(([, us]) => us > 1e-4 * best.step_us).sort((a, b) => b[1] - a[1]).slice(0, 6);
  box.append(h("h3", {}, "If a measurement says otherwise"), worths.length
    ? tableOf("What each measurement is expected to save", ["Measured", numeric(`Saved, of ${timeName.toLowerCase()}`), numeric("Share")],
      worths.map(([what, us]) => [what, time(us), percent(us / best.step_us, 2)]))
    : h("p", { class: "muted" }, "No measurement is expected to save more than 0.01 % of the time."));

  const smaller = smallerLayouts(best);
  box.append(h("h3", {}, "If memory runs short"),
    h("p", {}, `${gib(best.left_bytes)} GiB are left, and the best layout ${best.fits === "likely" ? "likely fits" : "is unlikely to fit"}: `
      + `runs that were measured point to ${gib(best.memory_low_bytes)} to ${gib(best.memory_high_bytes)} GiB.`),
    smaller.length
      ? tableOf("The fastest with less memory", ["Layout", numeric("Memory, GiB"), numeric(timeName), numeric("Than the best")],
        smaller.map((c) => [layoutText(c.layout), gib(c.memory_bytes.counted), time(c.step_us), slower(c, best)]))
      : h("p", { class: "muted" }, "No layout that was replayed needs less."));
}

function errorBar(error, most) {
  const width = Math.min(50, (50 * Math.abs(error)) / most);
  return h("span", { class: "off" }, h("span", { class: "zero" }),
    h("span", { class: "bar", style: `width:${width}%;left:${error < 0 ? 50 - width : 50}%` }));
}

function drawPublished() {
  const box = byId("published-table"), { nearest, published } = answer;
  if (nearest) {
    box.append(h("p", {}, "Nearest to this question: ", h("strong", {}, nearest.what), ` (${nearest.source}): ${nearest.metric} `,
      `measured ${plain(nearest.measured)}, predicted ${plain(nearest.predicted)}, `, h("strong", {}, signed(nearest.error)), " in time",
      nearest.unscored ? `; not scored: ${nearest.unscored}.` : "."));
  } else {
    box.append(h("p", {}, `No step of ${answer.question.workload.phase} was ever compared with a measurement.`));
  }
  if (!published.length) return box.append(h("p", { class: "muted" }, "No published measurement can be predicted for this question."));
  const most = Math.max(0.1, ...published.map((row) => Math.abs(row.error) || 0));
  const scored = published.filter((row) => !row.unscored && !row.in_sample);
  const sizes = scored.map((row) => Math.abs(row.error)).filter(known).sort((a, b) => a - b);
  const summary = sizes.length ? `median error ${percent(sizes[sizes.length >> 1])}, largest ${percent(sizes.at(-1))}. ` : "";
  box.append(h("p", { class: "note" }, `${count(published.length)} rows, ${count(sizes.length)} of them scored: ${summary}`
    + "Errors are of the time: left of the mark, predicted faster than measured."),
    tableOf("Measured by others, and predicted", ["Source", "What", "Metric", { title: "Measured", number: true }, { title: "Predicted", number: true },
      { title: "Error", number: true }, "", "Scored"],
    published.map((row) => [row.source, row.what, row.metric, plain(row.measured), plain(row.predicted), signed(row.error),
      errorBar(row.error, most), row.unscored ? `no: ${row.unscored}` : "yes"])));
}

function drawCounts() {
  const { enumerated, rejected, out_of_memory, pruned, replayed, seconds } = answer.counts;
  const rows = [["enumerated", enumerated], ...rejected.map(({ reason, count: times }) => [`rejected: ${reason}`, times]),
    ["out of memory", out_of_memory], ["pruned by their lower bound", pruned], ["replayed on the timeline", replayed]];
  byId("counts").append(h("p", { class: "note" }, `Took ${time(seconds * 1e6)}.`),
    tableOf("What became of all layouts", ["", { title: "Layouts", number: true }, { title: "Share", number: true }, { title: "", class: "share-cell" }],
      rows.map(([name, value]) => [name, count(value), percent(value / enumerated, 2),
        h("span", { class: "share", style: `width:${(100 * value) / (enumerated || 1)}%` })])));
}

function valueText(value) {
  if (!Array.isArray(value)) return typeof value === "boolean" ? (value ? "yes" : "no") : plain(value);
  const span = (i) => `${plain(value[0][i])} … ${plain(value.at(-1)[i])}`;
  return value.length === 1 ? `${plain(value[0][1])} at ${plain(value[0][0])}` : `${value.length} points: ${span(1)} over ${span(0)}`;
}
const sourced = (values) => tableOf("Values and where they come from", [{ title: "Field", class: "mono" }, { title: "Value", number: true }, { title: "Source", class: "source" }],
  values.map((v) => [v.field, valueText(v.value), [v.origin === null ? null : h("span", { class: ["measured", "published"].includes(v.origin) ? "" : "assumed" }, `${v.origin}: `), v.source ?? "default"]]));

function drawInputs() {
  const { model, workload, cluster, software, fixed, assumptions } = question;
  const shown = ([name, value]) => value !== null && typeof value !== "object" && name !== "name";
  const words = (name) => name.replaceAll("_", " ");
  const rows = (object) => Object.entries(object).filter(shown)
    .map(([name, value]) => [words(name), typeof value === "number" ? count(value) : typeof value === "boolean" ? (value ? "yes" : "no") : value]);
  const experts = model.experts ? Object.entries(model.experts).map(([name, value]) => [`experts: ${words(name)}`, count(value)]) : [];
  const limits = [["max_memory_gib", question.max_memory_gib], ["max_ttft_ms", question.max_ttft_ms], ["baseline", question.baseline]]
    .filter(([, value]) => value !== null).map(([name, value]) => [words(name), plain(value)]);
  const held = Object.entries(fixed).map(([name, value]) => [`fixed: ${words(name)}`, plain(value)]);
  byId("inputs-tables").append(
    h("div", { class: "columns" },
      h("div", {}, h("h3", {}, `Model: ${model.name}`), facts([...rows(model), ...experts])),
      h("div", {}, h("h3", {}, "Workload"), facts([...rows(workload), ...limits, ...held])),
      h("div", {}, h("h3", {}, "Assumptions"), assumptions.length
        ? h("ul", { class: "assumed" }, assumptions.map((text) => h("li", {}, text))) : h("p", { class: "muted" }, "None."))),
    h("details", {}, h("summary", {}, `Cluster ${cluster.name}: ${count(cluster.nodes)} nodes, ${count(cluster.gpus)} × ${cluster.gpu}; every number with its source`),
      sourced(cluster.values)),
    h("details", {}, h("summary", {}, `Software profile ${software.name}: every number with its source`), sourced(software.values)));
}

drawFigures();
drawCalls();
startRanking();
startScatter();
startBars();
drawClasses();
drawDoubts();
startTimeline();
drawPublished();
drawCounts();
drawInputs();
