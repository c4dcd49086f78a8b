#include "sim/fuzz/judge.h"

#include <algorithm>
#include <array>

#include "shared/base/nearest.h"
#include "sim/fuzz/draw.h"

namespace cp::sim {
namespace {

constexpr std::array<std::string_view, 18> kRedistributionLaws = {
    "overlaps",       "groups",    "legality",   "mutants",       "digests",    "progress",
    "texts",          "again",     "relabelled", "one_rank_axis", "split_axis", "permuted_copies",
    "there_and_back", "transpose", "choices",    "exhaustive",    "elements",   "timeline"};
constexpr std::array<std::string_view, 12> kAttentionLaws = {
    "ledger",    "mutants", "digests", "progress", "texts",          "again",
    "home_rows", "scaled",  "swapped", "shifted",  "other_strategy", "timeline"};
constexpr std::array<std::string_view, 5> kRecurrenceLaws = {"again", "texts", "progress", "timeline",
                                                             "mutants"};
constexpr std::array<std::string_view, 8> kModelLaws = {"texts",    "layout_texts", "memory",   "bound",
                                                        "timeline", "operations",   "pipeline", "pairs"};
constexpr std::array<std::string_view, 2> kProgramLaws = {"texts", "fields"};
constexpr std::array<std::string_view, 1> kFlowsLaws = {"flows"};

void require_known(const proto::FuzzCase& fuzz_case) {
  const auto known = laws_of(fuzz_case.job_case());
  for (const std::string& law : fuzz_case.laws()) {
    if (std::find(known.begin(), known.end(), law) != known.end()) continue;
    const std::string near = nearest(law, {known.begin(), known.end()});
    throw InvalidInput(str("law '", law, "' is unknown; use ", near.empty() ? join(known, ", ") : near));
  }
}

}  // namespace

std::span<const std::string_view> laws_of(proto::FuzzCase::JobCase job) {
  switch (job) {
    case proto::FuzzCase::kRedistribute:
      return kRedistributionLaws;
    case proto::FuzzCase::kAttention:
      return kAttentionLaws;
    case proto::FuzzCase::kRecurrence:
      return kRecurrenceLaws;
    case proto::FuzzCase::kModel:
      return kModelLaws;
    case proto::FuzzCase::kFlows:
      return kFlowsLaws;
    case proto::FuzzCase::kProgram:
      return kProgramLaws;
    default:
      return {};
  }
}

bool Trial::asks(std::string_view law) const {
  return case_.laws().empty() ||
         std::find(case_.laws().begin(), case_.laws().end(), law) != case_.laws().end();
}

PropertyFailure Trial::failure(std::string_view property, std::string message) const {
  proto::Finding finding;
  finding.set_property(std::string(property));
  finding.set_message(std::move(message));
  return PropertyFailure(std::move(finding));
}

void add_traces(const std::vector<RankTrace>& traces, Hasher& hasher) {
  for (const RankTrace& trace : traces) {
    for (const auto& [stream, records] : records_by_stream(trace.observed, true)) {
      hasher.add(trace.rank).add(stream);
      for (const OpRecord* record : records) hasher.add(to_string(*record));
    }
    for (const auto& [name, digest] : trace.digests) hasher.add(name).add(digest);
  }
}

namespace {

// Generators make legal cases alone: one that is refused is a defect of theirs, or of what refuses it.
void judge_drawn(const proto::Drawn& drawn, Trial& trial) {
  const FuzzTarget target = parse_fuzz_target(drawn.target());
  const Judgement judgement =
      trial.property("drawn case", [&] { return judge(draw_case(target, drawn.seed(), drawn.number())); });
  trial.hasher().add(judgement.digest);
  if (judgement.finding) throw PropertyFailure(*judgement.finding);
}

}  // namespace

Judgement judge(const proto::FuzzCase& fuzz_case) {
  require_known(fuzz_case);
  Trial trial(fuzz_case);
  Judgement judgement;
  try {
    switch (fuzz_case.job_case()) {
      case proto::FuzzCase::kRedistribute:
        judge_redistribution(fuzz_case.redistribute(), trial);
        break;
      case proto::FuzzCase::kAttention:
        judge_attention(fuzz_case.attention(), trial);
        break;
      case proto::FuzzCase::kRecurrence:
        judge_recurrence(fuzz_case.recurrence(), trial);
        break;
      case proto::FuzzCase::kModel:
        judge_model(fuzz_case.model(), trial);
        break;
      case proto::FuzzCase::kProof:
        judge_proof(fuzz_case.proof(), trial);
        break;
      case proto::FuzzCase::kFlows:
        judge_flows(fuzz_case.flows(), trial);
        break;
      case proto::FuzzCase::kProgram:
        judge_program(fuzz_case.program(), trial);
        break;
      case proto::FuzzCase::kDrawn:
        judge_drawn(fuzz_case.drawn(), trial);
        break;
      default:
        throw InvalidInput(
            "the case asks for nothing; add: redistribute { ... }, attention { ... }, recurrence { ... }, "
            "model { ... }, proof { ... } or program { ... }");
    }
  } catch (const PropertyFailure& failure) {
    judgement.finding = failure.finding();
    trial.hasher().add(failure.finding().property());
  }
  judgement.digest = trial.hasher().digest();
  judgement.ran = trial.has_run();
  return judgement;
}

}  // namespace cp::sim
