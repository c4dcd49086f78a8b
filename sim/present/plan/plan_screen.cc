#include "sim/present/plan/plan_screen.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "shared/base/text.h"
#include "shared/transformer/short_layout.h"
#include "sim/base/number_text.h"
#include "sim/planner/emit/small_training.h"
#include "sim/present/plan/headline.h"
#include "sim/present/plan/next_measurement.h"
#include "sim/present/plan/plan_inputs.h"
#include "sim/present/table.h"

namespace cp::sim {
namespace {

using sim::Candidate;
using sim::PlanAnswer;

// ---- numbers ----

std::string gib(std::int64_t bytes) { return fmt::format("{:.1f}", static_cast<double>(bytes) / kGiB); }

// ---- layouts ----

using Items = std::vector<LayoutItem>;

// The degrees and the strategy stay with each layout. All else may be said once, if all layouts have it.
bool may_be_common(const LayoutItem& item) {
  constexpr std::array<std::string_view, 9> kAlways = {
      "tp", "cp", "dp_shard", "dp_replicate", "pp", "ep", "strategy", "ulysses_degree", "inner_ring"};
  return std::find(kAlways.begin(), kAlways.end(), item.key) == kAlways.end();
}

bool has(const Items& items, const LayoutItem& item) {
  return std::find(items.begin(), items.end(), item) != items.end();
}

Items common_items(const std::vector<Items>& all) {
  Items common;
  if (all.size() < 2) return common;
  for (const LayoutItem& item : all.front()) {
    if (may_be_common(item) &&
        std::all_of(all.begin(), all.end(), [&](const Items& items) { return has(items, item); }))
      common.push_back(item);
  }
  return common;
}

// ---- the best ----

const char* time_title(Phase phase, bool aggregated) {
  if (aggregated) return "TPOT";
  return phase == Phase::training ? "step" : phase == Phase::prefill ? "TTFT" : "TTIT";
}

std::size_t num_shown(const PlanAnswer& answer) {
  return std::min(answer.best.size(), static_cast<std::size_t>(std::max(1, answer.question.top)));
}

// The text of a layout without what all layouts have. In serving a micro-batch is a replica's share of the
// requests, so it is left out.
std::string own_text(const Items& items, const Items& common, Phase phase) {
  std::vector<std::string> own;
  for (const LayoutItem& item : items) {
    if (!has(common, item) && (phase == Phase::training || item.key != "micro_batch"))
      own.push_back(short_text(item));
  }
  return join(own);
}

// The column of the time to the first token, beside that between tokens. There is none if no layout that is
// shown has this time.
std::optional<TimeColumn> first_token_column(const PlanAnswer& answer) {
  if (answer.question.workload.phase != Phase::decode) return std::nullopt;
  std::optional<double> smallest_us;
  for (std::size_t i = 0; i < num_shown(answer); ++i) {
    if (const auto us = answer.best[i].ttft_us) smallest_us = std::min(smallest_us.value_or(*us), *us);
  }
  return smallest_us ? std::optional(TimeColumn(*smallest_us)) : std::nullopt;
}

// Layouts come last: they differ in length, and what stands before them stays aligned in a narrow window.
std::vector<Column> columns_of(const PlanAnswer& answer, const TimeColumn& step,
                               const std::optional<TimeColumn>& first_token) {
  const Phase phase = answer.question.workload.phase;
  std::vector<Column> columns = {
      {"fastest", Align::right},
      {step.head(time_title(phase, answer.question.aggregated.has_value())), Align::right},
      {"interval", Align::right}};
  if (first_token) columns.push_back({first_token->head("TTFT"), Align::right});
  columns.push_back({"tokens/s/GPU", Align::right});
  if (phase != Phase::decode) columns.push_back({"MFU", Align::right});
  columns.push_back({str("GiB of ", gib(answer.best.front().usable_bytes)), Align::right});
  columns.push_back({"exposed", Align::right});
  columns.push_back({"bound by"});
  columns.push_back({"layout"});
  return columns;
}

std::string best_table(const PlanAnswer& answer) {
  const std::size_t shown = num_shown(answer);
  const Phase phase = answer.question.workload.phase;
  const TimeColumn step(answer.best.front().step_us);
  const std::optional<TimeColumn> first_token = first_token_column(answer);
  std::vector<Items> layouts;
  for (std::size_t i = 0; i < shown; ++i) layouts.push_back(telling_items(answer.best[i].layout));
  const Items common = common_items(layouts);
  Table table(columns_of(answer, step, first_token));
  bool doubtful = false, reordered = false;
  for (std::size_t i = 0; i < shown; ++i) {
    const Candidate& candidate = answer.best[i];
    if (i > 0) reordered = reordered || candidate.step_us < answer.best[i - 1].step_us;
    std::vector<std::string> cells = {human_percent(candidate.chance), step.of(candidate.step_us),
                                      str(step.of(candidate.low_us), "-", step.of(candidate.high_us))};
    if (first_token) cells.push_back(candidate.ttft_us ? first_token->of(*candidate.ttft_us) : "-");
    cells.push_back(human_rate(candidate.tokens_per_s_per_gpu));
    if (phase != Phase::decode) cells.push_back(human_percent(candidate.mfu));
    doubtful = doubtful || !candidate.likely_fits();
    cells.push_back(str(gib(sim::counted_bytes(candidate.memory)), candidate.likely_fits() ? "" : "?"));
    cells.push_back(human_percent(candidate.exposed_us / candidate.step_us));
    cells.emplace_back(sim::bound_text(candidate.bound));
    cells.push_back(own_text(layouts[i], common, phase));
    table.add_row(cells);
  }
  std::string text = table.text();
  text += "      fastest: how likely it is, or one of its degrees and strategy\n";
  if (first_token && !answer.question.aggregated)
    text +=
        "      TTFT: the prompts of all requests read at once, in the same layout; --ttft-max limits it\n";
  if (reordered) text += "      times within 0.5 % are ties: what takes less memory comes first\n";
  if (doubtful)
    text += "      ? unlikely to fit: measured runs took more than predicted by more than is left\n";
  if (!common.empty()) text += str("      all with ", join(common), "\n");
  return text;
}

// ---- lines ----

std::string classes_text(const PlanAnswer& answer) {
  if (answer.classes.empty() || answer.best.empty()) return "";
  const Candidate& best = answer.best.front();
  const TimeColumn step(best.step_us);
  std::size_t width = 0;
  for (const sim::ClassBest& of_class : answer.classes) width = std::max(width, of_class.name.size());
  std::string text = "the best of each class, and what sets it apart from the best:\n";
  for (const sim::ClassBest& of_class : answer.classes) {
    const std::string title = str("  ", of_class.name, std::string(width - of_class.name.size() + 2, ' '));
    if (!of_class.candidate) {
      text += str(wrapped(title + of_class.why, kScreenWidth, title.size()), "\n");
      continue;
    }
    const Candidate& candidate = *of_class.candidate;
    const bool is_best = to_string(candidate.layout) == to_string(best.layout);
    const double more = 100 * (candidate.step_us / best.step_us - 1);
    text += fmt::format("{}{} {}  {}  {}\n", title, step.of(candidate.step_us), step.unit(),
                        is_best ? "the best" : fmt::format("{:+.1f} %", more), short_text(candidate.layout));
    const std::string margin(title.size(), ' ');
    if (!is_best && !of_class.why.empty())
      text += str(wrapped(margin + of_class.why, kScreenWidth, title.size()), "\n");
    if (!of_class.found.empty())
      text += str(wrapped(str(margin, "found for it: ", of_class.found), kScreenWidth, title.size()), "\n");
  }
  return text;
}

// ---- how sure ----

// "cp=8,dp=2,ring": the layout without the settings that stay the same when somebody tries it.
std::string degrees_text(ParallelLayout layout) {
  layout.recompute = {}, layout.loss_chunks = layout.mlp_chunks = 1, layout.micro_batch = 1,
  layout.order = {};
  layout.host_activations = false;
  return short_text(layout);
}

std::string sure_text(const PlanAnswer& answer) {
  // Chosen: with two more the line still fits on a screen; --json has all.
  constexpr std::size_t kShown = 2;
  const Candidate& best = answer.best.front();
  std::string text =
      fmt::format("{} that it is the fastest; on average it takes {} ({:.1f} %) longer than the fastest",
                  human_percent(best.chance), human_us(best.regret_us), 100 * best.regret_us / best.step_us);
  // Layouts that are shown above need no long names here.
  std::vector<std::string> others;
  for (const ParallelLayout& layout : answer.worth_trying) {
    if (degrees_text(layout) != degrees_text(best.layout)) others.push_back(degrees_text(layout));
  }
  if (others.empty()) return text;
  const std::size_t hidden = others.size() - std::min(others.size(), kShown);
  others.resize(others.size() - hidden);
  return text + str("; worth trying: ", join(others, "; "), hidden == 0 ? "" : str("; ", hidden, " more"));
}

std::string settles_text(const PlanAnswer& answer) {
  const std::vector<NextMeasurement> all = next_measurements(answer);
  if (all.empty()) return "no measurement: any would save less than 0.1 % of the step";
  const NextMeasurement& first = all.front();
  const std::string saves = fmt::format("saves {} a step ({:.1f} %)", human_us(first.saves_us),
                                        100 * first.saves_us / answer.best.front().step_us);
  if (!first.rate) return str("to time attention by each strategy ", saves, ": --emit attention, then cprun");
  return str("to measure ", name(first), " ", saves, ": ", commands(answer, first).front());
}

std::string rejected_text(const sim::SearchCounts& counts) {
  // Chosen: the reasons that rejected most layouts; --json has all.
  constexpr std::size_t kReasons = 3;
  std::int64_t rejected = 0;
  std::vector<std::string> reasons;
  for (const auto& [reason, number] : counts.rejected) {
    rejected += number;
    if (reasons.size() < kReasons) reasons.push_back(str(reason, " ", human_count(number)));
  }
  if (counts.rejected.size() > kReasons) reasons.emplace_back("...");
  return rejected == 0 ? "" : str(human_count(rejected), " rejected (", join(reasons, "; "), "), ");
}

std::string counts_text(const sim::SearchCounts& counts) {
  const auto part = [](std::int64_t number, const char* what) {
    return number == 0 ? "" : str(human_count(number), what, ", ");
  };
  return str(human_count(counts.enumerated), " layouts: ", rejected_text(counts),
             part(counts.out_of_memory, " do not fit"), part(counts.pruned, " cannot be among the best"),
             human_count(counts.replayed), " replayed, in ", human_seconds(counts.seconds));
}

std::string nearest_text(const sim::NearestMeasurement& nearest) {
  const auto number = [](double value) {
    return value < 999.5 ? fmt::format("{:.3g}", value) : human_count(std::llround(value));
  };
  return fmt::format("{} ({}): {} {} measured, {} predicted: {:+.1f} % in time{}", nearest.what,
                     nearest.source, number(nearest.measured), nearest.metric, number(nearest.predicted),
                     100 * nearest.error(),
                     !nearest.unscored.empty() ? str("; not scored, ", nearest.unscored) : "");
}

}  // namespace

std::string memory_left(const Candidate& candidate, const sim::MemoryWidth& width) {
  const std::int64_t left = candidate.left_bytes();
  if (left < 0) return fmt::format("{} GiB too much of {}", gib(-left), gib(candidate.usable_bytes));
  std::string text = fmt::format("{} GiB of {}", gib(left), gib(candidate.usable_bytes));
  if (width.rows == 0) return text;
  return text + fmt::format("; {} to {} GiB needed, as far off as {} measured runs: {} to fit",
                            gib(candidate.memory_low_bytes), gib(candidate.memory_high_bytes), width.rows,
                            candidate.likely_fits() ? "likely" : "unlikely");
}

std::string titled_line(std::string_view title, const std::string& text) {
  return str(
      wrapped(str(title, std::string(kScreenIndent - title.size(), ' '), text), kScreenWidth, kScreenIndent),
      "\n");
}

std::string wrapped(const std::string& text, std::size_t width, std::size_t indent) {
  std::string out;
  std::size_t column = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = text.find(' ', text.find_first_not_of(' ', begin));  // with the spaces before it
    end = std::min(end, text.size());
    const std::string word = text.substr(begin, end - begin);
    const std::string bare(trim(word));
    if (column > indent && column + word.size() > width && !bare.starts_with('%')) {
      out += str("\n", std::string(indent, ' '), bare);
      column = indent + bare.size();
    } else {
      out += word;
      column += word.size();
    }
    begin = end;
  }
  return out;
}

