#include "traces/scenario.h"

#include <vector>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include "shared/base/error.h"
#include "traces/read_text.h"

namespace cp {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::TextFormat;

// The fields without which a job means nothing, as they would be written.
std::vector<std::string> missing_fields(const proto::Scenario& scenario) {
  std::vector<std::string> missing;
  const auto require = [&](bool given, std::string_view example) {
    if (!given) missing.emplace_back(example);
  };
  if (scenario.has_redistribute()) {
    const proto::Redistribute& job = scenario.redistribute();
    require(!job.mesh().empty() || job.has_parallel_dims(), "mesh: \"dp=2,cp=4\"");
    require(!job.shape().empty(), "shape: \"1024x1024\"");
    require(!job.from().empty(), "from: \"S(0),R\"");
    require(!job.to().empty(), "to: \"R,S(0)\"");
  } else if (scenario.has_plan()) {
    const proto::PlanLayouts& job = scenario.plan();
    require(!job.model().empty(), "model: \"llama-3.1-8b\"");
    require(job.seq_len() != 0 || job.has_cached(), "seq_len: 131072");
  } else if (scenario.has_recurrence()) {
    require(!scenario.recurrence().rule().empty(), "rule: \"delta\"");
    require(!scenario.recurrence().mesh().empty() || scenario.recurrence().has_parallel_dims(),
            "mesh: \"cp=8\"");
    require(scenario.recurrence().seq_len() != 0, "seq_len: 4096");
  } else if (scenario.has_train()) {
    require(!scenario.train().model().empty(), "model: \"llama-3.1-8b\" scaled_down: true");
    require(scenario.train().seq_len() != 0, "seq_len: 128");
    require(scenario.train().steps() != 0, "steps: 200");
  } else if (scenario.has_run()) {
    require(!scenario.run().mesh().empty() || scenario.run().has_parallel_dims(), "mesh: \"cp=8\"");
    require(scenario.run().seq_len() != 0, "seq_len: 4096");
  }
  return missing;
}

std::string_view purpose(proto::Scenario::JobCase job) {
  switch (job) {
    case proto::Scenario::kRedistribute:
      return "needs to move a tensor";
    case proto::Scenario::kPlan:
      return "needs to plan";
    case proto::Scenario::kTrain:
      return "needs to train";
    default:
      return "needs to compute";
  }
}

void check_required(const proto::Scenario& scenario, const TextLocations& locations, TextErrors& errors) {
  if (scenario.job_case() == proto::Scenario::JOB_NOT_SET) {
    return errors.add(TextFormat::ParseLocation(),
                      "the scenario asks for nothing; add: redistribute { ... }, run { ... }, recurrence { "
                      "... }, plan { ... } or train { ... }");
  }
  const std::vector<std::string> missing = missing_fields(scenario);
  if (missing.empty()) return;
  const FieldDescriptor* job = proto::Scenario::descriptor()->FindFieldByNumber(scenario.job_case());
  errors.add(locations.GetLocation(job, -1),
             str(job->name(), " lacks fields that it ", purpose(scenario.job_case()), "; add, for example, ",
                 join(missing, ", ")));
}

}  // namespace

proto::Scenario read_scenario_text(std::string_view text, std::string_view filename) {
  proto::Scenario scenario;
  read_text(text, filename, "scenario", scenario, [&](const TextLocations& locations, TextErrors& errors) {
    check_required(scenario, locations, errors);
  });
  return scenario;
}

proto::Scenario read_scenario_file(const std::string& path) {
  return read_scenario_text(read_text_file(path, "scenario"), path);
}

std::string write_scenario_text(const proto::Scenario& scenario) {
  std::string text;
  TextFormat::Printer printer;
  CP_INVARIANT(printer.PrintToString(scenario, &text), "a scenario of ", scenario.ByteSizeLong(), " bytes");
  return "# proto-file: traces/scenario.proto\n# proto-message: cp.proto.Scenario\n\n" + text;
}

}  // namespace cp
