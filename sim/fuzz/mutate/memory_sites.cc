// Which memory a step touches: buffers, offsets, extents, strides and types.
#include <algorithm>

#include "shared/base/index.h"
#include "sim/fuzz/mutate/mutation_sites.h"

namespace cp::sim {
namespace {

DType dtype_of(const Plan& plan, const View& view) { return plan.buffers[idx(view.buffer)].dtype; }

// Elements from the view's first to behind its last one.
std::int64_t reach(const View& view) {
  if (view.numel() == 0) return 0;
  std::int64_t last = 0;
  for (std::size_t dim = 0; dim < view.shape.size(); ++dim) last += (view.shape[dim] - 1) * view.strides[dim];
  return last + 1;
}

void swap_views(Sites& sites, const Spot& spot) {
  std::vector<NamedView> views;
  for_each_view(*spot.step, [&](const NamedView& view) { views.push_back(view); });
  for (std::size_t i = 0; i < views.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const View &a = *views[j].view, &b = *views[i].view;
      if (a == b || a.shape != b.shape || a.numel() == 0 ||
          dtype_of(*spot.plan, a) != dtype_of(*spot.plan, b))
        continue;
      // A step that reads and writes the same two values either way.
      sites.offer(spot, true, [spot, a = views[j], b = views[i]](Numbers&) {
        std::swap(*a.view, *b.view);
        refit_uses(*spot.plan);
        return str(a.text(), " and ", b.text(), ": ", text(*spot.plan, *b.view), " and ",
                   text(*spot.plan, *a.view), " -> ", text(*spot.plan, *a.view), " and ",
                   text(*spot.plan, *b.view));
      });
    }
  }
}

void swap_dk_dv(Sites& sites, const Spot& spot) {
  AttentionBackward* op = operation_of<AttentionBackward>(*spot.step);
  if (op == nullptr || is_absent(op->dk) || is_absent(op->dv) || op->dk.numel() == 0 ||
      op->dk.shape != op->dv.shape || dtype_of(*spot.plan, op->dk) != dtype_of(*spot.plan, op->dv)) {
    return;
  }
  sites.offer(spot, true, [spot, op](Numbers&) {
    std::swap(op->dk, op->dv);
    return str("dk and dv: ", text(*spot.plan, op->dv), " and ", text(*spot.plan, op->dk), " -> ",
               text(*spot.plan, op->dk), " and ", text(*spot.plan, op->dv));
  });
}

void other_buffer(Sites& sites, const Spot& spot) {
  for_each_view(*spot.step, [&](const NamedView& view) {
    if (view.view->numel() == 0) return;
    std::vector<BufferId> others;
    for (std::size_t i = 0; i < spot.plan->buffers.size(); ++i) {
      const auto id = static_cast<BufferId>(i);
      const Buffer& buffer = spot.plan->buffers[i];
      if (id != view.view->buffer && buffer.dtype == dtype_of(*spot.plan, *view.view) &&
          buffer.numel >= view.view->offset + reach(*view.view)) {
        others.push_back(id);
      }
    }
    if (others.empty()) return;
    sites.offer(spot, true, [spot, view, others](Numbers& draws) {
      const std::string before = text(*spot.plan, *view.view);
      view.view->buffer = draws.of(others);
      refit_uses(*spot.plan);
      return str(view.text(), ": ", before, " -> ", text(*spot.plan, *view.view));
    });
  });
}

void other_phase(Sites& sites, const Spot& spot) {
  for_each_view(*spot.step, [&](const NamedView& view) {
    if (view.view->advance.stride == 0) return;
    sites.offer(spot, true, [view](Numbers&) {
      const std::int64_t before = view.view->advance.phase++;
      return str(view.text(), ", phase: ", before, " -> ", before + 1);
    });
  });
}

void shift_offset(Sites& sites, const Spot& spot) {
  for_each_view(*spot.step, [&](const NamedView& view) {
    if (view.view->numel() == 0) return;  // an empty view may lie anywhere
    sites.offer(spot, true, [view](Numbers& draws) {
      std::vector<std::int64_t> distances = {1, 2, 3, view.view->numel()};
      for (const std::int64_t stride : view.view->strides) {
        if (stride > 0) distances.push_back(stride);
      }
      const std::int64_t before = view.view->offset;
      const std::int64_t distance = draws.of(distances);
      view.view->offset += draws.one_in(2) ? distance : -distance;
      return str(view.text(), ", offset: ", before, " -> ", view.view->offset);
    });
  });
}

void move_buffer(Sites& sites) {
  sites.for_each_plan([&](const Spot& spot) {
    for (Buffer& buffer : spot.plan->buffers) {
      if (buffer.kind != BufferKind::temporary || buffer.numel == 0) continue;
      const std::int64_t alignment = spot.plan->target.alignment_bytes;
      sites.offer(spot, false, [&buffer, alignment](Numbers& draws) {
        const std::int64_t unit =
            draws.of({size_bytes(buffer.dtype), std::max(alignment, size_bytes(buffer.dtype))});
        const std::int64_t before = buffer.offset_bytes;
        buffer.offset_bytes += unit * draws.of({-2, -1, 1, 2});
        return str("buffer ", buffer.name, ", place in the arena: ", before, " -> ", buffer.offset_bytes);
      });
    }
  });
}

void change_stride(Sites& sites, const Spot& spot) {
  for_each_view(*spot.step, [&](const NamedView& view) {
    const View& v = *view.view;
    for (std::size_t i = 0; i < v.shape.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        // Of an extent of 1 the stride means nothing.
        if (v.numel() == 0 || v.strides[i] == v.strides[j] || (v.shape[i] == 1 && v.shape[j] == 1)) continue;
        sites.offer(spot, true, [view, i, j](Numbers&) {
          std::swap(view.view->strides[i], view.view->strides[j]);
          return str(view.text(), ", strides of dimensions ", j, " and ", i, ": ", view.view->strides[i],
                     " and ", view.view->strides[j], " -> ", view.view->strides[j], " and ",
                     view.view->strides[i]);
        });
      }
    }
  });
}

