#include "sim/cost/timeline/grouped_products.h"

#include <array>
#include <cstddef>
#include <map>

namespace cp::sim {
namespace {

constexpr std::int32_t kNoLoop = -1;

struct Member {
  StepId step = -1;
  const MatMul* product = nullptr;
};
using Members = std::vector<Member>;
using Buffers = std::array<BufferId, 3>;

bool follows(const View& view, const View& before) {
  return view.advance == before.advance && view.offset == before.offset + before.numel();
}
bool follows(const MatMul& product, const MatMul& before) {
  return follows(product.a, before.a) && follows(product.b, before.b) && follows(product.out, before.out);
}

// A matrix's gradient is rows transposed times rows.
bool is_gradient(const MatMul& one) { return one.a.strides[0] < one.a.strides[1]; }

GroupedCall call_of(const Members& members, const Plan& plan) {
  const MatMul first = product_of(*members.front().product, 0);
  const int rows = is_gradient(first) ? 1 : 0;  // a's dimension that they are
  GroupedCall call;
  call.n = static_cast<double>(first.out.shape[1]);
  call.k = static_cast<double>(first.a.shape[static_cast<std::size_t>(1 - rows)]);
  call.dtype = plan.buffers[static_cast<std::size_t>(first.a.buffer)].dtype;
  for (const Member& member : members) {
    const auto own =
        static_cast<double>(product_of(*member.product, 0).a.shape[static_cast<std::size_t>(rows)]);
    const auto number = static_cast<double>(num_products(*member.product));
    call.rows += number * own, call.products += own > 0 ? number : 0;
  }
  return call;
}

}  // namespace

GroupedProducts::GroupedProducts(const Plan& plan) {
  const std::vector<StepRef> steps = steps_of(plan);
  struct Stream {
    std::int32_t loop = kNoLoop;
    std::map<Buffers, Members> open;  // what products with these buffers may go on with
  };
  std::vector<Stream> streams(plan.streams.size());
  const auto close = [&](Members& members) {
    if (members.size() > 1 || (members.size() == 1 && num_products(*members.front().product) > 1)) {
      if (of_step_.empty()) of_step_.assign(steps.size(), kAlone);
      const auto place = static_cast<int>(calls_.size());
      for (const Member& member : members) of_step_[at(member.step)] = kWithin - place;
      of_step_[at(members.front().step)] = place;
      calls_.push_back(call_of(members, plan));
    }
    members.clear();
  };
  const auto close_all = [&](Stream& stream) {
    for (auto& [buffers, members] : stream.open) close(members);
    stream.open.clear();
  };

  for (const StepRef& ref : steps) {
    Stream& stream = streams[static_cast<std::size_t>(ref.step->stream)];
    const auto* kernel = std::get_if<Kernel>(&ref.step->work);
    const auto* product = kernel != nullptr ? std::get_if<MatMul>(kernel) : nullptr;
    const bool repeats = std::holds_alternative<Repeat>(plan.segments[at(ref.segment)]);
    const std::int32_t loop = repeats ? ref.segment : kNoLoop;
    if (product == nullptr || stream.loop != loop) close_all(stream);
    stream.loop = loop;
    if (product == nullptr) continue;
    Members& members = stream.open[{product->a.buffer, product->b.buffer, product->out.buffer}];
    if (!members.empty() && !follows(*product, *members.back().product)) close(members);
    members.push_back({ref.id, product});
  }
  for (Stream& stream : streams) close_all(stream);
}

const GroupedCall* GroupedProducts::begun_by(StepId step) const {
  if (of_step_.empty() || of_step_[at(step)] < 0) return nullptr;
  return &calls_[static_cast<std::size_t>(of_step_[at(step)])];
}

}  // namespace cp::sim
