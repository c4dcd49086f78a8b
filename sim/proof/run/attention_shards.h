// The buffers of one rank of an attention problem, on whatever device it runs: made from test data before a
// pass, compared with what one device has after it.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "shared/base/digest.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/device.h"
#include "sim/proof/ledger/buffer_roles.h"
#include "sim/proof/run/attention_test_data.h"

namespace cp::sim {

struct AttentionTolerances;

struct TensorError {
  std::string tensor;  // "out", "lse", "dq", "dk", "dv"
  double max_error = 0;
  double tolerance = 0;  // the largest: each element has its own (attention_tolerance.h)
  std::string finding;   // where, on which rank, found and expected; empty when within the tolerance
  bool holds() const { return finding.empty(); }
  void add(const TensorError& other);  // the same tensor's on another rank
};

// What the ranks computed, gathered into global tensors, row-major [batch, heads, seq, dim] (lse: [batch,
// heads, seq]).
struct AttentionResults {
  std::vector<double> out, lse, dq, dk, dv;
};

// The caller's buffers of a rank, by name.
using RankBuffers = std::map<std::string, std::vector<std::byte>>;

// For any thread. Ranks must be those of the request.
class AttentionShards {
 public:
  AttentionShards(const AttentionTestData& data, const AttentionRequest& request);  // which must outlive this

  // A rank's place among the cp ranks.
  int index_of(Rank rank) const { return index_of_.at(rank); }

  // Makes the buffers that the plan wants and that are not there yet. Inputs of the problem are filled; what
  // the forward pass kept stays as it is.
  Bindings bind(AttentionPass pass, const Plan& plan, RankBuffers& buffers) const;

  // How far each tensor that the pass computed is from one device's.
  std::map<Tensor, TensorError> compare(AttentionPass pass, const Plan& plan, const RankBuffers& buffers,
                                        const AttentionTolerances& tolerances) const;
  // Of outputs whose elements were only moved, by buffer name: equal in every world.
  static std::map<std::string, Digest> digests(const Plan& plan, const RankBuffers& buffers);

  // NaN, as large as the pass's global results.
  void make_room(AttentionPass pass, AttentionResults& results) const;
  // The rows that the rank has. Several threads may write at once: each rank has rows of its own.
  void gather(AttentionPass pass, const Plan& plan, const RankBuffers& buffers,
              AttentionResults& results) const;

 private:
  BufferRole role_of(AttentionPass pass, const Plan& plan, const Buffer& buffer) const;
  void fill(const BufferRole& role, DType dtype, std::byte* bytes) const;

  const AttentionTestData& data_;
  const AttentionRequest& request_;
  const AttentionSharding sharding_;
  std::map<Rank, int> index_of_;
};

}  // namespace cp::sim
