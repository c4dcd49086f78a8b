#include "tests/identity/identity_case.h"

#include <cstddef>
#include <exception>
#include <fstream>
#include <utility>

#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/plan/session.h"
#include "sim/present/traces/trace_compare_report.h"
#include "sim/scenario/rank_job.h"
#include "traces/compare.h"
#include "traces/scenario.h"

namespace cp::testing {
namespace {

RankTrace run_passes(sim::RankJob& job, runtime::ProcessDevice& device) {
  RankTrace all;
  all.rank = device.rank();
  for (std::size_t pass = 0; pass < job.plans().size(); ++pass) {
    RankTrace trace;
    run_on_host_buffers(device, job.plans()[pass], {job.bind(pass), device.host_memory()}, {.trace = &trace});
    all.issued.insert(all.issued.end(), trace.issued.begin(), trace.issued.end());
    for (OpRecord& record : device.take_observed()) all.observed.push_back(std::move(record));
    all.digests.merge(job.digests(pass));
  }
  return all;
}

// What differs, in words.
std::string run_case(const IdentityCase& identity_case, runtime::ProcessDevice& device) {
  const auto job = sim::make_rank_job(identity_case.scenario, device.rank());
  const auto simulated = identity_case.simulated.find(device.rank());
  if (job->plans().empty() != (simulated == identity_case.simulated.end()))
    return "a rank has a part in one world alone";
  const RankTrace trace = run_passes(*job, device);
  std::vector<std::string> findings = job->findings();
  if (!job->plans().empty()) {
    const TraceComparison comparison = compare_traces({simulated->second}, {trace});
    if (!comparison.identical)
      findings.push_back(sim::compare_text({"the simulated fabric", "the device", {}, {}, comparison}));
  }
  return join(findings, "\n");
}

}  // namespace

IdentityCase make_identity_case(std::string name, proto::Scenario scenario, const Target& target) {
  sim::target_field(scenario) = target.name;
  IdentityCase made{std::move(name), std::move(scenario), {}};
  for (RankTrace& trace : sim::simulate(made.scenario)) {
    const Rank rank = trace.rank;
    made.simulated[rank] = std::move(trace);
  }
  return made;
}

std::string run_cases(const std::vector<IdentityCase>& cases, runtime::ProcessDevice& device,
                      std::string_view cprun) {
  std::string wrong;
  for (const IdentityCase& one : cases) {
    try {
      const std::string finding = run_case(one, device);
      if (!finding.empty()) wrong += explain(one, cprun, finding);
    } catch (const std::exception& error) {
      return wrong + explain(one, cprun, error.what());
    }
  }
  return wrong;
}

std::string explain(const IdentityCase& identity_case, std::string_view cprun, std::string_view finding) {
  const std::string path = str(::testing::TempDir(), identity_case.name, ".txtpb"),
                    text = write_scenario_text(identity_case.scenario);
  std::ofstream(path) << text;
  return str("\n", finding, "\n", text, "again: ", cprun, " --nproc-per-node ",
             sim::world_size_of(identity_case.scenario), " --verify ", path, "\n");
}

}  // namespace cp::testing
