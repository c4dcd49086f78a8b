// Every layout that a question allows: families of degrees, order, sharding and micro-batch, whose members
// differ in the strategy of attention, in what is recomputed and in the loss's chunks.
//
//   degrees       all factorisations of the GPUs into dp_replicate, dp_shard, cp, tp and pp; ep divides the
//                 experts
//   strategy      Ulysses of every degree with ring and all-gather; rings in rings; need_only, pass_q; with
//                 the balances that suit them
//   micro_batch   1, 2, 4, 8, 16 where they divide; virtual_stages 1, 2, 4; loss_chunks 1, 4, 16; every:2 and
//                 every:4
//   zero          3, 2 and 1 of what is sharded without stages; with stages 1
//   tp            with and without sequence parallelism
//   mlp_chunks    1, 4, 16; activations on the GPU and in host memory
//
// The last three make ten times as many layouts, of which most tie with one that has none of them. They are
// looked at where the question names a framework, as far as that has them; else sharded parameters and split
// rows are meant, and no pieces and no host memory, unless the question fixes otherwise.
//
// What a framework of the question has no word for is left out (sim/cost/frameworks).
//
// Orders and shardings that put the same ranks into the same groups count once. Of standard_strategies() one
// is left out, need_only with the balance cost: it serves documents of several lengths, which no question
// has. Where all rows see what lies before them (or a window of it) head_tail and striped are as even, in few
// runs of rows, and a plan of q_len / 64 blocks takes over ten times as long to write and replay. `--fix
// strategy=need_only,balance=cost` asks for it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/planner/search/question.h"

namespace cp::sim {

class LayoutSpace {
 public:
  explicit LayoutSpace(const PlanQuestion& question)  // which must outlive this
      : LayoutSpace(question, !question.frameworks.empty()) {}
  LayoutSpace(const PlanQuestion& question, bool every_choice);

  // The first member of each family, legal or not. Throws InvalidInput where what is fixed leaves none: it
  // names what does not fit. `left_out`: adds the layouts that a framework has no word for, in families of
  // their own or beside members that it has.
  std::vector<ParallelLayout> families(std::int64_t* left_out = nullptr) const;
  std::int64_t num_members(const ParallelLayout& family) const;
  // All legal where one is, but for chunks of an MLP with experts or without rows enough. In a fixed order:
  // those that differ in loss chunks alone after each other, the fewest first, and before them those that
  // differ in mlp_chunks or activations as well and have fewer of the former, or the latter on the GPU.
  std::vector<ParallelLayout> members(const ParallelLayout& family) const;
  // One of them: with the first strategy, and what takes least memory of all else.
  ParallelLayout leanest_member(ParallelLayout family) const;

 private:
  // With what the frameworks have no word for, and without.
  std::vector<Strategy> all_strategies(const ParallelLayout& family) const;
  std::vector<Recompute> all_recomputes(const ParallelLayout& family) const;
  std::vector<int> all_loss_chunks(const ParallelLayout& family) const;
  // Of mlp_chunks and activations: what takes least time first.
  struct Savings {
    int mlp_chunks = 1;
    bool host_activations = false;
  };
  std::vector<Savings> all_savings(const ParallelLayout& family) const;
  // Those that go with the recomputation.
  std::vector<Savings> savings(const ParallelLayout& family, const Recompute& recompute) const;
  std::vector<Strategy> strategies(const ParallelLayout& family) const;
  std::vector<Recompute> recomputes(const ParallelLayout& family) const;
  std::vector<int> loss_chunks(const ParallelLayout& family) const;
  bool can_be_said(const ParallelLayout& layout, RulePart part) const;
  // Of families that what is fixed leaves, none of which can be said.
  [[noreturn]] void throw_cannot_be_said(const ParallelLayout& family) const;
  void add_orders(ParallelLayout layout, std::vector<ParallelLayout>& families) const;
  void add_variants(ParallelLayout layout, std::vector<ParallelLayout>& families) const;

  const PlanQuestion& question_;
  const bool training_, every_choice_;
};

}  // namespace cp::sim
