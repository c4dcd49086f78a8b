#include "sim/fuzz/draw.h"

#include <array>

#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "shared/mesh/mesh.h"
#include "sim/fuzz/judge.h"

namespace cp::sim {
namespace {

constexpr std::array<std::pair<FuzzTarget, std::string_view>, 7> kTargets = {
    {{FuzzTarget::redistribute, "redistribute"},
     {FuzzTarget::attention, "attention"},
     {FuzzTarget::recurrence, "recurrence"},
     {FuzzTarget::model, "plan"},
     {FuzzTarget::prove, "prove"},
     {FuzzTarget::programs, "programs"},
     {FuzzTarget::all, "all"}}};

// Of 64 cases of all targets: a redistribution takes about 3 ms of a core in the mean and attention 11 ms, so
// that 24 of the one and 5 of the other, with a recurrence, take like times; a step of a model, which has no
// data, comes once, and so does one that is proved, which takes 60 ms, about as long as one of the two.
// Programs take half a millisecond: half of the cases are programs, in a tenth of the time. Each kind is next
// to itself, so that it is shared evenly by any number of workers.
FuzzTarget target_of(std::uint64_t number) {
  const std::uint64_t place = number % 64;
  return place < 5    ? FuzzTarget::attention
         : place == 5 ? FuzzTarget::recurrence
         : place == 6 ? FuzzTarget::model
         : place < 31 ? FuzzTarget::redistribute
         : place < 63 ? FuzzTarget::programs
                      : FuzzTarget::prove;
}

// One redistribution in 6 is drawn to be held against the exhaustive search, because the search knows few of
// the others. Chosen, as the next one is.
constexpr int kSearchedOneIn = 6;

// One case of a model in 6 is flows over links alone. They take next to no time.
constexpr int kFlowsOneIn = 6;

proto::Order any_order(Numbers& numbers, const Swarm& swarm) {
  proto::Order order;
  // On all cores a case takes twice as long, and what fails there may not fail again.
  const proto::Order::Kind parallel = numbers.one_in(3) ? proto::Order::parallel : proto::Order::random;
  order.set_kind(swarm.choose<proto::Order::Kind>(numbers, {{"order.parallel", parallel},
                                                            {"order.round_robin", proto::Order::round_robin},
                                                            {"order.random", proto::Order::random},
                                                            {"order.pct", proto::Order::pct},
                                                            {"order.exhaustive", proto::Order::exhaustive}}));
  if (order.kind() == proto::Order::pct) order.set_depth(static_cast<int>(numbers.in(2, 3)));
  if (order.kind() == proto::Order::pct || order.kind() == proto::Order::random)
    order.set_seed(numbers.next() % 1000);
  return order;
}

// All on one core: a program takes less time than to wake threads.
proto::Order program_order(Numbers& numbers) {
  proto::Order order;
  order.set_kind(
      numbers.of({proto::Order::round_robin, proto::Order::random, proto::Order::pct, proto::Order::pct}));
  if (order.kind() == proto::Order::pct) order.set_depth(static_cast<int>(numbers.in(2, 3)));
  if (order.kind() != proto::Order::round_robin) order.set_seed(numbers.next() % 1000);
  return order;
}

// One fault of any kind, of any of the first ranks. Where the plans have no such place nothing goes wrong.
void add_fault(Numbers& numbers, const Swarm& swarm, const std::string& mesh_text, proto::FuzzCase& drawn) {
  const Mesh mesh = Mesh::parse(mesh_text);
  if (mesh.size() < 2 || mesh.size() > 16) return;
  proto::Fault& fault = *drawn.add_faults();
  fault.set_kind(static_cast<proto::Fault::Kind>(swarm.choose<int>(numbers, {{"delay", 1},
                                                                             {"reorder", 2},
                                                                             {"duplicate", 3},
                                                                             {"drop", 4},
                                                                             {"corrupt", 5},
                                                                             {"truncate", 6},
                                                                             {"slow_rank", 7},
                                                                             {"dead_rank", 8},
                                                                             {"skip", 9},
                                                                             {"repeat", 10},
                                                                             {"swap", 11},
                                                                             {"other_reduction", 12},
                                                                             {"other_root", 13},
                                                                             {"other_dtype", 14},
                                                                             {"other_split", 15},
                                                                             {"other_group", 16},
                                                                             {"other_plan", 17}})));
  fault.set_rank(mesh.ranks()[numbers.below(static_cast<std::size_t>(mesh.size()))]);
  fault.set_peer(mesh.ranks()[numbers.below(static_cast<std::size_t>(mesh.size()))]);
  fault.set_collective(static_cast<int>(numbers.in(0, 3)));
  fault.set_amount(numbers.in(0, 40));
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
  throw InvalidInput(str("--target ", text, " is unknown; ",
                         near.empty() ? "" : str("the nearest one is ", near, "; "), "use one of ",
                         join(known, ", ")));
}

proto::FuzzCase draw_case(FuzzTarget target, std::uint64_t seed, std::uint64_t number) {
  Numbers numbers(Numbers::combine(seed, number));
  const Swarm swarm(Numbers::combine(seed + 1, number / kCasesOfABatch));
  proto::FuzzCase drawn;
  switch (target == FuzzTarget::all ? target_of(number) : target) {
    case FuzzTarget::attention:
      *drawn.mutable_attention() = draw_attention(numbers, swarm);
      break;
    case FuzzTarget::recurrence:
      *drawn.mutable_recurrence() = draw_recurrence(numbers, swarm);
      *drawn.mutable_order() = any_order(numbers, swarm);
      drawn.add_laws(std::string(numbers.of(laws_of(drawn.job_case()))));
      return drawn;
    case FuzzTarget::model:
      if (numbers.one_in(kFlowsOneIn)) {
        *drawn.mutable_flows() = draw_flows(numbers, swarm);
        return drawn;
      }
      *drawn.mutable_model() = draw_model(numbers, swarm);
      drawn.add_laws(std::string(numbers.of(laws_of(drawn.job_case()))));
      return drawn;
    case FuzzTarget::prove:
      *drawn.mutable_proof() = draw_proof(numbers, swarm);
      return drawn;
    case FuzzTarget::programs:
      *drawn.mutable_program() = draw_program(numbers, swarm);
      *drawn.mutable_order() = program_order(numbers);
      drawn.add_laws(std::string(numbers.of(laws_of(drawn.job_case()))));
      return drawn;
    default:
      if (numbers.one_in(kSearchedOneIn)) {
        *drawn.mutable_redistribute() = draw_searched_redistribution(numbers);
        drawn.add_laws("exhaustive");
        return drawn;
      }
      *drawn.mutable_redistribute() = draw_redistribution(numbers, swarm);
      break;
  }
  *drawn.mutable_order() = any_order(numbers, swarm);
  if (swarm.take(numbers, "faults") && numbers.one_in(2)) {
    add_fault(numbers, swarm, drawn.has_attention() ? drawn.attention().mesh() : drawn.redistribute().mesh(),
              drawn);
    if (!drawn.faults().empty()) return drawn;
  }
  // One law of all each time: many cases with one are worth more than few with all.
  // Damaged plans more often than that: they are what tests the checker, and most are refused at once.
  if (numbers.one_in(8)) {
    drawn.add_laws("mutants");
    return drawn;
  }
  drawn.add_laws(std::string(numbers.of(laws_of(drawn.job_case()))));
  return drawn;
}

}  // namespace cp::sim
