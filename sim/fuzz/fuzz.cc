#include "sim/fuzz/fuzz.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "shared/base/error.h"
#include "shared/mesh/mesh.h"
#include "sim/fuzz/isolated.h"
#include "sim/fuzz/shrink.h"
#include "sim/fuzz/workers.h"
#include "traces/fuzz_case.h"

namespace cp::sim {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Chosen: as long as a person waits for an answer. Longer runs set the time or the number of cases.
constexpr std::chrono::seconds kDefaultTime{60};
constexpr std::string_view kDrawnCase =
    "drawn case";  // the property of what generators draw and nobody takes

struct CorpusCase {
  std::string path;
  proto::FuzzCase fuzz_case;
};

std::vector<CorpusCase> read_corpus(const std::vector<std::string>& folders) {
  std::vector<CorpusCase> cases;
  for (std::size_t i = 0; i < folders.size(); ++i) {
    std::error_code error;
    if (i + 1 == folders.size()) fs::create_directories(folders[i], error);
    std::vector<std::string> paths;
    for (const auto& entry : fs::directory_iterator(folders[i], error)) {
      if (entry.path().extension() == ".txtpb") paths.push_back(entry.path().string());
    }
    if (error)
      throw InvalidInput(
          str("--corpus ", folders[i], ": ", error.message(), "; give a folder that exists or can be made"));
    std::sort(paths.begin(), paths.end());
    for (const std::string& path : paths) cases.push_back({path, read_case_file(path)});
  }
  return cases;
}

class Session {
 public:
  Session(const FuzzOptions& options, const std::function<void(const FuzzStatus&)>& on_status)
      : options_(options), on_status_(on_status), begin_(Clock::now()), corpus_(read_corpus(options.corpus)) {
    if (options.time || !options.cases) deadline_ = begin_ + options.time.value_or(kDefaultTime);
  }

  FuzzResult run() {
    for (const CorpusCase& known : corpus_) coverage_.add(known.fuzz_case);
    run_corpus();
    if (!result_.failure && !ended()) run_drawn();
    result_.stopped = is_stopped();
    tell("cases");
    return std::move(result_);
  }

 private:
  bool is_stopped() const { return options_.stop != nullptr && options_.stop->load(); }
  bool is_over() const { return deadline_ && Clock::now() >= *deadline_; }
  bool ended() const { return is_stopped() || is_over(); }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  void tell(std::string phase) {
    FuzzStatus& status = result_.status;
    status.phase = std::move(phase);
    status.seconds = seconds();
    status.covered = coverage_.covered();
    status.cells = coverage_.cells();
    if (on_status_) on_status_(status);
  }

  // All of it, whatever the time: it is what has failed before, and what reached new ground.
  void run_corpus() {
    WorkOptions work = work_options();
    work.end = corpus_.size();
    work.make = [&](std::uint64_t number) { return corpus_[number].fuzz_case; };
    work.twice_each = 0;
    const WorkResult done = run_workers(work, [&](const WorkStatus& status) {
      result_.status.cases = status.cases;
      tell("corpus");
      return !is_stopped();
    });
    result_.corpus_cases = done.cases;
    result_.status.cases = done.cases;
    if (done.failure)
      fail(*done.failure, corpus_[done.failure->number].fuzz_case, corpus_[done.failure->number].path);
  }

  void run_drawn() {
    WorkOptions work = work_options();
    work.end = options_.cases.value_or(UINT64_MAX);
    work.make = [&](std::uint64_t number) { return draw_case(options_.target, options_.seed, number); };
    work.coverage = &coverage_;
    work.may_be_none = true;
    work.on_new_cells = [&](std::uint64_t number) { keep(work.make(number)); };
    const std::uint64_t before = result_.status.cases;
    const WorkResult done = run_workers(work, [&](const WorkStatus& status) {
      result_.status.cases = before + status.cases;
      tell("cases");
      return !ended();
    });
    result_.status.cases = before + done.cases;
    if (!done.failure) return;
    const std::uint64_t number = done.failure->number;
    fail(*done.failure, done.failure->finding.property() == kDrawnCase ? as_drawn(number) : work.make(number),
         str("case ", number, " of seed ", options_.seed));
  }

  // What cannot be drawn, or is refused, has no other text.
  proto::FuzzCase as_drawn(std::uint64_t number) const {
    proto::FuzzCase fuzz_case;
    proto::Drawn& drawn = *fuzz_case.mutable_drawn();
    drawn.set_target(std::string(name(options_.target)));
    drawn.set_seed(options_.seed);
    drawn.set_number(number);
    return fuzz_case;
  }

  WorkOptions work_options() const {
    WorkOptions work;
    work.jobs = options_.jobs;
    work.case_limit = options_.case_limit;
    return work;
  }

  // First in a cell, as a worker says: of what all workers have seen.
  void keep(const proto::FuzzCase& fuzz_case) {
    if (coverage_.add(fuzz_case) == 0 || options_.corpus.empty()) return;
    write_case_in(options_.corpus.back(), "case", fuzz_case);
    ++result_.new_in_corpus;
  }

