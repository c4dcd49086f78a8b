#include "sim/fuzz/draw.h"

#include <array>

#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "sim/fuzz/judge.h"

namespace cp::sim {
namespace {

constexpr std::array<std::pair<FuzzTarget, std::string_view>, 4> kTargets = {
    {{FuzzTarget::redistribute, "redistribute"},
     {FuzzTarget::attention, "attention"},
     {FuzzTarget::model, "plan"},
     {FuzzTarget::all, "all"}}};

// Of 32 cases of all targets, so that each target has about a third of the time: a redistribution takes a millisecond or less, attention
// ten.
FuzzTarget target_of(std::uint64_t number) {
  const std::uint64_t place = number % 32;
  return place < 2 ? FuzzTarget::attention : place == 2 ? FuzzTarget::model : FuzzTarget::redistribute;
}

proto::Order any_order(Numbers& numbers, const Swarm& swarm) {
  proto::Order order;
  order.set_kind(swarm.choose<proto::Order::Kind>(numbers, {{"order.parallel", proto::Order::parallel},
                                                            {"order.round_robin", proto::Order::round_robin},
                                                            {"order.random", proto::Order::random},
                                                            {"order.pct", proto::Order::pct}}));
  if (order.kind() == proto::Order::pct) order.set_depth(static_cast<int>(numbers.in(2, 3)));
  if (order.kind() == proto::Order::pct || order.kind() == proto::Order::random)
    order.set_seed(numbers.next() % 1000);
  return order;
}

}  // namespace

std::string_view name(FuzzTarget target) { return kTargets[static_cast<std::size_t>(target)].second; }

FuzzTarget parse_fuzz_target(std::string_view text) {
  std::vector<std::string> known;
  for (const auto& [target, word] : kTargets) {
    if (word == text) return target;
    known.emplace_back(word);
  }
  const std::string near = nearest(text, known);
  throw InvalidInput(str("target ", text, " is unknown; use ", near.empty() ? join(known, ", ") : near));
}

proto::FuzzCase draw_case(FuzzTarget target, std::uint64_t seed, std::uint64_t number) {
  Numbers numbers(Numbers::combine(seed, number));
  const Swarm swarm(Numbers::combine(seed + 1, number / kCasesOfABatch));
  proto::FuzzCase drawn;
  switch (target == FuzzTarget::all ? target_of(number) : target) {
    case FuzzTarget::attention:
      *drawn.mutable_attention() = draw_attention(numbers, swarm);
      break;
    case FuzzTarget::model:
      *drawn.mutable_model() = draw_model(numbers, swarm);
      return drawn;
    default:
      *drawn.mutable_redistribute() = draw_redistribution(numbers, swarm);
      break;
  }
  *drawn.mutable_order() = any_order(numbers, swarm);
  // One law of all each time: many cases with one are worth more than few with all.
  drawn.add_laws(std::string(numbers.of(laws_of(drawn.job_case()))));
  return drawn;
}

}  // namespace cp::sim
