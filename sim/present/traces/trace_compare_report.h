// The text and the JSON that `cpsim trace compare` prints.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "traces/compare.h"
#include "traces/trace_proto.h"

namespace cp::sim {

struct ComparedTraces {
  std::string path_a, path_b;
  // Where the traces were cut off, in words.
  std::optional<std::string> truncation_a, truncation_b;
  TraceComparison comparison;

  bool any_is_cut() const { return truncation_a || truncation_b; }
  // False if a trace was cut off before any rank that both have: that is no agreement.
  bool compared_something() const { return comparison.num_ranks > 0 || !any_is_cut(); }
};

// Reads two traces and compares them. Of traces that were cut off, it compares what is there. Throws
// BadTrace.
ComparedTraces compare_trace_paths(const std::string& a, const std::string& b);

std::string compare_text(const ComparedTraces& traces);
nlohmann::ordered_json compare_json(const ComparedTraces& traces);

// One record, as show and compare write it. The keys are the names of fields of OpRecord.
nlohmann::ordered_json record_json(const OpRecord& record);

}  // namespace cp::sim
