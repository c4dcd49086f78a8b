#include "tests/plan/random_plan.h"

#include <rapidcheck.h>

#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "tests/support/any_case.h"

namespace cp::test {
namespace {

// Uniform: rapidcheck's own ranges shrink with the size of the case, and small plans test little.
int draw(int begin, int end) { return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(begin, end)); }

constexpr int kNumel = 32;

Advance draw_advance() {
  switch (draw(0, 5)) {
    case 0:
      return {8, 2, draw(0, 2)};
    case 1:
      return {6, 3, draw(0, 3)};
    case 2:
      return {draw(1, 5), 0, draw(0, 2)};
    case 3:
      return {-draw(1, 4), 0, 0};
    default:
      return {};
  }
}

View draw_view(BufferId buffer, std::int64_t numel, bool moving) {
  View view = flat_view(buffer, draw(0, 18), numel, moving ? draw_advance() : Advance{});
  if (numel % 2 == 0 && draw(0, 3) == 0) {  // rows of a wider matrix
    view.shape = {2, numel / 2};
    view.strides = {draw(static_cast<int>(numel) / 2, 12), 1};
  } else if (draw(0, 6) == 0) {
    view.strides = {draw(1, 4)};
  }
  return view;
}

Kernel draw_kernel(const View& in, const View& out) {
  switch (draw(0, 5)) {
    case 4:
      return draw(0, 2) == 0 ? RowKernel{RowOperation::rotary, {in}, {out}, {}}
                             : RowKernel{RowOperation::gated_norm, {in}, {}, {out}};
    case 0:
      return Fill{out, 0.5};
    case 1:
      return Accumulate{ReduceOp::max, in, out};
    case 2:
      return Scale{out, 2};
    default:
      return Copy{in, out};
  }
}

}  // namespace

Plan random_plan(const RandomPlanOptions& options) {
  return pick_case("plan", [=] {
    PlanBuilder builder(0, shape_target());
    const int num_streams = draw(1, options.max_streams + 1);
    std::vector<StreamId> streams;
    std::vector<GroupId> groups;
    for (int i = 0; i < num_streams; ++i) {
      streams.push_back(builder.stream(str("stream", i)));
      groups.push_back(builder.group(str("group", i), {0, 1}));
    }
    std::vector<BufferId> buffers;
    const int num_buffers = draw(2, 5);
    for (int i = 0; i < num_buffers; ++i) {
      const auto anchor = static_cast<Anchor>(draw(0, 3));
      buffers.push_back(i == 0 ? builder.inout("x", DType::f32, kNumel)
                               : builder.temporary(str("t", i), DType::f32, kNumel + i, anchor));
    }
    const int num_steps = draw(1, 16);
    bool inside = false;
    for (int i = 0; i < num_steps; ++i) {
      if (options.repeats && draw(0, 4) == 0) {
        if (inside) {
          builder.end_repeat();
        } else {
          builder.begin_repeat(draw(1, 6));
        }
        inside = !inside;
      }
      const auto stream = static_cast<std::size_t>(draw(0, num_streams));
      const auto buffer = [&] { return buffers[static_cast<std::size_t>(draw(0, num_buffers))]; };
      for (int attempt = 0; attempt < 10; ++attempt) {  // what the builder refuses is drawn again
        const std::int64_t numel = draw(1, 9);
        const View in = draw_view(buffer(), numel, inside), out = draw_view(buffer(), numel, inside);
        try {
          builder.add(streams[stream], draw_kernel(in, out), str("step ", i));
          break;
        } catch (const InvalidInput&) {
        }
        try {
          builder.add(streams[stream], Exchange{groups[stream], {{1, in}}, {{1, out}}, {1, 2}}, "\"swap\"\n");
          break;
        } catch (const InvalidInput&) {
        }
      }
    }
    if (inside) builder.end_repeat();
    return std::move(builder).build({7, static_cast<std::uint64_t>(num_steps)});
  });
}

}  // namespace cp::test
