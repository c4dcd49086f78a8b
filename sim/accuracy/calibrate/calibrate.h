// calibrate(): makes the curves of a cluster from what people measured on it. Tables become points of curves,
// the curves replace those that the cluster had, and the rows of the tables are predicted with the old and
// with the new cluster, so that the answer shows what the calibration improved.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/accuracy/calibrate/nccl_output.h"
#include "sim/accuracy/validate/validate.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/presets/csv.h"

namespace cp::sim {

// A row of a table, and what the timeline predicts for it.
struct MeasuredTime {
  std::string where;
  double measured_us = 0;
  std::function<double(const Cluster&)> predict_us;
};

// A curve that replaces one of a cluster, or is added to its others.
struct MeasuredCurve {
  std::string what;  // "all_gather, 16 GPUs of 2 nodes", "attention forward, causal, head_dim 128"
  std::string file;
  Curve curve;
  std::vector<MeasuredTime> rows;
  // Puts the curve into its place; returns the field ("collectives[2].time_us").
  std::function<std::string(Cluster&, const Curve&)> put;
};

// ---- tables, against the cluster whose peaks bound them. Sizes that come twice are averaged. Each throws InvalidInput with file
// ---- and line for a number that is not above 0, or above what the hardware can do.

// Curves from the output of nccl-tests. `operation` is named as nccl-tests or the cluster's text names it:
// all_gather, reduce_scatter, all_reduce, all_to_all, send_recv. `gpus` and `nodes` count if the output does
// not tell them; 0 means unknown. A send_recv also gives a curve of transfers: inside of a node if it ran on
// one node, otherwise across nodes. Also throws if the output is of another test, if bus bandwidths do not
// fit the operation and the number of GPUs, or if the nodes do not have so many GPUs.
std::vector<MeasuredCurve> nccl_curves(std::string_view operation, const NcclOutput& output,
                                       std::string_view file, int gpus, int nodes, const Cluster& cluster);

// payload_bytes, intra_node_gbps, inter_node_gbps: GB/s of a pair. A column or a cell may be missing.
std::vector<MeasuredCurve> transfer_curves(const std::vector<CsvRow>& table, std::string_view file,
                                           const Cluster& cluster);

// Returns the rows whose column `gpu` has that name. With an empty name it returns all rows, and throws
// InvalidInput if they are of several GPUs. Also throws if there is no such row.
std::vector<CsvRow> rows_of_gpu(std::vector<CsvRow> table, std::string_view file, const std::string& gpu);

struct AttentionShape {
  int q_heads = 0, head_dim = 0, batch = 1;
};
// Columns: seq_len, mask (full or causal), forward_milliseconds, backward_milliseconds. The times are of the
// kernel alone, in 16 bit. A column or a cell of times may be missing.
std::vector<MeasuredCurve> attention_curves(const std::vector<CsvRow>& table, std::string_view file,
                                            const AttentionShape& shape, const Cluster& cluster);

// m, n, k, milliseconds: products in 16 bit.
MeasuredCurve matmul_curve(const std::vector<CsvRow>& table, std::string_view file, const Cluster& cluster);
// bytes (read and written), milliseconds.
MeasuredCurve memory_curve(const std::vector<CsvRow>& table, std::string_view file, const Cluster& cluster);

// ---- the cluster that they make

struct CurveFit {
  std::string field, what;
  Provenance provenance;
  int points = 0;
  ErrorSummary before, after;  // of the table's rows
};

struct Calibration {
  Cluster cluster;
  std::vector<CurveFit> fits;
};

// Puts the curves into the cluster. What is replaced gets the origin `measured`, with the file as its source.
// Throws InvalidInput for two curves of one place, and what validate_cluster throws.
Calibration calibrate(const Cluster& cluster, const std::vector<MeasuredCurve>& curves);

}  // namespace cp::sim
