#include "sim/fuzz/program_flaws.h"

#include <functional>
#include <utility>

#include "shared/plan/operations.h"

namespace cp::sim {
namespace {

std::vector<Step*> all_steps(Plan& plan) {
  std::vector<Step*> steps;
  for (Segment& segment : plan.segments) {
    if (Step* step = std::get_if<Step>(&segment)) steps.push_back(step);
    if (Repeat* repeat = std::get_if<Repeat>(&segment))
      for (Step& step : repeat->steps) steps.push_back(&step);
  }
  return steps;
}

std::vector<View*> views_of(Step& step) {
  std::vector<View*> views;
  visit_operation(step.work, [&](auto& op) {
    visit_fields(op, [&]<class Field>(std::string_view, Field& field) {
      if constexpr (std::is_same_v<Field, View>) {
        if (!is_absent(field)) views.push_back(&field);
      } else if constexpr (std::is_same_v<Field, std::vector<Transfer>>) {
        for (Transfer& transfer : field) views.push_back(&transfer.view);
      }
    });
  });
  return views;
}

// A flaw is done at one of its places: changes are listed, then the one that the case names is made.
class Flaws {
 public:
  explicit Flaws(const proto::Program& job) : job_(job) {}

  template <class Change>
  void may(const Change& change) {
    changes_.emplace_back(change);
  }
  void plant() const {
    if (!changes_.empty()) changes_[job_.place() % changes_.size()]();
  }

  void of_whole_steps(std::vector<Plan>& drafts) {
    for (Plan& draft : drafts) {
      if (job_.flaw() == proto::Program::drop_step) drop_steps(draft);
      if (job_.flaw() == proto::Program::swap_steps) swap_collectives(draft);
      if (job_.flaw() == proto::Program::other_count) fewer_iterations(draft);
    }
  }

  void of_steps(std::vector<Plan>& plans) {
    for (Plan& plan : plans) {
      if (job_.flaw() == proto::Program::other_inputs) may([&plan] { plan.inputs.low ^= 1; });
      if (job_.flaw() == proto::Program::shrink_arena && plan.arena_bytes > 0)
        may([&plan] { --plan.arena_bytes; });
      for (Buffer& buffer : plan.buffers) {
        if (buffer.kind == BufferKind::temporary) of_temporary(plan, buffer);
        if (job_.flaw() == proto::Program::other_dtype && buffer.dtype != DType::i64)
          may([&buffer] { buffer.dtype = as_wide(buffer.dtype); });
      }
      const std::vector<Step*> steps = all_steps(plan);
      for (std::size_t i = 0; i < steps.size(); ++i) of_step(plan, *steps[i], static_cast<StepId>(i));
    }
  }

 private:
  static DType as_wide(DType dtype) {
    return dtype == DType::f32   ? DType::i32
           : dtype == DType::i32 ? DType::f32
           : dtype == DType::f16 ? DType::bf16
                                 : DType::f16;
  }

  void drop_steps(Plan& draft) {
    for (std::size_t s = 0; s < draft.segments.size(); ++s) {
      Repeat* repeat = std::get_if<Repeat>(&draft.segments[s]);
      for (std::size_t i = 0; repeat != nullptr && repeat->steps.size() > 1 && i < repeat->steps.size(); ++i)
        may([repeat, i] { repeat->steps.erase(repeat->steps.begin() + static_cast<std::ptrdiff_t>(i)); });
      if (repeat == nullptr || repeat->steps.size() == 1)
        may([&draft, s] { draft.segments.erase(draft.segments.begin() + static_cast<std::ptrdiff_t>(s)); });
    }
  }
  void swap_collectives(Plan& draft) {
    std::vector<Step*> all = all_steps(draft);
    std::erase_if(all, [](const Step* step) { return !is_collective(*step); });
    for (std::size_t i = 1; i < all.size(); ++i) may([a = all[i - 1], b = all[i]] { std::swap(*a, *b); });
  }
  void fewer_iterations(Plan& draft) {
    for (Segment& segment : draft.segments) {
      Repeat* repeat = std::get_if<Repeat>(&segment);
      if (repeat != nullptr && repeat->count > 1) may([repeat] { --repeat->count; });
    }
  }

