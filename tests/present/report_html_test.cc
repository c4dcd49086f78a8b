// The report as text, and in a browser.
#include "sim/present/page/report_html.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shared/base/text.h"
#include "sim/present/plan/answer_json.h"
#include "sim/present/plan/headline.h"
#include "tests/present/browser.h"
#include "tests/support/example_answer.h"

namespace cp::sim {
namespace {

using nlohmann::json;

// What stands between two texts, the first of them.
std::string between(const std::string& text, const std::string& before, const std::string& after) {
  const auto begin = text.find(before);
  if (begin == std::string::npos) return "";
  const auto end = text.find(after, begin + before.size());
  return text.substr(begin + before.size(), end - begin - before.size());
}

int occurrences(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(ReportHtml, EmbedsTheAnswerAsItIs) {
  const PlanAnswer answer = testing::example_answer();
  const std::string page = report_html(answer);
  const std::string data = between(page, "<script type=\"application/json\" id=\"answer\">", "</script>");
  EXPECT_EQ(json::parse(data), json::parse(to_json(answer)));
  EXPECT_EQ(data.find('<'), std::string::npos);
  EXPECT_EQ(occurrences(page, "<script"), 2) << "the data and the page's own";
  EXPECT_EQ(occurrences(page, "</script"), 2);
}

TEST(ReportHtml, EscapesTheHeadline) {
  PlanAnswer answer = testing::example_answer();
  answer.question.model.name = testing::kAwkward;
  const std::string page = report_html(answer);
  const std::string heading = between(page, "<h1>", "</h1>");
  EXPECT_EQ(heading.find('<'), std::string::npos);
  EXPECT_NE(heading.find("&lt;/script&gt;"), std::string::npos);
  EXPECT_NE(heading.find("{{data}}"), std::string::npos) << "what is filled in is not searched for fields";
  EXPECT_EQ(occurrences(page, "<script"), 2);
}

TEST(ReportHtml, LoadsNothing) {
  const std::string page = report_html(testing::example_answer());
  for (const char* text :
       {"<link", "<img", "<iframe", "@import", "url(", " src=", "import(", "fetch(", "XMLHttpRequest"}) {
    EXPECT_EQ(page.find(text), std::string::npos) << text;
  }
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  // The one address is the name space of SVG.
  EXPECT_EQ(occurrences(page, "http://"), occurrences(page, "\"http://www.w3.org/2000/svg\""));
  const std::string data = between(page, "<script type=\"application/json\" id=\"answer\">", "</script>");
  EXPECT_EQ(occurrences(page, "https://"), occurrences(data, "https://")) << "outside of the data";
}

// ---- colours ----

// Names of style.css's colours that a table of the page's script gives away.
std::set<std::string> colours_in(const std::string& table) {
  const std::regex value(R"re(:\s*"([a-z0-9-]+)")re");
  std::set<std::string> names;
  for (std::sregex_iterator it(table.begin(), table.end(), value), end; it != end; ++it)
    names.insert((*it)[1]);
  return names;
}

std::set<std::string> chart_colours(const std::string& page) {
  std::set<std::string> names;
  for (const char* table : {"const partColours = ", "const memoryColours = ", "const classColours = "})
    names.merge(colours_in(between(page, table, ";\n")));
  return names;
}

// Values by name, of one theme.
std::map<std::string, std::string> palette(const std::string& css) {
  const std::regex value("--([a-z0-9-]+): (#[0-9a-f]{6});");
  std::map<std::string, std::string> colours;
  for (std::sregex_iterator it(css.begin(), css.end(), value), end; it != end; ++it)
    colours[(*it)[1]] = (*it)[2];
  return colours;
}

TEST(ReportHtml, AColourMeansOneThingInAllCharts) {
  const std::string page = report_html(testing::example_answer());
  const std::set<std::string> names = chart_colours(page);
  for (const char* name : {"attention", "cp", "forward", "gathered", "unsharded", "cache", "tp-cp"})
    EXPECT_EQ(names.count(name), 1u) << name;
  const std::string dark = "@media (prefers-color-scheme: dark) {";
  for (const std::string& css : {between(page, "<style>", dark), between(page, dark, "</style>")}) {
    const std::map<std::string, std::string> colours = palette(css);
    std::map<std::string, std::string> name_of;
    for (const std::string& name : names) {
      ASSERT_EQ(colours.count(name), 1u) << name;
      const auto [same, is_new] = name_of.emplace(colours.at(name), name);
      EXPECT_TRUE(is_new) << name << " looks like " << same->second;
    }
  }
}

TEST(ReportHtml, EveryTermOfMemoryHasAColour) {
  const std::string page = report_html(testing::example_answer());
  const std::string table = between(page, "const memoryColours = {", ";\n");
  for (const auto& [name, bytes] : terms(Memory{})) {
    const bool one_word = name.find(' ') == std::string_view::npos;
    EXPECT_EQ(occurrences(table, one_word ? str(" ", name, ": \"") : str("\"", name, "\": \"")), 1) << name;
  }
}

// ---- in a browser ----

class ReportInBrowser : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto program = testing::find_browser();
    if (!program) GTEST_SKIP() << "no chromium in PATH (scripts/setup --dev installs it)";
    std::string name = (std::filesystem::temp_directory_path() / "cp-report-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    browser_ = {.program = *program, .folder = folder_};
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  std::string write(const std::string& page) const {
    const std::string file = folder_ + "/report.html";
    std::ofstream(file) << page;
    return file;
  }

  // What use_page.js writes down.
  json use(std::string page) const {
    const auto read = [](const char* name) {
      std::ifstream in(std::string(CP_SOURCE_DIR "/tests/present/") + name);
      std::ostringstream out;
      out << in.rdbuf();
      return out.str();
    };
    page.insert(page.find("<title>"), "<script>" + read("watch.js") + "</script>");
    page.insert(page.rfind("</body>"), "<script>" + read("use_page.js") + "</script>");
    const testing::Visit visit = browser_.open(write(page));
    EXPECT_EQ(visit.exit_code, 0) << visit.log;
    EXPECT_EQ(visit.console, "");
    const std::string seen =
        between(visit.document, "<script type=\"application/json\" id=\"seen\">", "</script>");
    if (seen.empty()) ADD_FAILURE() << "use_page.js did not end\n" << visit.log;
    return seen.empty() ? json::object() : json::parse(seen);
  }

  std::string folder_;
  testing::Browser browser_;
};

std::vector<std::string> layouts_where(const PlanAnswer& answer, bool (*keep)(const ParallelLayout&)) {
  std::vector<std::string> out;
  for (const Candidate& candidate : answer.all) {
    if (keep(candidate.layout)) out.push_back(to_string(candidate.layout));
  }
  return out;
}

std::vector<double> numbers(const json& texts) {
  std::vector<double> out;
  for (const json& text : texts) out.push_back(std::stod(text.get<std::string>()));
  return out;
}

TEST_F(ReportInBrowser, ShowsSortsFiltersAndZooms) {
  const PlanAnswer answer = testing::example_answer();
  const json seen = use(report_html(answer));
  ASSERT_TRUE(seen.contains("troubles"));
  EXPECT_EQ(seen["troubles"], json::array());
  ASSERT_TRUE(seen.contains("canvasColours")) << seen.dump(1);

  EXPECT_EQ(seen["title"], headline(answer));
  EXPECT_EQ(seen["heading"], headline(answer));
  EXPECT_NE(seen["warnings"].get<std::string>().find(testing::kAwkward), std::string::npos);
  EXPECT_EQ(seen["nextCommand"], answer.next_command);
  EXPECT_EQ(seen["copied"], answer.next_command) << "or selected, where a browser does not let a page copy";
  EXPECT_EQ(seen["scripts"], 4) << "none came from the data";
  EXPECT_LE(seen["widest"], 0) << "nothing is wider than the window";

  const std::vector<std::string> all = layouts_where(answer, [](const ParallelLayout&) { return true; });
  EXPECT_EQ(seen["ranked"], json(all)) << "in order of time";
  const auto by_mfu = numbers(seen["byMfu"]), up = numbers(seen["byMemory"]),
             down = numbers(seen["byMemoryDown"]);
  EXPECT_EQ(by_mfu.size(), all.size());
  EXPECT_TRUE(std::is_sorted(by_mfu.rbegin(), by_mfu.rend()));
  EXPECT_TRUE(std::is_sorted(up.begin(), up.end()));
  EXPECT_TRUE(std::is_sorted(down.rbegin(), down.rend()));
  EXPECT_LT(up.front(), up.back());
  EXPECT_EQ(seen["sorted"], json({"Memory, GiB descending"}));
  EXPECT_NE(seen["byLayout"], seen["ranked"]);

  const json& filtered = seen["filtered"];
  EXPECT_EQ(filtered["pp=2"], json(layouts_where(answer, [](const ParallelLayout& l) { return l.pp == 2; })));
  EXPECT_EQ(filtered["tp=1"], json(layouts_where(answer, [](const ParallelLayout& l) { return l.tp == 1; })));
  EXPECT_EQ(filtered["cp>=8 ulysses"], json(layouts_where(answer, [](const ParallelLayout& l) {
              return l.cp >= 8 && l.strategy.ulysses_degree > 1;
            })));
  EXPECT_TRUE(filtered["nothing"].empty());
  EXPECT_EQ(seen["filterCount"], "0 of 24 layouts");

  const auto marks = seen["marks"].get<std::vector<int>>();
  EXPECT_EQ(std::accumulate(marks.begin(), marks.end(), 0), 24);
  EXPECT_GE(occurrences(seen["front"], "H"), 3);
  EXPECT_EQ(seen["limit"], "usable: 78.0 GiB");
  // The first five, and of the classes pipelines and the baseline, which are not among them.
  EXPECT_EQ(seen["timeBars"].size(), 7);
  EXPECT_EQ(seen["memoryBars"].size(), 7);
  EXPECT_EQ(seen["timeBars"][0], answer.best[0].parts.size());
  EXPECT_EQ(seen["barsWithChoice"], 8);
  EXPECT_EQ(seen["chosenRows"], 1);
  EXPECT_NE(seen["timeLegend"].get<std::string>().find("bubble"), std::string::npos);
  EXPECT_EQ(seen["links"], 14);
  EXPECT_EQ(seen["published"], answer.published.size());
  EXPECT_EQ(seen["counts"], answer.counts.rejected.size() + 4);
  EXPECT_NE(seen["inputs"].get<std::string>().find("H100 SXM data sheet, dense"), std::string::npos);
  EXPECT_NE(seen["inputs"].get<std::string>().find("8,030,261,248"), std::string::npos);
  EXPECT_EQ(seen["shownText"].get<std::string>().find("[object"), std::string::npos);
  EXPECT_EQ(seen["shownText"].get<std::string>().find("undefined"), std::string::npos);
  EXPECT_EQ(seen["shownText"].get<std::string>().find("NaN"), std::string::npos);
}

TEST_F(ReportInBrowser, DrawsToScaleInANarrowWindow) {
  const PlanAnswer answer = testing::example_answer();
  browser_.width = 900;
  const json seen = use(report_html(answer));
  ASSERT_TRUE(seen.contains("canvasColours")) << seen.dump(1);
  EXPECT_LE(seen["widest"], 0);
  EXPECT_LE(seen["hiddenOfTable"], 0);
  EXPECT_GE(seen["lowestBar"], 10);
  const auto widths = seen["barWidths"].get<std::vector<double>>();
  const Candidate& best = answer.best[0];
  ASSERT_EQ(widths.size(), best.parts.size());
  const double whole = std::accumulate(widths.begin(), widths.end(), 0.0);
  for (std::size_t i = 0; i < widths.size(); ++i) {
    // A segment has a border of one pixel beside it.
    EXPECT_NEAR(widths[i] / whole, best.parts[i].us / best.step_us,
                static_cast<double>(widths.size()) / whole);
  }

  const json& views = seen["views"];
  const auto span = [&](const char* name) {
    return views[name][1].get<double>() - views[name][0].get<double>();
  };
  double end = 0;
  for (const ReportSpan& bar : answer.timeline) end = std::max(end, bar.end_us);
  EXPECT_EQ(views["whole"][0], 0);
  EXPECT_NEAR(views["whole"][1].get<double>(), end, 1e-3);
  EXPECT_NEAR(span("zoomed"), span("whole") / 2, 1e-6 * end);
  EXPECT_NEAR(span("panned"), span("zoomed"), 1e-6 * end);
  EXPECT_GT(views["panned"][0], views["zoomed"][0]);
  EXPECT_LT(span("wheeled"), 0.5 * span("panned"));
  EXPECT_EQ(views["all"], views["whole"]);
  EXPECT_FALSE(seen["tip"].get<std::string>().empty());
  EXPECT_GE(seen["canvasColours"], 6) << "background, text, and four kinds of bars";
}

// A phone: labels above the bars, nothing to scroll sideways.
TEST_F(ReportInBrowser, FitsAPhone) {
  browser_.width = 500;  // Chromium's narrowest window
  const json seen = use(report_html(testing::example_answer()));
  ASSERT_TRUE(seen.contains("canvasColours")) << seen.dump(1);
  EXPECT_LE(seen["widest"], 0);
  const auto widths = seen["barWidths"].get<std::vector<double>>();
  EXPECT_GE(std::accumulate(widths.begin(), widths.end(), 0.0), 100) << "the first layout's bar";
}

TEST_F(ReportInBrowser, IsUsedByKeyboardAndSaysWhatItDraws) {
  const json seen = use(report_html(testing::example_answer()));
  ASSERT_TRUE(seen.contains("canvasColours")) << seen.dump(1);
  EXPECT_EQ(seen["chosenByButton"], 1) << "the layout's own button chooses its row";
  EXPECT_EQ(seen["focusStays"], true);
  EXPECT_EQ(seen["tablesWithoutCaption"], 0);
  EXPECT_NE(seen["scatterSays"].get<std::string>().find("The Pareto front: "), std::string::npos);
}

// A value stands where the chart's scale says, and the interval where no bar hides it.
TEST_F(ReportInBrowser, ChartsHaveScales) {
  PlanAnswer answer = testing::example_answer();
  answer.all[0].memory.master = answer.best[0].memory.master = std::int64_t{1} << 30;
  answer.all[0].memory.kv_cache = answer.best[0].memory.kv_cache = std::int64_t{2} << 30;
  const json seen = use(report_html(answer));
  ASSERT_TRUE(seen.contains("canvasColours")) << seen.dump(1);
  EXPECT_EQ(seen["troubles"], json::array());
  // The longest interval ends at 4.37 s * 1.08; the limit is 78 GiB; a link is used for 71 %.
  EXPECT_EQ(seen["axes"][0], json({"0 s", "1 s", "2 s", "3 s", "4 s"}));
  EXPECT_EQ(seen["axes"][1], json({"0 GiB", "20 GiB", "40 GiB", "60 GiB"}));
  EXPECT_EQ(seen["axes"][2], json({"0 %", "20 %", "40 %", "60 %", "80 %", "100 %"}));
  const auto marks = seen["axisMarks"].get<std::vector<double>>();
  ASSERT_EQ(marks.size(), 5u);
  const double second = (marks[4] - marks[0]) / 4;
  const Candidate& best = answer.best[0];
  EXPECT_GT(second, 50);
  EXPECT_NEAR(seen["barEnd"].get<double>(), best.step_us * 1e-6 * second, 1.5);
  EXPECT_NEAR(seen["intervalEnds"][0].get<double>(), best.low_us * 1e-6 * second, 1.5);
  EXPECT_NEAR(seen["intervalEnds"][1].get<double>(), best.high_us * 1e-6 * second, 1.5);
  EXPECT_GE(seen["intervalBelowBar"].get<double>(), 1);
  EXPECT_NEAR(seen["axisShare"].get<double>(), 1, 1e-3);
  EXPECT_EQ(seen["barSays"].get<std::string>().find("3.21 s: attention 1.64 s, 51.0 %; "), 0u)
      << seen["barSays"];
  EXPECT_NE(seen["linkNote"].get<std::string>().find("the busiest is used 71.0 % of the time."),
            std::string::npos)
      << seen["linkNote"];
  const auto names = seen["memoryNames"].get<std::vector<std::string>>();
  for (const char* name : {"parameters", "master copies", "kv cache", "activations"})
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
}

TEST_F(ReportInBrowser, SaysWhatWouldChangeTheAnswer) {
  PlanAnswer answer = testing::example_answer();
  answer.worth_trying = {answer.all[0].layout, answer.all[3].layout, answer.all[13].layout};
  answer.worths = {{Rate::network, 30e3}, {Rate::products, 1}};
  answer.strategies_worth_us = 90e3;
  const json seen = use(report_html(answer));
  ASSERT_TRUE(seen.contains("canvasColours")) << seen.dump(1);
  const std::string said = seen["doubts"];
  EXPECT_NE(said.find("40.0 % that the best layout"), std::string::npos) << said;
  for (const ParallelLayout& layout : {answer.all[3].layout, answer.all[13].layout})
    EXPECT_NE(said.find(to_string(layout)), std::string::npos) << to_string(layout);
  EXPECT_EQ(said.find(to_string(answer.all[0].layout) + "3.21"), std::string::npos)
      << "the best is no other layout";
  const auto strategies = said.find("attention of a layer, by each strategy90.0 ms"),
             network = said.find("network30.0 ms");
  EXPECT_NE(network, std::string::npos) << said;
  EXPECT_LT(strategies, network) << "what saves most comes first";
  EXPECT_EQ(said.find("products1.00"), std::string::npos) << "1 us is not worth a measurement";
  EXPECT_NE(said.find(to_string(answer.all[7].layout)), std::string::npos) << "38.7 GiB, on the front";

  ASSERT_EQ(seen["memoryLeft"].size(), 7u);
  EXPECT_EQ(seen["memoryLeft"][0], json({"62.4", "57.4 – 66.1", "15.6", "likely"}));
  EXPECT_EQ(seen["frontRows"].get<int>(), occurrences(seen["front"], "H") + 1);
  EXPECT_EQ(seen["busyRows"], 8) << "four streams of two ranks";
}

TEST_F(ReportInBrowser, ShowsAnAnswerWithoutALayout) {
  PlanAnswer answer;
  answer.question.model.name = "too-large";
  answer.warnings = {"Nothing fits."};
  std::string page = report_html(answer);
  page.insert(page.find("<title>"),
              "<script>addEventListener('error', (e) => console.error(e.message));</script>");
  const testing::Visit visit = browser_.open(write(page));
  EXPECT_EQ(visit.exit_code, 0) << visit.log;
  EXPECT_EQ(visit.console, "");
  EXPECT_NE(visit.document.find("0 of 0 layouts"), std::string::npos);
}

TEST_F(ReportInBrowser, IsNotBlankInAPicture) {
  browser_.height = 4200;
  const std::string file = write(report_html(testing::example_answer()));
  for (const bool dark : {false, true}) {
    browser_.dark = dark;
    const std::string png = folder_ + (dark ? "/dark.png" : "/light.png");
    const testing::Visit visit = browser_.picture(file, png);
    EXPECT_EQ(visit.exit_code, 0) << visit.log;
    EXPECT_EQ(visit.console, "");
    const testing::Picture picture = testing::read_png(png);
    EXPECT_EQ(picture.width, 1280);
    const auto colours = testing::count_colours(picture);
    EXPECT_GE(colours.size(), 50u) << "a blank page has one; text alone has the greys of its edges";
    const auto most = std::max_element(colours.begin(), colours.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    EXPECT_LT(most->second, static_cast<std::int64_t>(picture.pixels.size()) * 95 / 100);
    // Bars of attention, in the colour that style.css gives them.
    const testing::Pixel attention =
        dark ? testing::Pixel{0x2f, 0x8f, 0xd0} : testing::Pixel{0x00, 0x72, 0xb2};
    EXPECT_GT(colours.contains(attention) ? colours.at(attention) : 0, 5000);
  }
}

}  // namespace
}  // namespace cp::sim
