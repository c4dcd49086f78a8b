#include "sim/proof/ledger/shadow_run.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "shared/base/text.h"
#include "shared/plan/operations.h"
#include "shared/plan/plan_walk.h"
#include "shared/plan/recurrence_rules.h"
#include "sim/proof/ledger/attention_shadow.h"
#include "sim/proof/ledger/latent_shadow.h"

namespace cp::sim {
namespace {

class ShadowRun {
 public:
  ShadowRun(const ShadowWorld& world, StepNames& names)
      : world_(world), names_(names), attention_(world, names), latent_(world, names) {
    for (const Plan& plan : world.plans) walks_.emplace_back(plan);
    numbers_.resize(walks_.size());
  }

  void run() {
    std::vector<std::size_t> ready(walks_.size());
    std::iota(ready.rbegin(), ready.rend(), std::size_t{0});
    while (!ready.empty()) {
      const std::size_t plan = ready.back();
      ready.pop_back();
      for (; !walks_[plan].done(); walks_[plan].next()) {
        PlanWalk& walk = walks_[plan];
        numbers_[plan] = names_.add(plan, walk.id(), walk.iteration());
        if (const auto* collective = std::get_if<Collective>(&walk.step().work)) {
          arrive(plan, *collective, ready);
          break;
        }
        std::visit([&](const auto& op) { run_kernel(plan, op); }, std::get<Kernel>(walk.step().work));
      }
    }
    for (std::size_t plan = 0; plan < walks_.size(); ++plan) {
      if (!walks_[plan].done()) find(plan, "waits for members that never come");
    }
  }

 private:
  // What waits on a group, by index in it.
  struct Meeting {
    std::vector<std::size_t> plans;
    std::vector<const Collective*> ops;
    std::size_t arrived = 0;
  };

  template <class... Parts>
  void find(std::size_t plan, const Parts&... parts) {
    world_.findings.add([&] { return str(names_.text(numbers_[plan]), ": ", parts...); });
  }

  void arrive(std::size_t plan, const Collective& collective, std::vector<std::size_t>& ready) {
    const Plan& mine = world_.plans[plan];
    const Group& group = mine.groups[static_cast<std::size_t>(group_of(collective))];
    Meeting& meeting = meetings_[{group.name, group.ranks}];
    meeting.plans.resize(group.ranks.size());
    meeting.ops.resize(group.ranks.size());
    const auto index = static_cast<std::size_t>(index_in_group(mine, group_of(collective)));
    meeting.plans[index] = plan;
    meeting.ops[index] = &collective;
    if (++meeting.arrived < group.ranks.size()) return;
    meeting.arrived = 0;
    run_collective(meeting);
    for (auto member = meeting.plans.rbegin(); member != meeting.plans.rend(); ++member) {
      walks_[*member].next();
      ready.push_back(*member);
    }
  }

  // ---- moving tags ----

  // Reads a view; unwritten memory is a finding.
  const std::vector<Tag>& read(std::size_t plan, const View& view, std::vector<Tag>& tags) {
    world_.memory.read(plan, view, walks_[plan].iteration(), tags);
    const auto bad =
        std::find_if(tags.begin(), tags.end(), [](const Tag& tag) { return tag.id == kUnwritten; });
    if (bad != tags.end()) {
      find(plan, "reads ", world_.plans[plan].buffers[static_cast<std::size_t>(view.buffer)].name,
           " where nothing was written");
    }
    return tags;
  }
  void write(std::size_t plan, const View& view, std::span<const Tag> tags) {
    world_.memory.write(plan, view, walks_[plan].iteration(), tags);
  }

  // a += b, element by element.
  void add(std::size_t plan, std::vector<Tag>& a, const std::vector<Tag>& b) {
    bool complained = false;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (b[i].id == kZeros) continue;
      if (a[i].id == kZeros) {
        a[i] = b[i];
        continue;
      }
      const bool partial = is_element(a[i]) && is_partial(world_.space.tensor(a[i].id));
      if ((a[i].id != b[i].id || !partial) && !std::exchange(complained, true)) {
        find(plan, "adds ", world_.space.text(b[i]), " to ", world_.space.text(a[i]));
      }
      a[i].cells += b[i].cells;
      a[i].print += b[i].print;
    }
  }
  static bool is_partial(Tensor tensor) {
    return tensor == Tensor::dq || tensor == Tensor::dk || tensor == Tensor::dv || tensor == Tensor::dlatent;
  }

