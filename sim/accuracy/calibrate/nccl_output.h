// What nccl-tests prints (all_gather_perf and its like), as users keep it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cp::sim {

// Out of place.
struct NcclRow {
  std::string where;  // "all_gather.txt:17"
  double bytes = 0;   // the column `size`
  double time_us = 0;
  double algorithm_gbps = 0, bus_gbps = 0;
  // Half of the last digit that was printed, of either rate.
  double algorithm_rounding = 0, bus_rounding = 0;
};

struct NcclOutput {
  std::string test;         // "all_gather_perf", where the output says so
  int gpus = 0, nodes = 0;  // of its lines "# Rank N ... on HOST"; 0: it has none
  std::vector<NcclRow> rows;
};

// Reads the output. Columns are found by the header above the rows, since old versions print no redop and
// root; without a header they are those of current versions. It skips comments, what NCCL logs (even in the
// middle of a row), the marks of mpirun --tag-output, rows of size 0, and other text. Throws InvalidInput
// with file and line for a row that is cut short, a value that is not a number, a time of 0 and wrong
// results, and if there is no row at all.
NcclOutput read_nccl_output(std::string_view text, std::string_view filename);

}  // namespace cp::sim
