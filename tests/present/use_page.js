// Stands behind the page: uses it as a person would and writes down what it then shows, for the test to judge.
const seen = {};
const byId = (id) => document.getElementById(id);
const frames = (n) => new Promise((done) => {
  const step = () => (n-- > 0 ? requestAnimationFrame(step) : done());
  step();
});
const column = (i) => [...byId("ranking-table").querySelectorAll("tbody tr")].map((row) => (row.cells[i].querySelector("code") || row.cells[i].firstChild).textContent);
const titles = () => [...byId("ranking-table").querySelectorAll("th")].map((th) => th.textContent);
const clickHeader = (title) => byId("ranking-table").querySelectorAll("th button")[titles().indexOf(title)].click();
const filter = (text) => {
  byId("filter").value = text;
  byId("filter").dispatchEvent(new Event("input"));
  return column(1);
};
const view = () => [Number(byId("timeline-canvas").dataset.beginUs), Number(byId("timeline-canvas").dataset.endUs)];
const pointer = (type, x, y, element) => element.dispatchEvent(new PointerEvent(type, {
  bubbles: true, pointerId: 1, clientX: element.getBoundingClientRect().left + x, clientY: element.getBoundingClientRect().top + y,
}));

async function usePage() {
  await frames(3);
  seen.title = document.title;
  seen.heading = document.querySelector("h1").textContent;
  seen.warnings = byId("warnings").textContent;
  seen.nextCommand = byId("next-command").textContent;
  seen.scripts = document.scripts.length;
  seen.widest = document.documentElement.scrollWidth - innerWidth;

  const copy = byId("next").querySelector("button");
  copy.click();
  await frames(3);
  seen.copied = getSelection().toString();

  byId("ranking-more").click();
  seen.hiddenOfTable = byId("ranking-table").scrollWidth - byId("ranking-table").parentElement.clientWidth;
  seen.ranked = column(1);
  clickHeader("MFU");
  seen.byMfu = column(4);
  clickHeader("Memory, GiB");
  seen.byMemory = column(5);
  clickHeader("Memory, GiB");
  seen.byMemoryDown = column(5);
  seen.sorted = [...byId("ranking-table").querySelectorAll("th[aria-sort]")].map((th) => `${th.textContent} ${th.ariaSort}`);
  clickHeader("Layout");
  seen.byLayout = column(1);
  clickHeader("Rank");
  seen.filtered = { "pp=2": filter("pp=2"), "cp>=8 ulysses": filter("cp>=8 ulysses"), "tp=1": filter("tp=1"), nothing: filter("no such layout") };
  seen.filterCount = byId("filter-count").textContent;
  filter("");

  seen.marks = [...document.querySelectorAll("#scatter .marks")].map((path) => path.getAttribute("d").split("M").length - 1);
  seen.front = byId("pareto-front").getAttribute("d");
  seen.limit = document.querySelector("#scatter .limit-text").textContent;
  const bars = (id) => [...byId(id).querySelectorAll(".stack")].map((stack) => stack.children.length);
  seen.timeBars = bars("time-bars");
  seen.memoryBars = bars("memory-bars");
  seen.timeLegend = byId("time-legend").textContent;
  const boxes = [...byId("time-bars").querySelector(".stack").children].map((bar) => bar.getBoundingClientRect());
  seen.barWidths = boxes.map((frame) => frame.width);
  seen.lowestBar = Math.min(...boxes.map((frame) => frame.height));
  // Where a chart's scale and its bars say that a value stands, in pixels from the track's left edge.
  const track = byId("time-bars").querySelector(".track"), axis = byId("time-bars").querySelector(".axis");
  const from = (element, side) => element.getBoundingClientRect()[side] - track.getBoundingClientRect().left;
  const texts = (elements) => [...elements].map((element) => element.textContent);
  seen.axes = ["time-bars", "memory-bars", "link-bars"].map((id) => texts(byId(id).querySelectorAll(".axis span")));
  seen.axisMarks = [...track.querySelectorAll(".mark")].map((mark) => from(mark, "left"));
  seen.barEnd = from(track.querySelector(".stack"), "right");
  seen.intervalEnds = ["left", "right"].map((side) => from(track.querySelector(".interval"), side));
  seen.intervalBelowBar = track.querySelector(".interval").getBoundingClientRect().top
    - track.querySelector(".stack").getBoundingClientRect().bottom;
  seen.axisShare = axis.getBoundingClientRect().width / track.getBoundingClientRect().width;
  seen.barSays = track.querySelector(".stack").getAttribute("aria-label");
  seen.memoryNames = [...byId("memory-bars").querySelector(".stack").children].map((bar) => bar.dataset.name);
  seen.memoryLeft = [...byId("memory-left").querySelectorAll("tbody tr")].map((row) => texts(row.cells).slice(1));
  seen.doubts = byId("doubts").textContent;
  seen.frontRows = byId("front").querySelectorAll("tbody tr").length;
  seen.busyRows = byId("busy").querySelectorAll("tbody tr").length;
  seen.linkNote = byId("link-note").textContent;
  byId("ranking-table").querySelectorAll("tbody tr")[20].click();
  seen.barsWithChoice = byId("time-bars").querySelectorAll(".stack").length;
  seen.chosenRows = byId("ranking-table").querySelectorAll("tr.chosen").length;
  byId("ranking-table").querySelectorAll("tbody tr")[20].click();
  const choice = byId("ranking-table").querySelectorAll("button.choose")[3], chosenText = choice.textContent;
  choice.focus();
  choice.click();
  seen.chosenByButton = byId("ranking-table").querySelectorAll("tr.chosen").length;
  seen.focusStays = document.activeElement.textContent === chosenText;
  document.activeElement.click();
  seen.tablesWithoutCaption = [...document.querySelectorAll("table")].filter((table) => !table.caption).length;
  seen.scatterSays = document.querySelector("#scatter svg").getAttribute("aria-label");
  seen.links = byId("link-bars").querySelectorAll(".fill").length;
  seen.published = byId("published-table").querySelectorAll("tbody tr").length;
  seen.counts = byId("counts").querySelectorAll("tbody tr").length;
  seen.inputs = byId("inputs-tables").textContent;

  seen.shownText = document.querySelector("header").textContent + document.querySelector("main").textContent;

  const canvas = byId("timeline-canvas");
  canvas.scrollIntoView();
  await frames(2);
  seen.views = { whole: view() };
  byId("zoom-in").click();
  await frames(2);
  seen.views.zoomed = view();
  canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
  await frames(2);
  seen.views.panned = view();
  canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -500, ctrlKey: true, bubbles: true, cancelable: true }));
  await frames(2);
  seen.views.wheeled = view();
  byId("zoom-all").click();
  await frames(2);
  seen.views.all = view();
  seen.viewText = byId("timeline-view").textContent;
  pointer("pointermove", 400, 40, canvas);
  seen.tip = byId("tooltip").hidden ? "" : byId("tooltip").textContent;
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let i = 0; i < data.length; i += 4) colours.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
  seen.canvasColours = colours.size;
}

usePage().catch((error) => troubles.push(`use_page.js: ${error.stack}`)).finally(() => {
  seen.troubles = troubles;
  const result = document.createElement("script");
  result.type = "application/json";
  result.id = "seen";
  result.textContent = JSON.stringify(seen).replaceAll("<", "\\u003c");
  document.body.append(result);
});
