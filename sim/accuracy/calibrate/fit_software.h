// fit_software(): fits the free parameters of a software profile to measured times of whole attentions. Each
// parameter gets the value with the smallest median error over the rows that depend on it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/accuracy/validate/validate.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/presets/csv.h"

namespace cp::sim {

using CsvCells = std::vector<std::pair<std::string, std::string>>;  // column, cell

// Which rows of a table are taken.
struct RowFilter {
  std::vector<CsvCells> where;     // a row must have all cells of each of these
  std::vector<CsvCells> except;    // rows that have all cells of one of these are left out
  std::int64_t min_hop_bytes = 0;  // the least size of the keys and values that a rank passes on
};

// One attention over all its ranks.
struct AttentionTime {
  std::string where;
  double measured_us = 0;
  std::vector<Plan> plans;
  const Cluster* cluster = nullptr;
};

// Rows in the columns of sim/cost/presets/validation/ring_attention_a800_h800.csv: gpu (where `clusters` has
// any name but ""), heads, head_dim, batch, mask, pass (fwd, bwd), cp, seq_len, strategy (ring, zigzag,
// stripe), milliseconds; kv_heads may be there. Planned as the software sends. `clusters`: by the column gpu,
// other GPUs are passed over; "" is of all rows. They have as many nodes as the ranks need, are kept in
// `sized`, and must outlive the result. Throws InvalidInput with file and line for what a cell may not be,
// and when no row is left.
std::vector<AttentionTime> read_attention_times(const std::vector<CsvRow>& table, std::string_view file,
                                                const RowFilter& filter,
                                                const std::map<std::string, Cluster>& clusters,
                                                const SoftwareProfile& software,
                                                std::map<std::pair<std::string, int>, Cluster>& sized);

struct ParameterFit {
  std::string name;
  Provenance provenance;
  double old_value = 0, value = 0;  // value: three digits
  int rows = 0;                     // that it has a say in
  ErrorSummary before, after;       // of these
};

struct SoftwareFit {
  SoftwareProfile software;
  std::vector<ParameterFit> parameters;  // in the order of `names`
};

// Fits the named parameters, one at a time within the range that a profile allows, until none moves any more.
// Each gets the origin `measured` and `source` as its source. Throws InvalidInput for an unknown name, and
// for a parameter that no row depends on. `progress` is called with a line of text for each step.
SoftwareFit fit_software(const SoftwareProfile& software, const std::vector<std::string>& names,
                         const std::vector<AttentionTime>& rows, const std::string& source,
                         const std::function<void(const std::string&)>& progress = {});

}  // namespace cp::sim
