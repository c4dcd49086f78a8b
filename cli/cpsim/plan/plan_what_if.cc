#include "cli/cpsim/plan/plan_what_if.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "cli/common/flags.h"
#include "cli/common/interrupt.h"
#include "cli/common/printable.h"
#include "cli/cpsim/plan/plan_request.h"
#include "cli/cpsim/progress_line.h"
#include "shared/base/error.h"
#include "sim/base/stop.h"
#include "sim/planner/search/inverse.h"
#include "sim/planner/search/search.h"
#include "sim/planner/search/sensitivity.h"
#include "sim/present/number_text.h"
#include "sim/present/plan/plan_inputs.h"
#include "sim/present/plan/plan_what_if_screen.h"

namespace cp::cli {
namespace {

using Job = proto::PlanLayouts;
using sim::PlanQuestion;

std::string tokens_text(std::int64_t tokens) { return str(sim::human_count(tokens), " tokens"); }

// A search, or several, with one progress line; Ctrl-C ends them.
class Run {
 public:
  explicit Run(int threads) {
    options_.threads = threads;
    options_.stop = &InterruptScope::flag();
    options_.progress = [this](const sim::SearchProgress& so_far) {
      progress_.show(str(what_, sim::human_count(so_far.layouts), " layouts, ",
                         sim::human_count(so_far.replayed), " replayed",
                         so_far.best_us > 0 ? str(", best so far ", sim::human_us(so_far.best_us)) : ""));
    };
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  const sim::SearchOptions& options() const { return options_; }
  sim::InverseOptions inverse_options(const std::function<std::string(std::int64_t)>& text) {
    return {options_.stop, [this, text](std::int64_t tried) { progress_.show(text(tried)); }};
  }
  // Of the progress line's beginning.
  void begins(const std::string& what) { what_ = str(what, ": "), progress_.show(what); }

 private:
  const InterruptScope interrupts_;
  const sim::StopScope stop_{&InterruptScope::flag()};
  Progress progress_;
  std::string what_;
  sim::SearchOptions options_;
};

// With nothing half done to show.
template <class Answer>
auto unless_interrupted(int threads, const Answer& answer) {
  auto result = [&] {
    Run run(threads);
    return answer(run);
  }();
  if (InterruptScope::interrupted()) end_interrupted();
  return result;
}

PlanQuestion question_at(Job job, std::int64_t seq_len) {
  job.set_seq_len(seq_len);
  return make_plan_question(job);
}

sim::PlanRow row_of(const PlanQuestion& question, std::optional<sim::Candidate> best, std::string why = "") {
  return {question.workload.seq_len, question.cluster.nodes, question.cluster.num_gpus(), std::move(best),
          std::move(why)};
}

// The best at a length or on nodes; why nothing is legal or fits otherwise.
sim::PlanRow searched(const PlanQuestion& question, const sim::SearchOptions& options) {
  try {
    const sim::PlanAnswer answer = sim::search_layouts(question, options);
    if (answer.best.empty()) return row_of(question, std::nullopt, "interrupted");
    return row_of(question, answer.best.front());
  } catch (const Infeasible& error) {
    return row_of(question, std::nullopt, error.what());
  } catch (const InvalidInput& error) {
    return row_of(question, std::nullopt, error.what());
  }
}

int print(const sim::PlanRows& rows, bool json) {
  fmt::print("{}", json ? str(sim::rows_json(rows), "\n") : printable(sim::rows_text(rows)));
  std::fflush(stdout);
  return 0;
}

// ---- along lengths ----

std::vector<std::int64_t> lengths_of(const std::string& sweep) {
  const std::size_t equals = sweep.find('=');
  const std::string key = sweep.substr(0, equals);
  if (equals == std::string::npos || key != "seq_len") {
    throw InvalidInput(str("--sweep ", sweep, ": ", key.empty() ? "nothing" : key,
                           " cannot be swept; use seq_len=32K..1M, or seq_len=8K,12K"));
  }
  auto lengths = value_of("--sweep", sweep, [&] { return sim::parse_lengths(sweep.substr(equals + 1)); });
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

// The degrees and the strategy: what people call another layout.
ParallelLayout in_short(ParallelLayout layout) {
  layout.recompute = {}, layout.loss_chunks = layout.mlp_chunks = 1, layout.micro_batch = 1;
  layout.host_activations = false;
  return layout;
}

std::string sweep_summary(const PlanQuestion& question, const std::vector<sim::PlanRow>& rows) {
  std::vector<std::string> changes;
  std::int64_t fitting = 0, longest = 0;
  const sim::Candidate* last = nullptr;
  for (const sim::PlanRow& row : rows) {
    if (!row.best) continue;
    ++fitting, longest = row.seq_len;
    if (last != nullptr && !(in_short(last->layout) == in_short(row.best->layout)))
      changes.push_back(sim::human_count(row.seq_len));
    last = &*row.best;
  }
  const auto all = static_cast<std::int64_t>(rows.size());
  return str(sim::asked_of(question, 0), ": ",
             fitting == all ? str("all ", all, " lengths fit")
                            : str(fitting, " of ", all, " lengths fit, up to ", tokens_text(longest)),
             changes.empty() ? "; the best layout stays the same"
                             : str("; the best layout changes at ", join(changes, "; "), " tokens"));
}

int sweep(const WhatIf& what_if, const Job& job, int threads, bool json) {
  const std::vector<std::int64_t> lengths = lengths_of(what_if.sweep);
  if (job.phase() == Job::decode && job.has_cached()) {
    throw InvalidInput(str("--cached ", job.cached(), " is what --sweep ", what_if.sweep,
                           " varies in decode, less the new tokens; leave it out"));
  }
  std::vector<PlanQuestion> questions;
  for (const std::int64_t length : lengths) questions.push_back(question_at(job, length));
  std::vector<sim::SweepPoint> points;
  {
    Run run(threads);
    points = sim::sweep_seq_len(questions, run.options(), [&](const PlanQuestion& question) {
      run.begins(tokens_text(question.workload.seq_len));
    });
  }
  const bool interrupted = InterruptScope::interrupted();
  if (interrupted && points.empty()) end_interrupted();
  sim::PlanRows rows{"sweep", "", questions.back().workload.phase, sim::plan_inputs(questions.back()),
                     {},      {}};
  for (auto& [title, text] : rows.inputs) {
    if (title == "workload") text = str("at the last length, ", text);
  }
  for (std::size_t i = 0; i < points.size(); ++i)
    rows.rows.push_back(row_of(questions[i], points[i].best, points[i].why));
  const auto none = std::find_if(rows.rows.begin(), rows.rows.end(),
                                 [](const sim::PlanRow& row) { return !row.best.has_value(); });
  const bool any = std::any_of(rows.rows.begin(), rows.rows.end(),
                               [](const sim::PlanRow& row) { return row.best.has_value(); });
  if (!any) throw Infeasible(str("at ", tokens_text(none->seq_len), " and all others: ", none->why));
  if (none != rows.rows.end())
    rows.notes.emplace_back("nothing", str("at ", tokens_text(none->seq_len), ": ", none->why));
  if (interrupted)
    rows.notes.emplace_back("warning",
                            str("interrupted: ", points.size(), " of ", lengths.size(), " lengths"));
  rows.summary = sweep_summary(questions.front(), rows.rows);
  print(rows, json);
  return interrupted ? kInterruptedExitCode : 0;
}

// ---- how long ----

// Where nobody says from which length on: a short one.
PlanQuestion shortest_question(const Job& job) {
  if (job.seq_len() > 0 || job.has_cached()) return make_plan_question(job);
  const std::int64_t grain = sim::seq_len_grain(question_at(job, job.new_tokens() + (1 << 20)));
  return question_at(job, (job.new_tokens() / grain + 1) * grain);
}

int maximize(const WhatIf& what_if, const Job& job, int threads, bool json) {
  if (what_if.maximize != "seq_len") {
    throw InvalidInput(str("--maximize ", what_if.maximize,
                           ": only seq_len can be; use --maximize seq_len, or --minimize gpus"));
  }
  if (job.has_global_batch_tokens() && !job.has_global_batch()) {
    throw InvalidInput(
        "--maximize seq_len needs a batch in sequences, since tokens would change with the length; use "
        "--global-batch such as 16 for --global-batch-tokens");
  }
  const bool given = job.seq_len() > 0 || job.has_cached();
  const PlanQuestion first = shortest_question(job);
  const std::int64_t grain = sim::seq_len_grain(first), limit = std::int64_t{1} << 26;
  Job next = job;
  sim::PlanRows rows = unless_interrupted(threads, [&](Run& run) {
    sim::PlanRows found{"maximize", "", first.workload.phase, {}, {}, {}};
    const std::optional<std::int64_t> longest =
        sim::longest_seq_len(first, grain, limit, run.inverse_options([](std::int64_t length) {
          return str("does something fit ", tokens_text(length));
        }));
    if (InterruptScope::interrupted()) return found;
    // Not even the first one: the search says what would.
    const std::int64_t length = longest.value_or(first.workload.seq_len);
    run.begins(tokens_text(length));
    next.set_seq_len(length);
    if (job.phase() == Job::decode && job.has_cached())
      next.clear_cached(), next.set_new_tokens(first.workload.new_tokens);
    const PlanQuestion question = make_plan_question(next);
    const sim::PlanAnswer answer = sim::search_layouts(question, run.options());
    if (InterruptScope::interrupted()) return found;
    if (given && first.workload.seq_len < length) found.rows.push_back(searched(first, run.options()));
    found.rows.push_back(row_of(question, answer.best.front()));
    found.inputs = sim::plan_inputs(question);
    found.summary =
        str(sim::asked_of(question, 0), ": ", length == limit / grain * grain ? "at least " : "at most ",
            tokens_text(length), " fit, ", sim::human_us(answer.best.front().step_us), " with ",
            to_string(answer.best.front().layout));
    if (length + grain <= limit) {
      const sim::PlanRow more = searched(sim::at_seq_len(first, length + grain), run.options());
      if (!more.best)
        found.notes.emplace_back("one more", str("with ", tokens_text(length + grain), " ", more.why));
    }
    return found;
  });
  rows.notes.emplace_back("next", plan_command(next));
  return print(rows, json);
}

// ---- how few ----

int minimize(const WhatIf& what_if, const Job& job, int threads, bool json) {
  if (what_if.minimize != "gpus") {
    throw InvalidInput(str("--minimize ", what_if.minimize,
                           ": only gpus can be; use --minimize gpus, or --maximize seq_len"));
  }
  constexpr int kMostNodes = 1024;
  const bool given = job.has_nodes() || job.has_gpus();
  Job most = job;
  if (!given) most.set_nodes(kMostNodes);
  const PlanQuestion question = make_plan_question(most);
  const int all = question.cluster.num_gpus();
  const auto on = [&](int gpus) {
    Job fewer = most;
    fewer.clear_nodes(), fewer.set_gpus(gpus);
    return fewer;
  };
  Job next = most;
  sim::PlanRows rows = unless_interrupted(threads, [&](Run& run) {
    sim::PlanRows found{"minimize", "", question.workload.phase, {}, {}, {}};
    const auto words = [](std::int64_t gpus) {
      return str("does something fit ", sim::human_count(gpus), gpus == 1 ? " GPU" : " GPUs");
    };
    run.begins(words(1));
    const sim::FewestGpus fewest = sim::fewest_gpus(question, run.options(), run.inverse_options(words));
    if (InterruptScope::interrupted()) return found;
    next = on(fewest.gpus.value_or(all));
    const PlanQuestion on_fewest = make_plan_question(next);
    run.begins(str(sim::human_count(on_fewest.cluster.num_gpus()), " GPUs"));
    // Not even all of them: the search says what would.
    const sim::PlanAnswer answer = sim::search_layouts(on_fewest, run.options());
    if (InterruptScope::interrupted()) return found;
    const sim::Candidate& best = answer.best.front();
    found.rows.push_back(row_of(on_fewest, best));
    if (given && on_fewest.cluster.num_gpus() < all) found.rows.push_back(searched(question, run.options()));
    found.inputs = sim::plan_inputs(on_fewest);
    const int gpus = on_fewest.cluster.num_gpus();
    found.summary = str(question.model.name, ", ", tokens_text(question.workload.seq_len), ": ",
                        sim::human_count(gpus), gpus == 1 ? " GPU of " : " GPUs of ", question.cluster.name,
                        given ? str(" of ", sim::human_count(all)) : "", gpus == 1 ? " is" : " are",
                        " enough, ", sim::human_us(best.step_us), " with ", to_string(best.layout));
    const std::vector<int> counts = sim::gpu_counts(question);
    const auto at = std::find(counts.begin(), counts.end(), gpus);
    if (at != counts.begin() && at != counts.end()) {
      const sim::PlanRow less = searched(make_plan_question(on(*(at - 1))), run.options());
      if (!less.best) found.notes.emplace_back("fewer", less.why);
    }
    return found;
  });
  rows.notes.emplace_back("next", plan_command(next));
  return print(rows, json);
}

// ---- how sure ----

int rates(const WhatIf& what_if, const Job& job, int threads, bool json) {
  const PlanQuestion question = make_plan_question(job);
  sim::Sensitivity sensitivity;
  const sim::PlanAnswer answer = unless_interrupted(threads, [&](Run& run) {
    run.begins("as rates are");
    sim::PlanAnswer found = sim::search_layouts(question, run.options());
    if (InterruptScope::interrupted()) return found;
    run.begins("with other rates");
    sensitivity = sim::sensitivity_of(found);
    found.next_command = plan_command(job);
    return found;
  });
  if (what_if.sensitivity) {
    fmt::print("{}", json ? str(sim::sensitivity_json(answer, sensitivity), "\n")
                          : printable(sim::sensitivity_text(answer, sensitivity)));
  } else {
    Job measured = job;
    measured.set_cluster("mine.txtpb");
    const std::string then = plan_command(measured);
    fmt::print("{}", json ? str(sim::experiments_json(answer, sensitivity, then), "\n")
                          : printable(sim::experiments_text(answer, sensitivity, then)));
  }
  std::fflush(stdout);
  return 0;
}

}  // namespace

std::vector<std::string> WhatIf::asked() const {
  std::vector<std::string> flags;
  if (!sweep.empty()) flags.emplace_back("--sweep");
  if (!maximize.empty()) flags.emplace_back("--maximize");
  if (!minimize.empty()) flags.emplace_back("--minimize");
  if (sensitivity) flags.emplace_back("--sensitivity");
  if (next_experiment) flags.emplace_back("--next-experiment");
  return flags;
}

void check(const WhatIf& what_if, const std::vector<std::string>& others) {
  const std::vector<std::string> asked = what_if.asked();
  if (asked.size() > 1)
    throw InvalidInput(str(join(asked, " and "), " are questions of their own; ask one at a time"));
  if (!asked.empty() && !others.empty()) {
    throw InvalidInput(str(others.front(), " is of a plan, and ", asked.front(),
                           " asks something else; leave one of them out"));
  }
}

int answer_what_if(const WhatIf& what_if, const Job& job, int threads, bool json) {
  if (!what_if.sweep.empty()) return sweep(what_if, job, threads, json);
  if (!what_if.maximize.empty()) return maximize(what_if, job, threads, json);
  if (!what_if.minimize.empty()) return minimize(what_if, job, threads, json);
  return rates(what_if, job, threads, json);
}

}  // namespace cp::cli
