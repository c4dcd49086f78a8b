// The buffers of one rank of an attention problem, on whatever device it runs. They are made from test data
// before a pass, and compared with what one device has after it.
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

// How far a tensor is from one device's.
struct TensorError {
  std::string tensor;  // "out", "lse", "dq", "dk", "dv", "dsinks", "dlatent", "dkv_up"
  double max_error = 0;
  double tolerance = 0;  // the largest one: each element has its own (attention_tolerance.h)
  std::string finding;   // where, on which rank, found and expected; empty if within the tolerance
  bool holds() const { return finding.empty(); }
  void add(const TensorError& other);  // joins what was found of the same tensor on another rank
};

// What the ranks computed, gathered into global tensors, row-major [batch, heads, seq, dim]; lse is [batch,
// heads, seq]. A tensor that no pass has computed is empty.
struct AttentionResults {
  std::vector<double> out, lse, dq, dk, dv, dlatent = {};  // dk and dv, or dlatent
};

// The caller's buffers of a rank, by name. They own their bytes.
using RankBuffers = std::map<std::string, std::vector<std::byte>>;

// Any thread may use it. Ranks must be those of the request.
class AttentionShards {
 public:
  AttentionShards(const AttentionTestData& data, const AttentionRequest& request);  // which must outlive this

  // A rank's place among the cp ranks.
  int index_of(Rank rank) const { return index_of_.at(rank); }

  // Makes the buffers that the plan wants and that are not in `buffers` yet, and returns where they are.
  // Inputs of the problem are filled with data. What the forward pass has kept stays as it is.
  Bindings bind(AttentionPass pass, const Plan& plan, RankBuffers& buffers) const;

  // How far each tensor that the pass computed is from one device's.
  std::map<Tensor, TensorError> compare(AttentionPass pass, const Plan& plan, const RankBuffers& buffers,
                                        const AttentionTolerances& tolerances) const;
  // The digests of those outputs whose elements were only moved, by buffer name. They are equal in every
  // world.
  static std::map<std::string, Digest> digests(const AttentionProblem& problem, const Plan& plan,
                                               const RankBuffers& buffers);

  // Makes the results of the pass as large as the global tensors, and fills them with NaN.
  void make_room(AttentionPass pass, AttentionResults& results) const;
  // Copies the rows that the rank has into the results. Several threads may write at once, because each rank
  // has rows of its own.
  void gather(AttentionPass pass, const Plan& plan, const RankBuffers& buffers,
              AttentionResults& results) const;

 private:
  BufferRole role_of(AttentionPass pass, const Plan& plan, const Buffer& buffer) const;
  TensorError compare_dsinks(const Plan& plan, const float* dsinks,
                             const AttentionTolerances& tolerances) const;
  TensorError compare_dkv_up(const Plan& plan, const float* dkv_up,
                             const AttentionTolerances& tolerances) const;
  void fill(const BufferRole& role, DType dtype, std::byte* bytes) const;

  const AttentionTestData& data_;
  const AttentionRequest& request_;
  const AttentionSharding sharding_;
  std::map<Rank, int> index_of_;
};

}  // namespace cp::sim
