// What each rank of a run of a recurrence is given, and whether what it computed is right.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/placement/index_set.h"
#include "shared/plan/bindings.h"
#include "shared/recurrence/recurrence_plan.h"
#include "sim/proof/run/attention_shards.h"
#include "sim/proof/run/recurrence_test_data.h"
#include "sim/proof/run/recurrence_tolerance.h"

namespace cp::sim {

// The global tensor of the buffer of that name, [batch, seq_len, heads, dim]: an input, or one device's
// result.
const std::vector<double>& global_tensor(const RecurrenceTestData& data, std::string_view name);

// Any thread may use it. Ranks must be those of the request.
class RecurrenceShards {
 public:
  // Both must outlive this. The request may be of some rows of the data's sequence, those from `first_row`
  // on, as each step of serving is.
  RecurrenceShards(const RecurrenceTestData& data, const RecurrenceRequest& request,
                   std::int64_t first_row = 0);

  // Makes the buffers that the plan wants and that are not in `buffers` yet, and returns where they are.
  // Inputs of the problem are filled with data. What the forward pass has kept stays as it is.
  Bindings bind(const Plan& plan, RankBuffers& buffers) const;

  // How far each tensor that the plan computed is from one device's, by its name.
  std::map<std::string, TensorError> compare(const Plan& plan, const RankBuffers& buffers,
                                             const RecurrenceTolerances& tolerances) const;
  // The digests of those outputs whose elements were only moved, by buffer name. They are equal in every
  // world.
  static std::map<std::string, Digest> digests(const Plan& plan, const RankBuffers& buffers);
  // Copies what the rank has of a result, named as its buffer, into the global tensor [batch, seq_len, heads,
  // dim].
  void gather(const Plan& plan, const RankBuffers& buffers,
              std::map<std::string, std::vector<double>>& results) const;

 private:
  // Calls visit(place in the rank's buffer, place in the global tensor) for each row of each head: of `heads`
  // heads of `dim` elements.
  template <class Visit>
  void for_each_row(const Plan& plan, std::int64_t heads, std::int64_t dim, const Visit& visit) const;
  // Heads and dim of a tensor of rows.
  std::pair<std::int64_t, std::int64_t> sizes_of(const std::string& tensor) const;

  const RecurrenceTestData& data_;
  const RecurrenceRequest& request_;
  const std::int64_t first_row_;
  std::map<Rank, IndexSet> rows_;
};

}  // namespace cp::sim