  void of_temporary(Plan& plan, Buffer& buffer) {
    if (job_.flaw() == proto::Program::move_temporary) {
      const std::int64_t size = size_bytes(buffer.dtype);
      for (const std::int64_t way : {size, -size, std::int64_t{1}, -buffer.offset_bytes, buffer.bytes()})
        may([&buffer, way] { buffer.offset_bytes += way; });
      may([&plan, &buffer, size] { buffer.offset_bytes = plan.arena_bytes - buffer.bytes() + size; });
    }
    if (job_.flaw() == proto::Program::shorten_use && buffer.first_use >= 0) {
      may([&buffer] { ++buffer.first_use; });
      may([&buffer] { --buffer.last_use; });
      may([&buffer] { buffer.first_use = 0; });  // longer: others may be there
    }
  }

  // Each flaw is offered at every place where the plan has the field, even where it does no harm: checker and
  // oracle must agree on that, too.
  void of_step(Plan& plan, Step& step, StepId id) {
    switch (job_.flaw()) {
      case proto::Program::drop_edge:
        for (std::size_t e = 0; e < step.after.size(); ++e)
          may([&step, e] { step.after.erase(step.after.begin() + static_cast<std::ptrdiff_t>(e)); });
        break;
      case proto::Program::earlier_edge:
        for (Edge& edge : step.after) may([&edge] { ++edge.iterations_back; });
        break;
      case proto::Program::own_edge:
        may([&step, id] { step.after.push_back({id, 0}); });
        break;
      case proto::Program::later_edge:
        may([&step, id] { step.after.push_back({id + 1, 0}); });
        may([&step] { step.after.push_back({-1, 0}); });
        may([&step, id] { step.after.push_back({id, -1}); });
        may([&step, id] { step.after.push_back({id, 1}); });  // legal in a Repeat
        break;
      case proto::Program::other_stream:
        for (StreamId stream = 0; stream < static_cast<StreamId>(plan.streams.size()); ++stream) {
          if (stream != step.stream) may([&step, stream] { step.stream = stream; });
        }
        break;
      case proto::Program::move_view:
        for (View* view : views_of(step)) {
          may([view] { ++view->offset; });
          may([view] { --view->offset; });
          may([view] { ++view->advance.stride; });
          may([view] { ++view->advance.phase; });
          for (std::size_t dim = 0; dim < view->strides.size(); ++dim)
            may([view, dim] { ++view->strides[dim]; });
        }
        break;
      case proto::Program::other_reduction:
      case proto::Program::other_root:
      case proto::Program::other_counts:
        of_collective(step);
        break;
      default:
        break;
    }
  }
  void of_collective(Step& step) {
    Collective* collective = std::get_if<Collective>(&step.work);
    if (collective == nullptr) return;
    const bool reduction = job_.flaw() == proto::Program::other_reduction;
    const auto other = [](ReduceOp op) { return op == ReduceOp::sum ? ReduceOp::max : ReduceOp::sum; };
    if (auto* reduce = std::get_if<AllReduce>(collective); reduce != nullptr && reduction)
      may([reduce, other] { reduce->op = other(reduce->op); });
    if (auto* scatter = std::get_if<ReduceScatter>(collective); scatter != nullptr && reduction)
      may([scatter, other] { scatter->op = other(scatter->op); });
    auto* broadcast = std::get_if<Broadcast>(collective);
    if (broadcast != nullptr && job_.flaw() == proto::Program::other_root) {
      may([broadcast] { ++broadcast->root; });
      may([broadcast] { --broadcast->root; });
    }
    auto* exchange = std::get_if<Exchange>(collective);
    if (exchange == nullptr || job_.flaw() != proto::Program::other_counts) return;
    may([exchange] { exchange->counts.low ^= 1; });
    if (!exchange->sends.empty()) may([exchange] { exchange->sends.pop_back(); });
    if (exchange->recvs.size() > 1) may([exchange] { std::swap(exchange->recvs[0], exchange->recvs[1]); });
  }

  const proto::Program& job_;
  std::vector<std::function<void()>> changes_;
};

}  // namespace

void plant_step_flaw(const proto::Program& job, std::vector<Plan>& drafts) {
  Flaws flaws(job);
  flaws.of_whole_steps(drafts);
  flaws.plant();
}

void plant_flaw(const proto::Program& job, std::vector<Plan>& plans) {
  Flaws flaws(job);
  flaws.of_steps(plans);
  flaws.plant();
}

}  // namespace cp::sim
