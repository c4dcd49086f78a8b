#include "cli/cpsim/plan/plan_what_if.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <optional>

#include <fmt/format.h>

#include "cli/common/interrupt.h"
#include "cli/common/printable.h"
#include "cli/cpsim/plan/plan_request.h"
#include "cli/cpsim/plan/plan_sweep.h"
#include "cli/cpsim/plan/what_if_run.h"
#include "shared/base/error.h"
#include "shared/base/units.h"
#include "shared/transformer/short_layout.h"
#include "sim/base/number_text.h"
#include "sim/planner/search/inverse.h"
#include "sim/planner/search/search.h"
#include "sim/planner/search/sensitivity.h"
#include "sim/present/plan/plan_head.h"
#include "sim/present/plan/plan_what_if_screen.h"

namespace cp::cli {
namespace {

using Job = proto::PlanLayouts;
using sim::PlanQuestion;

PlanQuestion question_at(Job job, std::int64_t seq_len) {
  job.set_seq_len(seq_len);
  return make_plan_question(job);
}

sim::PlanRows rows_of(const char* question, const PlanQuestion& asked) {
  sim::PlanRows rows;
  rows.question = question, rows.phase = asked.workload.phase;
  return rows;
}

void take_head(sim::PlanRows& rows, const PlanQuestion& question) {
  rows.head = sim::plan_head(question, "the command under next");
  rows.assumptions = question.assumptions;
}

// ---- how long ----

// If nobody says from which length on, the search begins with a short one: the shortest that the grain
// allows.
PlanQuestion shortest_question(const Job& job) {
  if (job.seq_len() > 0 || job.has_cached()) return make_plan_question(job);
  const std::int64_t grain = sim::seq_len_grain(question_at(job, job.new_tokens() + (1 << 20)));
  return question_at(job, (job.new_tokens() / grain + 1) * grain);
}

int maximize(const WhatIf& what_if, const Job& job, int threads, const WhatIfOutput& output) {
  if (what_if.maximize != "seq-len" && what_if.maximize != "seq_len") {
    throw InvalidInput(str("--maximize ", what_if.maximize,
                           ": only seq-len can be; use --maximize seq-len, or --minimize gpus"));
  }
  if (job.has_global_batch_tokens() && !job.has_global_batch()) {
    throw InvalidInput(
        "--maximize seq-len needs a batch in sequences, since tokens would change with the length; use "
        "--global-batch such as 16 for --global-batch-tokens");
  }
  if (!job.documents().empty()) {
    throw InvalidInput(str("--documents ", job.documents(),
                           " are those of one length, and --maximize seq-len looks for one; leave them out"));
  }
  const bool given = job.seq_len() > 0 || job.has_cached();
  const PlanQuestion first = shortest_question(job);
  // The limit is chosen: 64 Mi tokens are far above the contexts of models.
  const std::int64_t grain = sim::seq_len_grain(first), limit = std::int64_t{1} << 26;
  Job next = job;
  sim::PlanRows rows = what_if_unless_interrupted(threads, [&](WhatIfRun& run) {
    sim::PlanRows found = rows_of("maximize", first);
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
    if (given && first.workload.seq_len < length) found.rows.push_back(searched_row(first, run.options()));
    found.rows.push_back(row_of(question, answer.best.front()));
    take_head(found, question);
    found.summary =
        str(sim::asked_of(question, 0), ": ", length == limit / grain * grain ? "at least " : "at most ",
            tokens_text(length), " fit, ", sim::human_us(answer.best.front().step_us), " with ",
            short_text(answer.best.front().layout));
    if (length + grain <= limit) {
      const sim::PlanRow more = searched_row(sim::at_seq_len(first, length + grain), run.options());
      if (!more.best)
        found.notes.emplace_back("one more", str("with ", tokens_text(length + grain), " ", more.why));
    }
    return found;
  });
  rows.notes.emplace_back("next", plan_command(next));
  print_rows(rows, output);
  return 0;
}

// ---- how few ----

// What a step may take at most, and in words.
struct TimeLimit {
  double most_us = kNever;
  std::string text;  // "at most 10 s a step"

