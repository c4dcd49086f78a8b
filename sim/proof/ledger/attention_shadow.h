// What the attention kernels do to tags. Rows that do not belong together, keys that are none, gradients of
// unfinished rows, and another scale than the problem's become findings. Pairs are entered into the book.
#pragma once

#include <cstdint>
#include <string>

#include "sim/proof/ledger/shadow_run.h"

namespace cp::sim {

// One object runs all attention steps of a shadow run, one after the other.
class AttentionShadow {
 public:
  // Both must outlive this.
  AttentionShadow(const ShadowWorld& world, const StepNames& names) : world_(world), names_(names) {}

  // Says which step is executed next: its plan, its iteration, and its number in `names`.
  void begin(std::size_t plan, std::int64_t iteration, std::int32_t step) {
    plan_ = plan, iteration_ = iteration, step_ = step;
  }

  void run(const AttentionForward& op);
  void run(const AttentionBackward& op);
  void run(const AttentionDelta& op);
  void run(const AttentionSinkGradient& op);
  void run(const AttentionMerge& op);

 private:
  // The tags of the rows of a view, [batch, head, row]. The tag of a row is that of its first element.
  struct Rows {
    std::int64_t batches = 0, heads = 0, seq_len = 0;
    std::vector<Tag> tags;
    std::vector<std::int64_t> numbers;  // of rows of the expected tensor (TagSpace), -1 for any other

    std::size_t at(std::int64_t batch, std::int64_t head) const {
      return static_cast<std::size_t>((batch * heads + head) * seq_len);
    }
  };
  // The cells that some queries and keys have by the slices. The rows are given by their global numbers; -1
  // means that a row is none.
  struct Work {
    std::vector<Cells> of_query;  // by local row
    std::vector<Cells> of_key;    // by local row; the weights are those of the queries
  };
  struct Lanes;

  void merge(const AttentionMerge& op, const View& in, const View& in_lse, const std::string& role);
  Rows read(const View& view, Tensor tensor, std::string_view role);
  void write(const View& view, Tensor tensor, const Rows& like, std::span<const Cells> cells, bool accumulate,
             std::string_view role);
  void require_alike(const Rows& a, const Rows& b, std::string_view role_a, std::string_view role_b);
  // The rules of scores and weights, and that dropout numbers the rows and heads of q and k as they are.
  template <class Op>
  void require_scores(const Op& op, const Rows& q, const Rows& k);
  void require_numbers(const IndexSet& numbers, const Rows& rows, std::int64_t seq_len,
                       std::string_view role);
  // The head whose sink is at this element; -1: it is none.
  std::int64_t sink_at(BufferId buffer, std::int64_t offset) const;
  void join_sinks(const AttentionMerge& op, const View& values, const View& sinks);
  void require_finished(const Rows& rows, Tensor tensor, std::string_view role);
  Lanes lanes_of(const Rows& q, const Rows& k);
  Work work_of(std::span<const MaskSlice> slices, std::span<const std::int64_t> queries,
               std::span<const std::int64_t> keys, std::int32_t lanes);
  std::vector<Work> all_work(const Lanes& lanes, std::span<const MaskSlice> slices);

  template <class... Parts>
  void find(const Parts&... parts);

  const ShadowWorld& world_;
  const StepNames& names_;
  std::size_t plan_ = 0;
  std::int64_t iteration_ = 0;
  std::int32_t step_ = 0;
};

}  // namespace cp::sim
