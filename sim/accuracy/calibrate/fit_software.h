// Free parameters of a software profile from times of whole attentions: each is the value with the smallest
// median error of the rows that it has a say in.
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
  std::vector<CsvCells> where;     // all cells of each
  std::vector<CsvCells> except;    // not those that have all cells of one
  std::int64_t min_hop_bytes = 0;  // of the keys and values that a rank passes on
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

// Each becomes measured, with `source` as its source. Searches within what a profile may hold, one parameter
// at a time until none moves; a parameter that no row depends on is an error, and so is an unknown name
// (InvalidInput). `progress` is told what happens.
SoftwareFit fit_software(const SoftwareProfile& software, const std::vector<std::string>& names,
                         const std::vector<AttentionTime>& rows, const std::string& source,
                         const std::function<void(const std::string&)>& progress = {});

}  // namespace cp::sim