  // `tags` arrived, each `numerator / denominator` times.
  void receive(std::size_t plan, std::span<const Tag> tags, const View& view, std::int64_t numerator = 1,
               std::int64_t denominator = 1) {
    if (tags.empty()) return;
    const Buffer& buffer = world_.plans[plan].buffers[static_cast<std::size_t>(view.buffer)];
    const std::int64_t tag_bytes = world_.memory.granule(plan, view.buffer) * size_bytes(buffer.dtype);
    std::array<std::int64_t, kTensors> count{};
    std::int64_t padding = 0, redundant = 0;
    for (const Tag& tag : tags) {
      if (!is_element(tag)) {
        ++padding;
        continue;
      }
      const Tensor tensor = world_.space.tensor(tag.id);
      ++count[static_cast<std::size_t>(tensor)];
      if (tensor != Tensor::k && tensor != Tensor::v && tensor != Tensor::latent) continue;
      const std::int64_t row = world_.space.element(tag.id).row;
      if (!world_.needed_keys[plan][static_cast<std::size_t>(row)]) ++redundant;
    }
    const auto bytes = [&](std::int64_t tags_of_it) {
      return tags_of_it * tag_bytes * numerator / denominator;
    };
    Received& received = world_.received[plan];
    for (std::size_t t = 0; t < kTensors; ++t) received.bytes[t] += bytes(count[t]);
    received.padding += bytes(padding);
    received.redundant_kv += bytes(redundant);
  }

  // ---- kernels ----

  void add_to(std::size_t plan, const View& in, const View& out) {
    read(plan, in, tags_);
    read(plan, out, more_tags_);
    add(plan, more_tags_, tags_);
    write(plan, out, more_tags_);
  }
  // After an attention kernel that wrote or added to the view.
  void require_wide_parts(std::size_t plan, const View& part, bool added) {
    if (!is_absent(part) && (added || !world_.rounds_parts)) require_wide_sums(plan, part);
  }
  // After a step that adds to the view.
  void require_wide_sums(std::size_t plan, const View& sums) {
    const DType dtype = world_.plans[plan].buffers[static_cast<std::size_t>(sums.buffer)].dtype;
    if (dtype == DType::f32) return;
    world_.memory.read(plan, sums, walks_[plan].iteration(), tags_);
    // Where latent rows travel, dk and dv are of one block, and are rounded before they are contracted.
    const bool of_block =
        world_.latent_travels && std::any_of(tags_.begin(), tags_.end(), [&](const Tag& tag) {
          const Tensor tensor = is_element(tag) ? world_.space.tensor(tag.id) : Tensor::q;
          return tensor == Tensor::dk || tensor == Tensor::dv;
        });
    for (const Tag& tag : tags_) {
      if (of_block || !is_element(tag) || world_.may_add_up_in(dtype, tag)) continue;
      return find(plan, "keeps ", world_.space.text(tag), " unfinished in ", name(dtype),
                  ", where the strategy adds up in f32");
    }
  }
  void begin_attention(std::size_t plan) { attention_.begin(plan, walks_[plan].iteration(), numbers_[plan]); }
  template <class Op>
  void run_kernel(std::size_t plan, const Op& op) {
    if constexpr (std::is_same_v<Op, Copy> || std::is_same_v<Op, Cast>) {
      write(plan, op.out, read(plan, op.in, tags_));
    } else if constexpr (std::is_same_v<Op, Fill>) {
      const bool minus_infinity = op.value == -std::numeric_limits<double>::infinity();
      const std::uint64_t id = op.value == 0 ? kZeros : minus_infinity ? kMinusInfinity : kOtherConstant;
      world_.memory.fill(plan, op.out, walks_[plan].iteration(), {id, 0, 0});
    } else if constexpr (std::is_same_v<Op, Accumulate>) {
      if (op.op != ReduceOp::sum) find(plan, "combines with ", name(op.op), " what is a sum");
      add_to(plan, op.in, op.out);
      require_wide_sums(plan, op.out);
    } else if constexpr (std::is_same_v<Op, Scale>) {
      if (op.factor != 1) find(plan, "scales by ", op.factor, ", which no step of attention does");
    } else if constexpr (std::is_same_v<Op, RowKernel>) {
      find(plan, name(op.operation), ", which no step of attention does");
    } else if constexpr (std::is_same_v<Op, MatMul>) {
      latent_.run(op, plan, walks_[plan].iteration(), numbers_[plan]);
      require_wide_sums(plan, op.out);
    } else if constexpr (kIsRecurrence<Op>) {
      find(plan, "a step of a recurrence, which is no part of attention");
    } else {
      if constexpr (std::is_same_v<Op, AttentionMerge>) {
        if (is_absent(op.lse)) {  // gradients
          add_to(plan, op.in, op.out);
          for (const View& view : op.more) add_to(plan, view, op.out);
          require_wide_sums(plan, op.out);
          return;
        }
      }
      begin_attention(plan);
      attention_.run(op);
      if constexpr (std::is_same_v<Op, AttentionMerge>) require_wide_sums(plan, op.out);
      if constexpr (std::is_same_v<Op, AttentionForward>) require_wide_parts(plan, op.out, false);
      if constexpr (std::is_same_v<Op, AttentionBackward>) {
        require_wide_parts(plan, op.dq, op.accumulate_dq);
        require_wide_parts(plan, op.dk, op.accumulate_dkv),
            require_wide_parts(plan, op.dv, op.accumulate_dkv);
      }
    }
  }