  void fail(const WorkFailure& found, proto::FuzzCase fuzz_case, const std::string& drawn_as) {
    ++result_.status.failures;
    FuzzFailure failure;
    failure.drawn_as = drawn_as;
    failure.found_after_s = seconds();
    failure.found_after_cases = result_.status.cases;
    *fuzz_case.mutable_finding() = found.finding;
    failure.fuzz_case = shrunk(std::move(fuzz_case));
    failure.path = write_case_in(options_.failures, "failure", failure.fuzz_case);
    result_.failure = std::move(failure);
  }

  proto::FuzzCase shrunk(proto::FuzzCase fuzz_case) {
    const std::string property = fuzz_case.finding().property();
    // A process of its own need not show it; no simpler case is more of one.
    if (property == "determinism" || property == kDrawnCase) return fuzz_case;
    ShrinkOptions options;
    options.deadline = Clock::now() + options_.shrink_time;
    options.stopped = [&] { return is_stopped(); };
    // What never ends is known to after a tenth of the time that smaller cases take long before.
    const auto limit =
        property == "time" ? options_.case_limit / 10 + std::chrono::seconds(1) : options_.case_limit;
    options.still_fails = [&](const proto::FuzzCase& next) -> std::optional<proto::FuzzCase> {
      result_.status.shrinking = size_text(next);
      tell("shrinking");
      const auto isolated = judge_isolated(next, limit, options_.stop);
      if (!isolated || !isolated->is_case || !isolated->judgement.finding) return std::nullopt;
      if (isolated->judgement.finding->property() != property) return std::nullopt;
      proto::FuzzCase failing = next;
      *failing.mutable_finding() = *isolated->judgement.finding;
      return failing;
    };
    return shrink(in_a_fixed_order(std::move(fuzz_case), options), options);
  }

  // Found while the ranks ran on all cores, whose order is the machine's: in an order that is drawn from a
  // seed it fails each time, where one is found soon.
  static proto::FuzzCase in_a_fixed_order(proto::FuzzCase fuzz_case, const ShrinkOptions& options) {
    // Chosen: a failure that needs more orders than these is shrunk as it was found.
    constexpr std::uint64_t kSeeds = 8;
    if (fuzz_case.has_model() || fuzz_case.has_proof() || fuzz_case.has_flows() ||
        fuzz_case.order().kind() != proto::Order::parallel)
      return fuzz_case;
    for (std::uint64_t seed = 0; seed < kSeeds && Clock::now() < options.deadline; ++seed) {
      proto::FuzzCase ordered = fuzz_case;
      ordered.clear_finding();
      ordered.mutable_order()->set_kind(seed == 0 ? proto::Order::round_robin : proto::Order::pct);
      if (seed > 0) ordered.mutable_order()->set_seed(seed), ordered.mutable_order()->set_depth(3);
      if (auto failing = options.still_fails(ordered)) return *std::move(failing);
    }
    return fuzz_case;
  }

  const FuzzOptions& options_;
  const std::function<void(const FuzzStatus&)>& on_status_;
  const Clock::time_point begin_;
  std::optional<Clock::time_point> deadline_;
  const std::vector<CorpusCase> corpus_;
  Coverage coverage_;
  FuzzResult result_;
};

}  // namespace

FuzzResult fuzz(const FuzzOptions& options, const std::function<void(const FuzzStatus&)>& on_status) {
  return Session(options, on_status).run();
}

std::string write_case_in(const std::string& folder, const std::string& prefix,
                          const proto::FuzzCase& fuzz_case) {
  std::error_code error;
  fs::create_directories(folder, error);
  const std::string path =
      (fs::path(folder) / str(prefix, "-", to_string(digest(fuzz_case)).substr(0, 12), ".txtpb")).string();
  std::ofstream file(path);
  file << write_case_text(fuzz_case);
  file.close();
  if (!file) throw InvalidInput(str(path, " cannot be written; give another folder"));
  return path;
}

std::string size_text(const proto::FuzzCase& fuzz_case) {
  if (fuzz_case.has_drawn()) return "the number of a case";
  if (fuzz_case.has_flows())
    return str(fuzz_case.flows().flows_size(), " flows over ", fuzz_case.flows().capacities_size(), " links");
  if (fuzz_case.has_program()) {
    const proto::Program& job = fuzz_case.program();
    return str(job.ranks(), job.ranks() == 1 ? " rank, " : " ranks, ", job.items() - job.without_size(),
               " items");
  }
  const std::string& mesh =
      fuzz_case.has_redistribute() ? fuzz_case.redistribute().mesh() : fuzz_case.attention().mesh();
  if (fuzz_case.has_model()) return str("a step under ", fuzz_case.model().layout());
  if (fuzz_case.has_proof()) return str("a step with data under ", fuzz_case.proof().step().layout());
  const int ranks = Mesh::parse(mesh).size();
  const std::string of = fuzz_case.has_redistribute() ? str(fuzz_case.redistribute().shape(), " elements")
                                                      : str(fuzz_case.attention().seq_len(), " tokens");
  return str(ranks, ranks == 1 ? " rank, " : " ranks, ", of);
}

}  // namespace cp::sim
