#include "shared/plan/plan.h"

#include <algorithm>

#include "shared/base/error.h"
#include "shared/plan/operations.h"
#include "shared/plan/plan_text.h"

namespace cp {

View flat_view(BufferId buffer, std::int64_t offset, std::int64_t numel, Advance advance) {
  return View{buffer, offset, {numel}, {1}, advance};
}

View dense_view(BufferId buffer, std::int64_t offset, Shape shape, Advance advance) {
  Shape strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t dim = shape.size(); dim-- > 0; stride *= shape[dim]) strides[dim] = stride;
  return View{buffer, offset, std::move(shape), std::move(strides), advance};
}

bool is_contiguous(const View& view) {
  if (view.numel() == 0) return true;
  std::int64_t stride = 1;
  for (std::size_t dim = view.shape.size(); dim-- > 0; stride *= view.shape[dim]) {
    if (view.shape[dim] != 1 && view.strides[dim] != stride) return false;
  }
  return true;
}

std::int64_t offset_at(const View& view, std::int64_t iteration) {
  const Advance& advance = view.advance;
  if (advance.stride == 0) return view.offset;
  const std::int64_t turn = iteration + advance.phase;
  return view.offset + advance.stride * (advance.period == 0 ? turn : turn % advance.period);
}

bool allows(const MaskSlice& slice, std::int64_t q, std::int64_t k) {
  const std::int64_t i = q - slice.q_begin, j = k - slice.k_begin;
  if (i < 0 || i >= slice.q_len || j < 0 || j >= slice.k_len) return false;
  switch (slice.kind) {
    case MaskSlice::Kind::full:
      return true;
    case MaskSlice::Kind::causal:
      return j <= i + slice.diagonal;
    case MaskSlice::Kind::window:
      return i + slice.diagonal - slice.window < j && j <= i + slice.diagonal;
  }
  return false;
}

std::int64_t num_products(const MatMul& all) { return all.out.shape.size() == 3 ? all.out.shape[0] : 1; }

MatMul product_of(const MatMul& all, std::int64_t which) {
  if (all.out.shape.size() != 3) return all;
  MatMul one = all;
  for (View* view : {&one.a, &one.b, &one.out}) {
    view->offset += which * view->strides[0];
    view->shape.erase(view->shape.begin()), view->strides.erase(view->strides.begin());
  }
  return one;
}

std::string_view name(RowOperation operation) { return name_in(kRowOperations, operation); }

std::string_view operation_name(const Work& work) {
  return visit_operation(work, [](const auto& op) {
    using T = std::remove_cvref_t<decltype(op)>;
    if constexpr (std::is_same_v<T, RowKernel>) {
      return name(op.operation);
    } else {
      return kOperationName<T>;
    }
  });
}

bool is_shape_only(const RowKernel& kernel) {
  return kernel.rule.index() == 0 && needs_rule(kernel.operation);
}

namespace {

bool is_shape_only(const Work& work) {
  const auto* const kernel = std::get_if<Kernel>(&work);
  const auto* const rows = kernel == nullptr ? nullptr : std::get_if<RowKernel>(kernel);
  return rows != nullptr && is_shape_only(*rows);
}

}  // namespace

std::string operation_words(const Work& work) {
  return str(operation_name(work), is_shape_only(work) ? " without a rule" : "");
}

bool has_operation(const Target& target, const Work& work) {
  const std::string_view operation = operation_name(work);
  if (std::holds_alternative<Collective>(work)) return target.has_collective(operation);
  return target.has_kernel(operation) && (!is_shape_only(work) || target.has_kernel(kShapesOnly));
}

bool is_collective(const Step& step) { return std::holds_alternative<Collective>(step.work); }

GroupId group_of(const Collective& collective) {
  return std::visit([](const auto& op) { return op.group; }, collective);
}

std::vector<Access> accesses(const Work& work, std::int32_t index_in_group) {
  std::vector<Access> all;
  for_each_access(work, index_in_group, [&](const Access& access) { all.push_back(access); });
  return all;
}

Volume volume(const Collective& collective, const Plan& plan) {
  const GroupId group = group_of(collective);
  const auto self = static_cast<std::size_t>(index_in_group(plan, group));
  const std::size_t size = plan.groups[static_cast<std::size_t>(group)].ranks.size();
  const auto bytes = [&](const View& view) {
    return view.numel() * size_bytes(plan.buffers[static_cast<std::size_t>(view.buffer)].dtype);
  };
  Volume result{std::vector<std::int64_t>(size), std::vector<std::int64_t>(size)};
  const auto every_peer = [&](std::int64_t each) {
    std::fill(result.sent.begin(), result.sent.end(), each);
    std::fill(result.received.begin(), result.received.end(), each);
  };
  std::visit(
      Overloaded{[&](const AllGather& op) { every_peer(bytes(op.in)); },
                 [&](const ReduceScatter& op) { every_peer(bytes(op.out)); },
                 [&](const AllReduce& op) { every_peer(bytes(op.out)); },
                 [&](const AllToAll& op) { every_peer(bytes(op.in) / static_cast<std::int64_t>(size)); },
                 [&](const Broadcast& op) {
                   const auto root = static_cast<std::size_t>(op.root);
                   if (self == root) {
                     std::fill(result.sent.begin(), result.sent.end(), bytes(op.out));
                   } else {
                     result.received[root] = bytes(op.out);
                   }
                 },
                 [&](const Exchange& op) {
                   for (const Transfer& send : op.sends) {
                     result.sent[static_cast<std::size_t>(send.peer)] += bytes(send.view);
                   }
                   for (const Transfer& recv : op.recvs) {
                     result.received[static_cast<std::size_t>(recv.peer)] += bytes(recv.view);
                   }
                 }},
      collective);
  result.sent[self] = result.received[self] = 0;
  return result;
}

std::vector<StepRef> steps_of(const Plan& plan) {
  std::vector<StepRef> steps;
  steps.reserve(plan.segments.size());
  StepId id = 0;
  for (std::size_t i = 0; i < plan.segments.size(); ++i) {
    const auto segment = static_cast<std::int32_t>(i);
    if (const Step* step = std::get_if<Step>(&plan.segments[i])) {
      steps.push_back({step, id++, 1, segment});
    } else {
      const Repeat& repeat = std::get<Repeat>(plan.segments[i]);
      for (const Step& inner : repeat.steps) steps.push_back({&inner, id++, repeat.count, segment});
    }
  }
  return steps;
}

std::int32_t index_in_group(const Plan& plan, GroupId group) {
  if (group < 0 || static_cast<std::size_t>(group) >= plan.groups.size()) {
    throw InvalidInput(str("group ", group, " is not one of the plan's ", plan.groups.size(), " groups"));
  }
  const Group& found = plan.groups[static_cast<std::size_t>(group)];
  const auto at = std::find(found.ranks.begin(), found.ranks.end(), plan.self);
  if (at == found.ranks.end()) {
    throw InvalidInput(str("rank ", plan.self, " is not a member of group ", found.name, "[",
                           join(found.ranks), "]; only members take part in its collectives"));
  }
  return static_cast<std::int32_t>(at - found.ranks.begin());
}

std::int64_t peak_bytes(const Plan& plan) {
  std::int64_t bytes = plan.arena_bytes;
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.kind != BufferKind::temporary) bytes += buffer.bytes();
  }
  return bytes;
}

}  // namespace cp