  // ---- collectives ----

  void run_collective(const Meeting& meeting) {
    std::visit([&]<class Op>(const Op&) { run_all(meeting, static_cast<const Op*>(nullptr)); },
               *meeting.ops[0]);
  }

  // The operation of each member; nothing and a finding where they are of different kinds.
  template <class Op>
  std::vector<const Op*> same_kind(const Meeting& meeting) {
    std::vector<const Op*> ops;
    for (std::size_t i = 0; i < meeting.ops.size(); ++i) {
      const Op* op = std::get_if<Op>(meeting.ops[i]);
      if (op == nullptr) {
        find(meeting.plans[i], "meets another operation");
        return {};
      }
      ops.push_back(op);
    }
    return ops;
  }

  template <class Op>
  void run_all(const Meeting& meeting, const Op*) {
    const std::vector<const Op*> ops = same_kind<Op>(meeting);
    if (ops.empty()) return;
    const std::size_t n = ops.size();
    if constexpr (std::is_same_v<Op, Exchange>) {
      exchange(meeting, ops);
    } else if constexpr (std::is_same_v<Op, Broadcast>) {
      const auto root = static_cast<std::size_t>(ops[0]->root);
      const std::vector<Tag> data = read(meeting.plans[root], ops[root]->in, tags_);
      for (std::size_t i = 0; i < n; ++i) {
        write(meeting.plans[i], ops[i]->out, data);
        if (i != root) receive(meeting.plans[i], data, ops[i]->out);
      }
    } else {
      std::vector<std::vector<Tag>> inputs(n);
      for (std::size_t i = 0; i < n; ++i) read(meeting.plans[i], ops[i]->in, inputs[i]);
      if constexpr (std::is_same_v<Op, AllGather>) {
        gather(meeting, ops, inputs);
      } else if constexpr (std::is_same_v<Op, AllToAll>) {
        all_to_all(meeting, ops, inputs);
      } else {
        reduce(meeting, ops, inputs);
      }
    }
  }

  using Inputs = std::vector<std::vector<Tag>>;
  static std::span<const Tag> block(const std::vector<Tag>& tags, std::size_t index, std::size_t blocks) {
    const std::size_t size = tags.size() / blocks;
    return std::span(tags).subspan(index * size, size);
  }

  void gather(const Meeting& meeting, const std::vector<const AllGather*>& ops, const Inputs& inputs) {
    std::vector<Tag> all;
    for (const std::vector<Tag>& input : inputs) all.insert(all.end(), input.begin(), input.end());
    for (std::size_t i = 0; i < ops.size(); ++i) {
      write(meeting.plans[i], ops[i]->out, all);
      for (std::size_t j = 0; j < ops.size(); ++j) {
        if (j != i) receive(meeting.plans[i], inputs[j], ops[i]->out);
      }
    }
  }

  void all_to_all(const Meeting& meeting, const std::vector<const AllToAll*>& ops, const Inputs& inputs) {
    for (std::size_t i = 0; i < ops.size(); ++i) {
      tags_.clear();
      for (std::size_t j = 0; j < ops.size(); ++j) {
        const std::span<const Tag> part = block(inputs[j], i, ops.size());
        tags_.insert(tags_.end(), part.begin(), part.end());
        if (j != i) receive(meeting.plans[i], part, ops[i]->out);
      }
      write(meeting.plans[i], ops[i]->out, tags_);
    }
  }