void change_count(Sites& sites, const Spot& spot) {
  for_each_view(*spot.step, [&](const NamedView& view) {
    for (std::size_t dim = 0; dim < view.view->shape.size(); ++dim) {
      sites.offer(spot, !is_collective(*spot.step), [view, dim](Numbers& draws) {
        const std::int64_t before = view.view->shape[dim];
        view.view->shape[dim] += draws.of({1, -1});
        return str(view.text(), ", dimension ", dim, ": ", before, " -> ", view.view->shape[dim]);
      });
    }
  });
  for_each_field<Digest>(*spot.step, [&](std::string_view name, Digest& counts) {
    sites.offer(spot, false, [name, &counts](Numbers&) {
      const Digest before = counts;
      counts.low ^= 1;
      return str(name, ": ", to_string(before), " -> ", to_string(counts));
    });
  });
}

// Moves and sums: both operands lose their last row, or column.
void shorten_step(Sites& sites, const Spot& spot) {
  const auto in = [&](auto& op) {
    if (op.in.shape != op.out.shape) return;
    for (std::size_t dim = 0; dim < op.in.shape.size(); ++dim) {
      if (op.in.numel() == 0) continue;
      sites.offer(spot, true, [&op, dim](Numbers&) {
        const std::int64_t before = op.in.shape[dim];
        --op.in.shape[dim], --op.out.shape[dim];
        return str("in and out, dimension ", dim, ": ", before, " -> ", before - 1);
      });
    }
  };
  if (Copy* copy = operation_of<Copy>(*spot.step)) in(*copy);
  if (Cast* cast = operation_of<Cast>(*spot.step)) in(*cast);
  if (Accumulate* sum = operation_of<Accumulate>(*spot.step)) in(*sum);
}

void change_dtype(Sites& sites) {
  sites.for_each_plan([&](const Spot& spot) {
    for (Buffer& buffer : spot.plan->buffers) {
      if (buffer.numel == 0) continue;
      sites.offer(spot, false, [&buffer](Numbers& draws) {
        std::vector<DType> others;
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64}) {
          if (dtype != buffer.dtype) others.push_back(dtype);
        }
        const DType before = buffer.dtype;
        buffer.dtype = draws.of(others);
        return str("buffer ", buffer.name, ", dtype: ", name(before), " -> ", name(buffer.dtype));
      });
    }
  });
}

}  // namespace

void memory_sites(Sites& sites, MutationKind kind) {
  if (kind == MutationKind::move_buffer) return move_buffer(sites);
  if (kind == MutationKind::change_dtype) return change_dtype(sites);
  const auto each = [&](void (*offer)(Sites&, const Spot&)) {
    sites.for_each_step([&](const Spot& spot) { offer(sites, spot); });
  };
  switch (kind) {
    case MutationKind::swap_views:
      return each(swap_views);
    case MutationKind::swap_dk_dv:
      return each(swap_dk_dv);
    case MutationKind::other_buffer:
      return each(other_buffer);
    case MutationKind::other_phase:
      return each(other_phase);
    case MutationKind::shift_offset:
      return each(shift_offset);
    case MutationKind::change_stride:
      return each(change_stride);
    case MutationKind::change_count:
      return each(change_count);
    case MutationKind::shorten_step:
      return each(shorten_step);
    default:
      return;
  }
}

}  // namespace cp::sim
