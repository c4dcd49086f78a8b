#include "sim/fuzz/mutants_law.h"

#include <optional>

#include "shared/plan/check.h"
#include "sim/base/numbers.h"
#include "sim/fuzz/mutate/plan_mutations.h"
#include "sim/proof/progress/progress.h"

namespace cp::sim {
namespace {

// How often one case is damaged, and under how many orders each damaged set of plans runs that check()
// passes. Chosen: most damages are refused, which takes no run, so that a case can afford that many.
constexpr int kMutants = 24;
constexpr int kOrdersOfMutant = 3;

bool is_refused(const std::vector<Plan>& plans) {
  try {
    check(plans);
    return false;
  } catch (const Error&) {
    return true;
  }
}

}  // namespace

void check_mutants(const std::vector<Plan>& plans, std::uint64_t seed,
                   const std::function<std::string(const std::vector<Plan>&, const BatonOrder&)>& run,
                   const std::string& right, const Trial& trial) {
  Numbers numbers(Numbers::combine(seed, 0x6d7574));
  for (int i = 0; i < kMutants; ++i) {
    std::vector<Plan> damaged = plans;
    const MutationKind kind = all_mutations()[numbers.below(all_mutations().size())].kind;
    const auto place = static_cast<std::int64_t>(numbers.next() >> 8);
    if (kind == MutationKind::change_dtype) continue;  // kernels abort on types that they do not know
    const auto mutation = mutate(damaged, kind, place, numbers.next());
    if (!mutation || is_refused(damaged)) continue;
    const ProgressReport progress =
        trial.property("mutants", [&] { return explore_progress(damaged, fabric_rules()); });
    trial.require(progress.ends == Ends::in_all_orders || progress.ends == Ends::unknown, "mutants",
                  "check() passes ", mutation->text, ", and ", to_string(progress));
    std::optional<std::string> first;
    for (int order = 0; order < kOrdersOfMutant; ++order) {
      BatonOrder how;
      how.kind = order == 0 ? BatonOrder::Kind::round_robin : BatonOrder::Kind::pct;
      how.depth = 3;
      how.seed = numbers.next();
      how.expected_turns = std::max<std::int64_t>(1, expected_turns(damaged));
      std::string result;
      try {
        result = run(damaged, how);
      } catch (const InvalidInput&) {
        break;  // a device refuses to prepare it: of memory that is the caller's, check() knows nothing
      } catch (const Error& error) {
        throw trial.failure("mutants",
                            str("check() passes ", mutation->text, ", and the fabric says: ", error.what()));
      }
      trial.require(!first || *first == result, "mutants", "check() passes ", mutation->text,
                    ", and two orders of the ranks have different results");
      first = result;
      trial.require(mutation->may_change_meaning || result == right, "mutants", "check() passes ",
                    mutation->text, ", which can be no other program, and the result is wrong");
    }
  }
}

}  // namespace cp::sim