  // An all_reduce moves each element 2 (n-1)/n times on average; it is counted as a trace counts it.
  template <class Op>
  void reduce(const Meeting& meeting, const std::vector<const Op*>& ops, const Inputs& inputs) {
    constexpr bool kScatter = std::is_same_v<Op, ReduceScatter>;
    const std::size_t n = ops.size();
    for (std::size_t i = 0; i < n; ++i) {
      if (ops[i]->op != ReduceOp::sum)
        find(meeting.plans[i], "combines with ", name(ops[i]->op), " what is a sum");
      const auto part = [&](std::size_t j) {
        return kScatter ? block(inputs[j], i, n) : std::span(inputs[j]);
      };
      tags_.assign(part(0).begin(), part(0).end());
      for (std::size_t j = 1; j < n; ++j) {
        more_tags_.assign(part(j).begin(), part(j).end());
        add(meeting.plans[i], tags_, more_tags_);
      }
      // Whoever has nothing to add sends zeros, which are of the sum's tensor too.
      const auto others = static_cast<std::int64_t>(n) - 1;
      receive(meeting.plans[i], tags_, ops[i]->out, kScatter ? others : 2 * others,
              kScatter ? 1 : others + 1);
      write(meeting.plans[i], ops[i]->out, tags_);
    }
  }

  void exchange(const Meeting& meeting, const std::vector<const Exchange*>& ops) {
    // By sender and receiver, in order: several transfers of one pair match in order.
    std::map<std::pair<std::size_t, std::size_t>, std::vector<std::vector<Tag>>> sent;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      for (const Transfer& send : ops[i]->sends) {
        read(meeting.plans[i], send.view, sent[{i, static_cast<std::size_t>(send.peer)}].emplace_back());
      }
    }
    for (std::size_t i = 0; i < ops.size(); ++i) {
      std::map<std::int32_t, std::size_t> nth;
      for (const Transfer& recv : ops[i]->recvs) {
        const auto found = sent.find({static_cast<std::size_t>(recv.peer), i});
        const std::size_t number = nth[recv.peer]++;
        if (found == sent.end() || found->second.size() <= number) {
          find(meeting.plans[i], "receives what its peer ", recv.peer, " does not send");
          continue;
        }
        receive(meeting.plans[i], found->second[number], recv.view);
        write(meeting.plans[i], recv.view, found->second[number]);
      }
    }
  }

  const ShadowWorld& world_;
  StepNames& names_;
  AttentionShadow attention_;
  LatentShadow latent_;
  std::vector<PlanWalk> walks_;        // by plan
  std::vector<std::int32_t> numbers_;  // by plan: of the step that it is at
  std::map<std::pair<std::string, std::vector<Rank>>, Meeting> meetings_;
  std::vector<Tag> tags_, more_tags_;
};

}  // namespace

std::int64_t Received::payload() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

std::int32_t StepNames::add(std::size_t plan, StepId step, std::int64_t iteration) {
  places_.push_back({plan, step, iteration});
  return static_cast<std::int32_t>(places_.size() - 1);
}

std::string StepNames::text(std::int32_t number) const {
  const Place& place = places_[static_cast<std::size_t>(number)];
  const Plan& plan = plans_[place.plan];
  const StepRef ref = steps_of(plan)[static_cast<std::size_t>(place.step)];
  return str("rank ", plan.self, ", step ", place.step,
             ref.count > 1 ? str(" (iteration ", place.iteration, ")") : "", " ",
             operation_name(ref.step->work),
             ref.step->label.empty() ? "" : str(" \"", ref.step->label, "\""));
}

bool ShadowWorld::may_add_up_in(DType dtype, const Tag& sum) const {
  if (dtype == DType::f32 || sum.cells == 0) return true;
  if (dtype != problem.dtype) return false;
  const Element row = space.element(sum.id);
  const bool allowed =
      row.tensor == Tensor::out ? strategy.input_dtype_merge : strategy.input_dtype_gradients;
  // A rotated part may be one head's finished dk.
  if (row.tensor == Tensor::dlatent && row.column >= problem.latent.rank) {
    for (std::int64_t head = 0; head < problem.kv_heads; ++head) {
      if (cells_of(sum) == weights.all(Tensor::dk, row.batch, head, row.row)) return true;
    }
  }
  return allowed || cells_of(sum) == weights.all(row.tensor, row.batch, row.head, row.row);
}

void shadow_run(const ShadowWorld& world, StepNames& names) { ShadowRun(world, names).run(); }

}  // namespace cp::sim
