// The ranking: sorted by a click on a header, filtered by words and by fields.
const columns = [
  { title: "Rank", value: (c) => c.rank, number: true,  // beneath it: how likely it is the fastest
    cell: (c) => [String(c.rank), h("span", { class: "sub" }, percent(c.chance, 0))] },
  { title: "Layout", value: (c) => c.layout, // a button, for those who use no mouse; a click on it is one on its row
    cell: (c) => h("button", { type: "button", class: "choose", "aria-pressed": String(c.layout === chosenLayout) },
      layoutText(c.layout)) },
  { title: timeName, value: (c) => c.step_us, number: true,
    cell: (c) => [time(c.step_us), h("span", { class: "sub" }, interval(c.low_us, c.high_us))] },
  ...(question.workload.phase === "decode" && answer.all.some((c) => known(c.ttft_us)) // of all, or of those that are shown first
    ? [{ title: "First token", value: (c) => c.ttft_us, number: true, cell: (c) => time(c.ttft_us) }] : []),
  { title: "Tokens/s/GPU", value: (c) => c.tokens_per_s_per_gpu, number: true, down: true,
    cell: (c) => count(Math.round(c.tokens_per_s_per_gpu)) },
  { title: "MFU", value: (c) => c.mfu, cell: (c) => percent(c.mfu), number: true, down: true },
  { title: "Memory, GiB", value: (c) => c.memory_bytes.counted, number: true,
    cell: (c) => [gib(c.memory_bytes.counted), h("span", { class: "sub" }, `of ${gib(c.usable_bytes)}`)] },
  { title: "Exposed", value: (c) => c.exposed_us, number: true,
    cell: (c) => [time(c.exposed_us), h("span", { class: "sub" }, percent(c.exposed_us / c.step_us))] },
  { title: "Bound by", value: (c) => c.bound, cell: (c) => c.bound, class: "words" },
  { title: "NVLink", value: (c) => c.nvlink_utilisation, cell: (c) => percent(c.nvlink_utilisation, 0), number: true, down: true },
  { title: "NIC", value: (c) => c.nic_utilisation, cell: (c) => percent(c.nic_utilisation, 0), number: true, down: true },
];
const ranking = { column: 0, ascending: true, limit: 10, rows: [] };

// "tp=2", "cp>=4", "micro_batch<2" ask for a field; any other word must stand in the layout, its class or what bounds it.
function filterTests(text) {
  return text.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
    const [, field, relation, wanted] = word.match(/^(\w+)(<=|>=|!=|=|<|>)(.+)$/) || [];
    return (c) => {
      if (!field || !(field in c.layout_fields)) {
        return `${c.layout} ${c.layout_fields.strategy || ""} ${layoutClass(c)} ${c.bound}`.toLowerCase().includes(word);
      }
      const value = c.layout_fields[field];
      if (relation === "=" || relation === "!=") {
        const text = String(value).toLowerCase();
        const equal = typeof value === "number" ? value === Number(wanted) : text.split(" ").includes(wanted) || text === wanted;
        return equal === (relation === "=");
      }
      const number = Number(wanted);
      return { "<": value < number, "<=": value <= number, ">": value > number, ">=": value >= number }[relation];
    };
  });
}

function sortRows() {
  const { value } = columns[ranking.column];
  const sign = ranking.ascending ? 1 : -1;
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : (known(a) ? a : Infinity) - (known(b) ? b : Infinity));
  const tests = filterTests(byId("filter").value);
  ranking.rows = answer.all.filter((c) => tests.every((test) => test(c)))
    .sort((a, b) => sign * compare(value(a), value(b)) || a.step_us - b.step_us);
}

function drawRanking() {
  const body = ranking.rows.slice(0, ranking.limit).map((c) =>
    h("tr", { class: c.layout === chosenLayout ? "chosen" : null, onclick: () => choose(c.layout) },
      columns.map((column) => h("td", { class: column.number ? "number" : column.class }, column.cell(c)))));
  const head = columns.map((column, i) => {
    const sort = i === ranking.column ? (ranking.ascending ? "ascending" : "descending") : null;
    return h("th", { class: column.number ? "number" : null, "aria-sort": sort, scope: "col" },
      h("button", { type: "button", onclick: () => sortBy(i) }, column.title));
  });
  const focused = byId("ranking-table").contains(document.activeElement) ? document.activeElement.textContent : null;
  byId("ranking-table").replaceChildren(h("caption", {}, "Layouts that were replayed, a column's title sorts by it"), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
  // Rows are new after each choice: who chose by keyboard stays where they were.
  if (focused) {
    [...byId("ranking-table").querySelectorAll("button.choose")].find((b) => b.textContent === focused)?.focus({ preventScroll: true });
  }
  byId("filter-count").textContent = `${count(ranking.rows.length)} of ${count(answer.all.length)} layouts`;
  const left = ranking.rows.length - ranking.limit;
  byId("ranking-more").hidden = left <= 0;
  byId("ranking-more").textContent = `Show ${count(Math.min(left, 200))} more`;
}

function sortBy(index) {
  ranking.ascending = ranking.column === index ? !ranking.ascending : !columns[index].down;
  ranking.column = index;
  sortRows();
  drawRanking();
  byId("ranking-table").querySelectorAll("th button")[index].focus({ preventScroll: true });
}

function startRanking() {
  byId("filter").addEventListener("input", () => {
    sortRows();
    drawRanking();
  });
  byId("ranking-more").addEventListener("click", () => {
    ranking.limit += 200;
    drawRanking();
  });
  onChoice.push(drawRanking);
  sortRows();
  drawRanking();
}
