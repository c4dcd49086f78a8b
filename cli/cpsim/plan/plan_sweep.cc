#include "cli/cpsim/plan/plan_sweep.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/common/flags.h"
#include "cli/common/interrupt.h"
#include "cli/cpsim/plan/plan_request.h"
#include "cli/cpsim/plan/what_if_run.h"
#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "shared/base/text.h"
#include "shared/mesh/mesh.h"
#include "sim/base/number_text.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/planner/models/read_model.h"
#include "sim/present/plan/plan_head.h"

namespace cp::cli {
namespace {

using Job = proto::PlanLayouts;
using sim::PlanQuestion;

// A value of what is swept: a number or a name.
struct SweptValue {
  std::optional<std::int64_t> number;
  std::string name;
};

// A flag that can be swept. `of_cluster` says which line of the head changes with it: that of the cluster, or
// that of the workload.
struct SweptKey {
  std::string_view name;  // of the flag
  std::string_view unit;  // "65,536 tokens"; empty of names
  bool of_cluster = false;
  std::function<void(Job&, const SweptValue&)> set;
  std::function<void(const std::string&)> check = {};  // of a name: throws for a slip
  std::int64_t most = std::numeric_limits<std::int64_t>::max();

  bool of_numbers() const { return !unit.empty(); }
  bool of_length() const { return name == "seq-len"; }
};

std::vector<SweptKey> keys_of_numbers() {
  using Value = SweptValue;
  return {
      {"seq-len", "tokens", false, [](Job& job, const Value& value) { job.set_seq_len(*value.number); }},
      {"global-batch", "sequences", false,
       [](Job& job, const Value& value) {
         job.clear_global_batch_tokens();
         job.set_global_batch(*value.number);
       }},
      {"concurrent", "requests", false,
       [](Job& job, const Value& value) { job.set_concurrent(*value.number); }},
      {"nodes",
       "nodes",
       true,
       [](Job& job, const Value& value) {
         job.clear_gpus();
         job.set_nodes(static_cast<int>(*value.number));
       },
       {},
       std::numeric_limits<std::int32_t>::max()},
      {"gpus",
       "GPUs",
       true,
       [](Job& job, const Value& value) {
         job.clear_nodes();
         job.set_gpus(static_cast<int>(*value.number));
       },
       {},
       Mesh::kMaxRanks},
  };
}

std::vector<SweptKey> keys_of_names() {
  using Value = SweptValue;
  return {
      {"cluster", "", true, [](Job& job, const Value& value) { job.set_cluster(value.name); },
       [](const std::string& name) { sim::find_cluster(name); }},
      {"software", "", true, [](Job& job, const Value& value) { job.set_software(value.name); },
       [](const std::string& name) { sim::find_software(name); }},
      {"model", "", false, [](Job& job, const Value& value) { job.set_model(value.name); },
       [](const std::string& name) { sim::load_model(name); }},
      {"linear-dtype", "", false, [](Job& job, const Value& value) { job.set_linear_dtype(value.name); }},
  };
}

const std::vector<SweptKey>& all_keys() {
  static const std::vector<SweptKey> kAll = [] {
    std::vector<SweptKey> keys = keys_of_numbers();
    for (SweptKey& key : keys_of_names()) keys.push_back(std::move(key));
    return keys;
  }();
  return kAll;
}

// ---- what is asked ----

struct Swept {
  const SweptKey& key;
  std::vector<SweptValue> values;
};

const SweptKey& find_key(const std::string& sweep, std::string typed) {
  const std::string shown = typed.empty() ? "nothing" : typed;
  std::replace(typed.begin(), typed.end(), '_', '-');
  std::vector<std::string> names;
  for (const SweptKey& key : all_keys()) {
    if (key.name == typed && sweep.find('=') != std::string::npos) return key;
    names.emplace_back(key.name);
  }
  const std::string near = nearest(typed, names);
  throw InvalidInput(str("--sweep ", sweep, ": ", shown, " cannot be swept",
                         near.empty() ? "" : "; did you mean ", near.empty() ? "" : str(near, "=?"),
                         "; use seq-len=32K..1M, nodes=1,2,4 or ",
                         "cluster=dgx-h100,hgx-h200; all that can be is ", join(names, ", ")));
}

Swept parse_sweep(const std::string& sweep) {
  const std::size_t equals = sweep.find('=');
  Swept swept{find_key(sweep, sweep.substr(0, equals)), {}};
  const std::string values = sweep.substr(equals + 1);
  const SweptKey& key = swept.key;
  if (key.of_numbers()) {
    const auto numbers = value_of("--sweep", sweep, [&] {
      return key.of_length() ? sim::parse_lengths(values)
                             : sim::parse_numbers(values, str("number of ", key.unit));
    });
    for (const std::int64_t number : numbers) {
      if (number > key.most)
        throw InvalidInput(str("--sweep ", sweep, ": ", number, " is out of range; use 1 to ", key.most));
      swept.values.push_back({number, ""});
    }
    return swept;
  }
  for (const std::string_view part : split(values, ',')) {
    const std::string name(trim(part));
    const auto same = [&](const SweptValue& value) { return value.name == name; };
    if (name.empty() || std::any_of(swept.values.begin(), swept.values.end(), same)) continue;
    if (key.check) value_of("--sweep", sweep, [&] { return key.check(name), 0; });
    swept.values.push_back({std::nullopt, name});
  }
  if (swept.values.empty())
    throw InvalidInput(str("--sweep ", sweep, " has no value; use names with commas between, such as ",
                           "cluster=dgx-h100,hgx-h200"));
  return swept;
}

// "65,536 tokens", "1 node", "hgx-h200".
std::string in_words(const SweptKey& key, const SweptValue& value) {
  if (!value.number) return value.name;
  std::string_view unit = key.unit;
  if (*value.number == 1) unit.remove_suffix(1);
  return str(sim::human_count(*value.number), " ", unit);
}

// ---- what is answered ----

// What is known of one value.
struct Point {
  SweptValue value;
  Job job;
  std::optional<PlanQuestion> question;
  sim::PlanRow row;
};

std::vector<Point> points_of(const Swept& swept, const Job& job) {
  std::vector<Point> points;
  std::optional<InvalidInput> first;
  bool any = false;
  for (const SweptValue& value : swept.values) {
    Point point{value, job, std::nullopt, {}};
    swept.key.set(point.job, value);
    try {
      point.question = make_plan_question(point.job);
      any = true;
    } catch (const InvalidInput& error) {
      if (!first) first = error;
      point.row.why = error.what(), point.row.refused = true;
    }
    points.push_back(std::move(point));
  }
  if (!any) throw InvalidInput(*first);
  return points;
}

// Searches at all points, and returns those that were not interrupted.
std::vector<Point> searched_points(const SweptKey& key, std::vector<Point> points, int threads) {
  std::vector<PlanQuestion> questions;
  std::vector<std::size_t> at;  // of a question, its point
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (points[i].question) questions.push_back(*points[i].question), at.push_back(i);
  }
  std::vector<sim::SweepPoint> answers;
  {
    WhatIfRun run(threads);
    std::size_t begun = 0;
    answers = sim::sweep(questions, run.options(), [&](const PlanQuestion&) {
      const std::size_t i = at[begun++];
      run.begins(str(i + 1, " of ", points.size(), ", ", in_words(key, points[i].value)));
    });
  }
  for (std::size_t i = 0; i < answers.size(); ++i) {
    sim::PlanRow& row = points[at[i]].row;
    row = row_of(questions[i], std::move(answers[i].best), std::move(answers[i].why));
    row.refused = answers[i].refused;
  }
  if (answers.size() < questions.size())
    points.erase(points.begin() + static_cast<std::ptrdiff_t>(at[answers.size()]), points.end());
  for (Point& point : points) point.row.number = point.value.number, point.row.name = point.value.name;
  return points;
}

// Keeps only the degrees and the strategy: people speak of another layout if one of these differs.
ParallelLayout in_short(ParallelLayout layout) {
  layout.recompute = {}, layout.loss_chunks = layout.mlp_chunks = 1, layout.micro_batch = 1;
  layout.host_activations = false;
  return layout;
}

std::string changes_text(const SweptKey& key, const std::vector<Point>& points) {
  std::vector<std::string> changes;
  const sim::Candidate* last = nullptr;
  for (const Point& point : points) {
    const auto& best = point.row.best;
    if (!best) continue;
    if (last != nullptr && !(in_short(last->layout) == in_short(best->layout)))
      changes.push_back(sim::human_count(*point.value.number));
    last = &*best;
  }
  return changes.empty() ? "; the best layout stays the same"
                         : str("; the best layout changes at ", join(changes, "; "), " ", key.unit);
}

std::string most_text(const SweptKey& key, const std::vector<Point>& points) {
  // Chosen: half a per cent is less than a prediction can tell, so it is a tie.
  constexpr double kTold = 1.005;
  const Point *first = nullptr, *most = nullptr;
  for (const Point& point : points) {
    if (!point.row.best) continue;
    if (first == nullptr) first = &point;
    if (most == nullptr || sim::tokens_per_s(point.row) > sim::tokens_per_s(most->row)) most = &point;
  }
  const double ratio = sim::tokens_per_s(most->row) / sim::tokens_per_s(first->row);
  const std::string of_first = in_words(key, first->value);
  if (ratio < kTold) return str("; none computes more tokens a second than ", of_first);
  return str("; most tokens a second with ", in_words(key, most->value), fmt::format(", {:.3g}", ratio),
             " times as many as with ", of_first);
}

// "llama-3.1-8b, 131,072 tokens, 16 GPUs of dgx-h100", without what varies.
std::string fixed_of(const SweptKey& key, const PlanQuestion& question) {
  if (!key.of_cluster && key.name != "model")
    return sim::asked_of(question, key.of_length() ? 0 : question.workload.seq_len);
  std::vector<std::string> words;
  if (key.name != "model") words.push_back(question.model.name);
  words.push_back(tokens_text(question.workload.seq_len));
  if (key.name != "cluster" && key.name != "model") words.push_back(question.cluster.name);
  return join(words, ", ");
}

std::string sweep_summary(const SweptKey& key, const PlanQuestion& question,
                          const std::vector<Point>& points) {
  std::size_t fitting = 0;
  std::int64_t largest = 0;
  for (const Point& point : points) {
    if (!point.row.best) continue;
    ++fitting, largest = std::max(largest, point.value.number.value_or(0));
  }
  const std::string what = key.of_length() ? " lengths fit" : " fit";
  const std::string fit = fitting == points.size()
                              ? str("all ", points.size(), what)
                              : str(fitting, " of ", points.size(), what,
                                    key.of_length() ? str(", up to ", in_words(key, {largest, ""})) : "");
  return str(fixed_of(key, question), ": ", fit,
             key.of_length() ? changes_text(key, points)
             : fitting > 1   ? most_text(key, points)
                             : "");
}

// Says why some values have no answer. If they are numbers, the first stands for those after it.
void add_reasons(const SweptKey& key, const std::vector<Point>& points, sim::PlanRows& rows) {
  for (const bool refused : {false, true}) {
    for (const Point& point : points) {
      if (point.row.best || point.row.refused != refused) continue;
      rows.notes.emplace_back(refused ? "refused" : "nothing",
                              str(key.of_length()    ? "at "
                                  : key.of_numbers() ? "with "
                                                     : "",
                                  in_words(key, point.value), ": ", point.row.why));
      if (key.of_numbers()) break;
    }
  }
}

// The head of the sweep. Items that differ from row to row are those of the point whose command is next.
sim::PlanHead sweep_head(const SweptKey& key, const Point& point) {
  sim::PlanHead head = sim::plan_head(*point.question, "the command under next");
  std::string* item = &head.asked.front();
  if (key.of_cluster) item = key.name == "software" ? &head.on.back() : &head.on.front();
  *item = str("row ", in_words(key, point.value), ": ", *item);
  return head;
}

}  // namespace

