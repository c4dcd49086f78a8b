// What makes a step of a program legal by itself.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "sim/proof/exhaustive/program_oracle.h"
#include "sim/proof/exhaustive/program_steps.h"

namespace cp::sim {
namespace {

using namespace program;

class StepRules {
 public:
  StepRules(const Plan& plan, const Step& step, std::int64_t count)
      : plan_(plan), step_(step), count_(count) {}

  Refusal refuse() {
    if (step_.stream < 0 || idx(step_.stream) >= plan_.streams.size())
      return "its stream is none of the plan's";
    const Collective* collective = std::get_if<Collective>(&step_.work);
    if (collective != nullptr) {
      const GroupId group = group_of(*collective);
      if (group < 0 || idx(group) >= plan_.groups.size()) return "its group is none of the plan's";
      members_ = static_cast<std::int64_t>(plan_.groups[idx(group)].ranks.size());
      index_ = place_in(plan_.groups[idx(group)], plan_.self);
      if (index_ < 0) return "the rank is no member of its group";
    }
    const std::vector<Touch> all = touches(step_.work, index_);
    for (const Touch& touch : all) {
      if (Refusal refusal = refuse_view(*touch.view, touch.writes)) return refusal;
    }
    if (Refusal refusal = collective != nullptr ? refuse_collective(*collective) : refuse_kernel())
      return refusal;
    if (in_place_) return std::nullopt;
    for (std::size_t a = 0; a < all.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        if (!(all[a].writes || all[b].writes) || !share(*all[a].view, *all[b].view)) continue;
        shares_memory_ = true;
        return "what it writes is memory that it uses otherwise";
      }
    }
    return std::nullopt;
  }
  bool shares_memory() const { return shares_memory_; }  // why it was refused

 private:
  DType dtype(const View& view) const { return plan_.buffers[idx(view.buffer)].dtype; }

  Refusal refuse_view(const View& view, bool written) const {
    if (view.buffer < 0 || idx(view.buffer) >= plan_.buffers.size()) return "a view of no buffer";
    const Buffer& buffer = plan_.buffers[idx(view.buffer)];
    if (written && buffer.kind == BufferKind::input) return "it writes an input";
    if (view.shape.size() != view.strides.size()) return "a view with other strides than sizes";
    for (std::size_t dim = 0; dim < view.shape.size(); ++dim) {
      if (view.shape[dim] < 0 || view.strides[dim] < 0) return "a view with a negative size or stride";
    }
    if (view.advance.period < 0 || view.advance.phase < 0) return "a view with a negative period or phase";
    if (view.numel() == 0) return std::nullopt;
    for (std::int64_t iteration = 0; iteration < count_; ++iteration) {
      for (const std::int64_t element : elements(view, iteration)) {
        if (element < 0 || element >= buffer.numel) return str("a view that leaves ", buffer.name);
      }
    }
    return written ? refuse_overlapping_dims(view) : std::nullopt;
  }

  // Not only that no element comes twice: each stride exceeds what the smaller ones reach, which is what
  // check() asks for.
  static Refusal refuse_overlapping_dims(const View& view) {
    std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, size
    for (std::size_t dim = 0; dim < view.shape.size(); ++dim) {
      if (view.shape[dim] != 1) dims.emplace_back(view.strides[dim], view.shape[dim]);
    }
    std::sort(dims.begin(), dims.end());
    std::int64_t reach = 0;
    for (const auto& [stride, size] : dims) {
      if (stride <= reach) return "a written view whose dimensions overlap";
      reach += (size - 1) * stride;
    }
    return std::nullopt;
  }

  bool share(const View& a, const View& b) const {
    if (a.buffer != b.buffer) return false;
    for (std::int64_t iteration = 0; iteration < count_; ++iteration) {
      const Numbers in_a = elements(a, iteration);
      for (const std::int64_t element : elements(b, iteration)) {
        if (std::find(in_a.begin(), in_a.end(), element) != in_a.end()) return true;
      }
    }
    return false;
  }

  bool widens(const View& in, const View& out) const {
    return dtype(out) == DType::f32 && (dtype(in) == DType::f16 || dtype(in) == DType::bf16);
  }

