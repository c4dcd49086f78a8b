// LayoutSpace: every layout that a question allows. Layouts come in families, which have degrees, order,
// sharding and micro-batch in common. The members of a family differ in the strategy of attention, in what is
// recomputed, and in the chunks of the loss.
//
//   degrees       all factorisations of the GPUs into dp_replicate, dp_shard, cp, tp and pp; ep divides the
//                 experts
//   strategy      Ulysses of every degree with ring and all-gather; rings in rings; need_only, pass_q; with
//                 the balances that suit them
//   overlap       pieces 1, 2, 4, 8 of what comes at once; slots 2, 3 of blocks that arrive in turn. These
//                 are no members: the search chooses them for each member (overlap.h)
//   keys          heads, and latent where the rows of latent attention may travel: no members either. The
//                 search tries both where the rows are fewer bytes
//   micro_batch   1, 2, 4, 8, 16 where they divide; virtual_stages 1, 2, 4; loss_chunks 1, 4, 16; recompute
//                 every:2 and every:4 beside the other kinds
//   zero          3, 2 and 1 of what is sharded without stages; with stages 1
//   tp            with and without sequence parallelism
//   mlp_chunks    1, 4, 16; activations on the GPU and in host memory
//
// The lists of numbers were chosen, not derived: powers of two or four, so that a search stays short. --fix
// takes other values.
//
// The last three lines make ten times as many layouts, and most of them tie with a layout that has none of
// these choices. So they are tried only if the question names a framework, as far as that framework has them.
// Otherwise parameters are sharded (zero 3, with stages 1), rows are split between tensor-parallel regions,
// and there are no MLP chunks and no activations in host memory, unless the question fixes something else.
//
// Layouts that a framework of the question cannot express are left out (sim/cost/frameworks). Orders and
// shardings that put the same ranks into the same groups count once.
//
// One of standard_strategies() is left out: need_only with the balance `cost`. It is for documents of several
// lengths, which no question has. If all rows see everything before them (or a window of it), head_tail and
// striped are as even with far fewer runs of rows; a plan of q_len / 64 blocks takes over ten times as long
// to write and replay. `--fix strategy=need_only,balance=cost` asks for it.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "sim/base/memo.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

// Whether the layout may send latent rows in place of heads (keys=latent), whatever its keys are now.
bool may_send_rows(const PlanQuestion& question, const ParallelLayout& layout);

class LayoutSpace {
 public:
  explicit LayoutSpace(const PlanQuestion& question)  // which must outlive this
      : LayoutSpace(question, !question.frameworks.empty()) {}
  LayoutSpace(const PlanQuestion& question, bool every_choice);

  // Returns the first member of each family, legal or not. Throws InvalidInput that names what does not fit,
  // if no family is left by what the question fixes. If `left_out` is given, the number of layouts that a
  // framework cannot express is added to it: whole families, and members of families that are returned.
  std::vector<ParallelLayout> families(std::int64_t* left_out = nullptr) const;
  std::int64_t num_members(const ParallelLayout& family) const;
  // Returns all members of a family, in a fixed order. If one is legal, all are, except that an MLP with
  // experts or with too few rows cannot be in chunks. Members that differ only in loss chunks stand next to
  // each other, the fewest chunks first. Among members that differ in mlp_chunks or activations, fewer chunks
  // come first, and activations on the GPU before those in host memory.
  std::vector<ParallelLayout> members(const ParallelLayout& family) const;
  // Returns the layout with each choice of pieces and slots that it may have, the fewest of both first. The
  // layout must be a member, and legal. Only plans have these choices: other software that the question names
  // takes its members as they are.
  std::vector<ParallelLayout> overlaps(const ParallelLayout& layout) const;
  int most_pieces_tried(const ParallelLayout& layout) const;  // the most that one of these has
  // Returns the member with the first strategy and, in all other choices, those that take least memory.
  ParallelLayout leanest_member(ParallelLayout family) const;

  // Whether the search may make the layout, whose keys are heads, one that sends latent rows.
  bool may_choose_rows(const ParallelLayout& layout) const;

  // Whether the software runs the plans themselves, and so what no framework has a word for.
  bool runs_plans() const { return runs_plans_; }

 private:
  [[noreturn]] void throw_nothing_sharded() const;
  // The all_* functions return every choice; those below leave out what the frameworks cannot express.
  AttentionProblem any_attention(const ParallelLayout& layout) const;
  Strategy::Keys fixed_keys(const ParallelLayout& family) const;
  // Gives a member what is fixed of layers with a window or a recurrence, as far as its strategy has it.
  void set_fixed(ParallelLayout& member) const;
  // Kept, since many families have the same; the reference stays valid.
  const std::vector<Strategy>& all_strategies(const ParallelLayout& family) const;
  std::vector<Strategy> make_strategies(const ParallelLayout& family) const;
  std::vector<Recompute> all_recomputes(const ParallelLayout& family) const;
  std::vector<int> all_loss_chunks(const ParallelLayout& family) const;
  // Choices of mlp_chunks and activations, in order: the one that takes least time first.
  struct Savings {
    int mlp_chunks = 1;
    bool host_activations = false;
  };
  std::vector<Savings> all_savings(const ParallelLayout& family) const;
  // The choices that are possible with this recomputation.
  std::vector<Savings> savings(const ParallelLayout& family, const Recompute& recompute) const;
  std::vector<Strategy> strategies(const ParallelLayout& family) const;
  std::vector<Recompute> recomputes(const ParallelLayout& family) const;
  std::vector<int> loss_chunks(const ParallelLayout& family) const;
  bool can_be_said(const ParallelLayout& layout, RulePart part) const;
  // Throws when what is fixed leaves families, and the frameworks can express none of them.
  [[noreturn]] void throw_cannot_be_said(const ParallelLayout& family) const;
  void add_orders(ParallelLayout layout, std::vector<ParallelLayout>& families) const;
  void add_variants(ParallelLayout layout, std::vector<ParallelLayout>& families) const;

  const PlanQuestion& question_;
  const bool training_, every_choice_, runs_plans_;
  // By cp, tp and micro_batch, which are all of a family that its strategies depend on.
  mutable Memo<std::tuple<int, int, std::int64_t>, std::vector<Strategy>> strategies_;
};

// What does not fit by one scan of recurrences may do so by that which needs least: in training the one that
// hands one state on, and in serving maybe heads, which spreads what is cached. Those of the two that are
// legal in this layout; none where there is nothing to choose.
std::vector<StateScan> lean_scans(const PlanQuestion& question, const ParallelLayout& layout);

}  // namespace cp::sim