  bool given() const { return most_us < kNever; }
};

const char* per_what(Phase phase) {
  return phase == Phase::training ? "a step" : phase == Phase::prefill ? "to the first token" : "a token";
}

TimeLimit time_limit(const WhatIf& what_if, const PlanQuestion& question) {
  if (what_if.step_time_max_ms) {
    const double most_us = 1e3 * *what_if.step_time_max_ms;
    return {most_us, str("at most ", sim::human_us(most_us), " ", per_what(question.workload.phase))};
  }
  if (!what_if.tokens_per_s_min) return {};
  return {sim::most_us_of(question, *what_if.tokens_per_s_min),
          str("at least ", sim::human_rate(*what_if.tokens_per_s_min), " tokens a second")};
}

// What the flag would have to say for the candidate to be within it.
std::string enough(const WhatIf& what_if, const sim::PlanRow& row) {
  if (what_if.tokens_per_s_min)
    return str("--tokens-per-s-min ", static_cast<std::int64_t>(std::floor(sim::tokens_per_s(row))));
  const double us = std::ceil(row.best->step_us);
  if (us < 1e5) return fmt::format("--step-time-max {:.0f}us", us);
  return fmt::format("--step-time-max {:.0f}ms", std::ceil(us / 1e3));
}

// Throws Infeasible that says what the fastest of some counts takes, so that a user knows what to ask for
// instead. The counts are one on which something fits, and the largest and its halves, down to where fewer
// are slower. Returns if it is interrupted.
void throw_none_in_time(const WhatIf& what_if, const TimeLimit& limit, const PlanQuestion& question,
                        bool given, const std::vector<int>& fitting, const sim::SearchOptions& options) {
  const std::vector<int> counts = sim::gpu_counts(question);
  std::optional<sim::PlanRow> fastest;
  const auto look_at = [&](int gpus) {
    const sim::PlanRow row = searched_row(sim::at_gpus(question, gpus), options);
    if (row.best && (!fastest || row.best->step_us < fastest->best->step_us)) fastest = row;
  };
  if (!fitting.empty()) look_at(fitting.back());
  for (std::int64_t most = counts.back(); most >= 1 && !InterruptScope::interrupted(); most /= 2) {
    const int gpus = *std::prev(std::upper_bound(counts.begin(), counts.end(), most));
    if (fastest && fastest->gpus >= 2 * gpus) break;
    look_at(gpus);
  }
  if (InterruptScope::interrupted()) return;
  if (!fastest) sim::search_layouts(question, options);  // says why not
  CP_INVARIANT(fastest.has_value(), "GPUs on which nothing fits, and something does");
  throw Infeasible(str("no number of GPUs up to ", counts.back(), " has a layout with ", limit.text, "; on ",
                       fastest->gpus, ", ", to_string(fastest->best->layout), " takes ",
                       sim::human_us(fastest->best->step_us), ": use ", enough(what_if, *fastest),
                       given ? ", or more GPUs" : ""));
}

// Says why one count fewer is not enough.
std::string fewer_text(const sim::PlanRow& less, const TimeLimit& limit) {
  if (!less.best) return less.why;
  return str(sim::human_count(less.gpus), less.gpus == 1 ? " GPU takes " : " GPUs take ",
             sim::human_us(less.best->step_us), " with ", short_text(less.best->layout), ", not ",
             limit.text);
}

int minimize(const WhatIf& what_if, const Job& job, int threads, const WhatIfOutput& output) {
  if (what_if.minimize != "gpus") {
    throw InvalidInput(str("--minimize ", what_if.minimize,
                           ": only gpus can be; use --minimize gpus, or --maximize seq-len"));
  }
  // The nodes to search on if the user gives none. Chosen: 8,192 GPUs with eight in a node, more than most
  // people can get.
  constexpr int kMostNodes = 1024;
  const bool given = job.has_nodes() || job.has_gpus();
  Job most = job;
  if (!given) most.set_nodes(kMostNodes);
  const PlanQuestion question = make_plan_question(most);
  const TimeLimit limit = time_limit(what_if, question);
  const int all = question.cluster.num_gpus();
  const auto on = [&](int gpus) {
    Job fewer = most;
    fewer.clear_nodes(), fewer.set_gpus(gpus);
    return fewer;
  };
  Job next = most;
  sim::PlanRows rows = what_if_unless_interrupted(threads, [&](WhatIfRun& run) {
    sim::PlanRows found = rows_of("minimize", question);
    const auto words = [&](std::int64_t gpus) {
      return str(limit.given() ? "is something fast enough on " : "does something fit ",
                 sim::human_count(gpus), gpus == 1 ? " GPU" : " GPUs");
    };
    run.begins(words(1));
    sim::SearchOptions within = run.options();
    within.most_us = limit.most_us;
    const sim::FewestGpus fewest = sim::fewest_gpus(question, within, run.inverse_options(words));
    if (InterruptScope::interrupted()) return found;
    if (!fewest.gpus && limit.given()) {
      throw_none_in_time(what_if, limit, question, given, fewest.too_slow, run.options());
      return found;  // interrupted
    }
    next = on(fewest.gpus.value_or(all));
    const PlanQuestion on_fewest = make_plan_question(next);
    run.begins(str(sim::human_count(on_fewest.cluster.num_gpus()), " GPUs"));
    // Not even all of them: the search says what would.
    const sim::PlanAnswer answer = sim::search_layouts(on_fewest, within);
    if (InterruptScope::interrupted()) return found;
    const sim::Candidate& best = answer.best.front();
    found.rows.push_back(row_of(on_fewest, best));
    if (given && on_fewest.cluster.num_gpus() < all)
      found.rows.push_back(searched_row(question, run.options()));
    take_head(found, on_fewest);
    const int gpus = on_fewest.cluster.num_gpus();
    found.summary = str(question.model.name, ", ", tokens_text(question.workload.seq_len),
                        limit.given() ? str(", ", limit.text) : "", ": ", sim::human_count(gpus),
                        gpus == 1 ? " GPU of " : " GPUs of ", question.cluster.name,
                        given ? str(" of ", sim::human_count(all)) : "", gpus == 1 ? " is" : " are",
                        " enough, ", sim::human_us(best.step_us), " with ", short_text(best.layout));
    const std::vector<int> counts = sim::gpu_counts(question);
    const auto at = std::find(counts.begin(), counts.end(), gpus);
    if (at != counts.begin() && at != counts.end()) {
      // Without a limit of time only memory decides: then a smaller count is worth a note only if it does not
      // fit.
      const sim::PlanRow less = searched_row(make_plan_question(on(*(at - 1))), run.options());
      if (!less.best || limit.given()) found.notes.emplace_back("fewer", fewer_text(less, limit));
    }
    return found;
  });
  rows.notes.emplace_back("next", plan_command(next));
  print_rows(rows, output);
  return 0;
}

// ---- how sure ----

int rates(const WhatIf& what_if, const Job& job, int threads, const WhatIfOutput& output) {
  const bool json = output.json;
  const PlanQuestion question = make_plan_question(job);
  sim::Sensitivity sensitivity;
  const sim::PlanAnswer answer = what_if_unless_interrupted(threads, [&](WhatIfRun& run) {
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
                          : printable(sim::sensitivity_text(answer, sensitivity, output.brief)));
  } else {
    Job measured = job;
    measured.set_cluster("mine.txtpb");
    const std::string then = plan_command(measured);
    fmt::print("{}", json ? str(sim::experiments_json(answer, sensitivity, then), "\n")
                          : printable(sim::experiments_text(answer, sensitivity, then, output.brief)));
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

void check(const WhatIf& what_if, const WhatIfOutput& output, const std::vector<std::string>& others) {
  const std::vector<std::string> asked = what_if.asked();
  if (asked.size() > 1)
    throw InvalidInput(str(join(asked, " and "), " are questions of their own; ask one at a time"));
  if (!asked.empty() && !others.empty()) {
    throw InvalidInput(str(others.front(), " is of a plan, and ", asked.front(),
                           " asks something else; leave one of them out"));
  }
  if (!output.csv.empty() && (what_if.sensitivity || what_if.next_experiment)) {
    throw InvalidInput(str("--csv writes rows of layouts, and ", asked.front(),
                           " has none; use --json, or --csv with --sweep, --maximize or --minimize"));
  }
  const char* limit = what_if.step_time_max_ms ? "--step-time-max" : "--tokens-per-s-min";
  if (what_if.step_time_max_ms && what_if.tokens_per_s_min)
    throw InvalidInput("--step-time-max and --tokens-per-s-min are one limit twice; give one of them");
  if ((what_if.step_time_max_ms || what_if.tokens_per_s_min) && what_if.minimize.empty()) {
    throw InvalidInput(str(limit,
                           " is a limit of --minimize gpus; add that, or see the time for each number of ",
                           "GPUs with --sweep nodes=1,2,4,8"));
  }
}

int answer_what_if(const WhatIf& what_if, const Job& job, int threads, const WhatIfOutput& output) {
  if (!what_if.sweep.empty()) return answer_sweep(what_if.sweep, job, threads, output);
  if (!what_if.maximize.empty()) return maximize(what_if, job, threads, output);
  if (!what_if.minimize.empty()) return minimize(what_if, job, threads, output);
  return rates(what_if, job, threads, output);
}

}  // namespace cp::cli