  Refusal refuse_kernel() const {
    const Kernel& kernel = std::get<Kernel>(step_.work);
    if (const auto* copy = std::get_if<Copy>(&kernel)) {
      if (dtype(copy->in) != dtype(copy->out)) return "a copy between types";
      if (copy->in.numel() != copy->out.numel()) return "a copy between sizes";
    } else if (const auto* cast = std::get_if<Cast>(&kernel)) {
      if (cast->in.numel() != cast->out.numel()) return "a cast between sizes";
    } else if (const auto* add = std::get_if<Accumulate>(&kernel)) {
      if (add->op == ReduceOp::avg) return "a mean of two";
      if (dtype(add->in) != dtype(add->out) && !widens(add->in, add->out)) return "a sum of types";
      if (add->in.numel() != add->out.numel()) return "a sum of sizes";
    } else if (const auto* scale = std::get_if<Scale>(&kernel)) {
      if (!is_floating(dtype(scale->data))) return "a scaled integer";
    } else if (const auto* product = std::get_if<MatMul>(&kernel)) {
      const View &a = product->a, &b = product->b, &out = product->out;
      if (dtype(a) != dtype(b) || (dtype(a) != dtype(out) && !widens(a, out))) return "a product of types";
      if (a.shape.size() != 2 || b.shape.size() != 2 || out.shape.size() != 2)
        return "a product of no matrices";
      if (a.shape[1] != b.shape[0] || out.shape[0] != a.shape[0] || out.shape[1] != b.shape[1])
        return "a product of sizes";
    }
    return std::nullopt;
  }

  // `part` is exactly the elements of `whole` from `start` on, in every iteration.
  bool is_part(const View& part, const View& whole, std::int64_t start) const {
    return part.buffer == whole.buffer && part.offset == whole.offset + start &&
           part.advance == whole.advance;
  }

  Refusal refuse_collective(const Collective& collective) {
    for (const Touch& touch : touches(step_.work, index_)) {
      if (!is_one_run(*touch.view)) return "a collective of a view that is not contiguous";
    }
    // A collective may work in place if its smaller view is just the rank's own part of the larger one.
    // Memory that is shared in another way is refused elsewhere.
    const auto pair = [&](const auto& op, std::int64_t in_blocks, std::int64_t out_blocks) -> Refusal {
      if (dtype(op.in) != dtype(op.out)) return "a collective between types";
      if (op.in.numel() * out_blocks != op.out.numel() * in_blocks) return "a collective of other sizes";
      return std::nullopt;
    };
    if (const auto* gather = std::get_if<AllGather>(&collective)) {
      in_place_ = is_part(gather->in, gather->out, index_ * gather->in.numel());
      return pair(*gather, 1, members_);
    }
    if (const auto* scatter = std::get_if<ReduceScatter>(&collective)) {
      in_place_ = is_part(scatter->out, scatter->in, index_ * scatter->out.numel());
      if (scatter->op == ReduceOp::avg && !is_floating(dtype(scatter->out))) return "a mean of integers";
      return pair(*scatter, members_, 1);
    }
    if (const auto* reduce = std::get_if<AllReduce>(&collective)) {
      in_place_ = is_part(reduce->in, reduce->out, 0);
      if (reduce->op == ReduceOp::avg && !is_floating(dtype(reduce->out))) return "a mean of integers";
      return pair(*reduce, 1, 1);
    }
    if (const auto* all = std::get_if<AllToAll>(&collective)) {
      if (all->in.numel() % members_ != 0) return "blocks of no equal size";
      return pair(*all, 1, 1);
    }
    if (const auto* broadcast = std::get_if<Broadcast>(&collective)) {
      if (broadcast->root < 0 || broadcast->root >= members_) return "a root that is no member";
      if (index_ != broadcast->root) return std::nullopt;
      in_place_ = is_part(broadcast->in, broadcast->out, 0);
      return pair(*broadcast, 1, 1);
    }
    const Exchange& exchange = std::get<Exchange>(collective);
    for (const std::vector<Transfer>* side : {&exchange.sends, &exchange.recvs}) {
      for (const Transfer& transfer : *side) {
        if (transfer.peer < 0 || transfer.peer >= members_ || transfer.peer == index_)
          return "a peer that is none";
        if (transfer.view.numel() == 0) return "an empty transfer";
      }
    }
    return std::nullopt;
  }

  const Plan& plan_;
  const Step& step_;
  const std::int64_t count_;
  std::int64_t members_ = 1;
  std::int32_t index_ = 0;
  bool in_place_ = false, shares_memory_ = false;
};

}  // namespace

std::optional<StepRefusal> refuse_step(const Plan& plan, const Step& step, std::int64_t count) {
  StepRules rules(plan, step, count);
  Refusal refusal = rules.refuse();
  if (!refusal) return std::nullopt;
  return StepRefusal{*std::move(refusal), rules.shares_memory()};
}

}  // namespace cp::sim