std::string memory_terms(const Memory& memory) {
  constexpr std::int64_t kShown = std::int64_t{1} << 26;  // less is 0.0 or 0.1 GiB
  std::vector<std::string> words;
  const auto add = [&](const char* name, std::int64_t bytes) {
    if (bytes >= kShown) words.push_back(str(name, " ", gib(bytes)));
  };
  add("parameters", memory.parameters);
  add("master copies", memory.master);
  add("gradients", memory.gradients);
  add("optimizer", memory.optimizer);
  add("gathered", memory.gathered);
  add("activations", memory.activations);
  // The loss and the layers do not run at the same time, so the larger of the two is part of the peak.
  const std::int64_t layers = memory.unsharded + memory.working + memory.attention;
  if (layers >= memory.logits) {
    add("unsharded", memory.unsharded);
    add("working", memory.working);
    add("attention", memory.attention);
  } else {
    add("logits", memory.logits);
  }
  add("KV cache", memory.kv_cache);
  add("communicators", memory.communicators);
  add("slack", memory.slack);
  const std::int64_t other = std::min(layers, memory.logits);
  const std::string later =
      other < kShown ? ""
                     : str("; at another time ", layers < memory.logits ? "layers " : "logits ", gib(other));
  return join(words, ", ") + later;
}