int answer_sweep(const std::string& sweep, const Job& job, int threads, const WhatIfOutput& output) {
  const Swept swept = parse_sweep(sweep);
  const SweptKey& key = swept.key;
  if (key.of_length() && job.phase() == Job::decode && job.has_cached()) {
    throw InvalidInput(str("--cached ", job.cached(), " is what --sweep ", sweep,
                           " varies in decode, less the new tokens; leave it out"));
  }
  if (key.of_length() && !job.documents().empty()) {
    throw InvalidInput(str("--documents ", job.documents(), " are those of one length, and --sweep ", sweep,
                           " varies it; leave them out"));
  }
  const std::vector<Point> points = searched_points(key, points_of(swept, job), threads);
  const bool interrupted = InterruptScope::interrupted();
  if (interrupted && points.empty()) end_interrupted();
  const Point* last = nullptr;  // that has an answer
  const Point* none = nullptr;
  for (const Point& point : points) {
    if (point.row.best) last = &point;
    if (!point.row.best && (none == nullptr || (none->row.refused && !point.row.refused))) none = &point;
  }
  if (last == nullptr) {
    if (interrupted) end_interrupted();
    throw Infeasible(str(key.of_length() ? "at " : "with ", in_words(key, none->value),
                         " and all others: ", none->row.why));
  }
  sim::PlanRows rows;
  rows.question = "sweep";
  rows.summary = sweep_summary(key, *last->question, points);
  rows.phase = last->question->workload.phase;
  rows.head = sweep_head(key, *last);
  rows.assumptions = last->question->assumptions;
  rows.varies = key.name;
  for (const Point& point : points) rows.rows.push_back(point.row);
  add_reasons(key, points, rows);
  if (interrupted)
    rows.notes.emplace_back("warning", str("interrupted: ", points.size(), " of ", swept.values.size(),
                                           key.of_length() ? " lengths" : " values"));
  rows.notes.emplace_back("next", plan_command(last->job));
  print_rows(rows, output);
  return interrupted ? kInterruptedExitCode : 0;
}

}  // namespace cp::cli