std::string time_parts(const Candidate& candidate) {
  std::vector<sim::PartTime> parts = candidate.parts;
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.us > b.us; });
  std::vector<std::string> words;
  for (const auto& [part, us] : parts) {
    if (us < 0.01 * candidate.step_us) break;
    words.push_back(
        fmt::format("{} {} ({:.0f} %)", sim::name(part), human_us(us), 100 * us / candidate.step_us));
  }
  return join(words, ", ");
}

namespace {

// What travels in place of keys and values of latent attention; empty where there is no choice.
std::string keys_text(const PlanQuestion& question, const ParallelLayout& layout) {
  const Workload& workload = question.workload;
  if (!question.model.latent || layout.cp == 1 || workload.phase == Phase::decode) return {};
  using enum Strategy::Keys;
  const bool rows = layout.keys == latent;
  const std::string travel =
      rows ? str("latent rows of ", question.model.latent->kv_row(),
                 " elements travel between the ranks of a sequence, and each expands them for its heads")
           : str("keys and values of heads travel between the ranks of a sequence, and not latent rows of ",
                 question.model.latent->kv_row(), " elements");
  return str(travel, "; --fix keys=", name(rows ? heads : latent), " asks for the other way");
}

}  // namespace

std::string plan_screen(const PlanAnswer& answer, bool brief) {
  // The search throws if nothing fits. So if there is no best layout here, it was stopped.
  std::string text = str(answer.best.empty() ? "no layout was replayed yet" : sim::headline(answer), "\n\n");
  for (const std::string& warning : answer.warnings) text += titled_line("warning", warning);
  if (!answer.warnings.empty()) text += "\n";
  if (brief) {
    if (!answer.best.empty()) {
      text += str(best_table(answer), "\n");
      text += titled_line("left", memory_left(answer.best.front(), answer.question.memory_width));
    }
    return text;
  }
  for (const auto& [title, what] : plan_inputs(answer.question)) {
    if (title != "warning") text += titled_line(title, what);  // they stand above, with the search's own
  }
  text += "\n";
  if (!answer.best.empty()) {
    const Candidate& best = answer.best.front();
    text += str(best_table(answer), "\n");
    text += titled_line("best", to_string(best.layout));
    if (const std::string keys = keys_text(answer.question, best.layout); !keys.empty())
      text += titled_line("keys", keys);
    text += titled_line("how sure", sure_text(answer));
    text += titled_line("settles it", settles_text(answer));
    text += titled_line("its time", time_parts(best));
    text += titled_line("its memory", str("GiB: ", memory_terms(best.memory)));
    text += titled_line("left", memory_left(best, answer.question.memory_width));
    if (answer.question.workload.phase != Phase::training) {
      text += titled_line(
          "runs",
          "attention of one layer: --emit cprun, then cprun; the rest of the step is planned, not run");
    }
    text += str("\n", classes_text(answer), "\n");
  }
  text += titled_line("searched", counts_text(answer.counts));
  text +=
      titled_line("nearest", answer.nearest ? nearest_text(*answer.nearest)
                                            : str("none: no step of ", name(answer.question.workload.phase),
                                                  " was ever compared with a measurement"));
  if (!answer.next_command.empty()) text += str("next        ", answer.next_command, "\n");
  if (!answer.run_command.empty()) text += str("runs        ", answer.run_command, "\n");
  return text;
}

}  // namespace cp::sim
