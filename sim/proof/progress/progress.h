// Does a set of plans end, whatever the order, under the rules by which a library makes progress?
//
// The model has no data and no threads. It goes through what each rank issues, stream by stream, and knows
// only what holds an operation up: the one before it on its stream, its edges, the rules of launching, and
// the ranks that it meets. The simulated fabric wants all members of a group at every exchange; here a
// transfer needs no more than its two ends. So plans that check() refuses, or that a fault has changed, may
// end with one library and hang with another. The model shares no code with check().
//
// These are the rules, and where they come from:
//
//   rule              library  what holds, and who says so
//   streams           NCCL     FIFOs of the GPU
//                     Gloo     a thread for each stream, and a context for each group
//                              (runtime/gloo/gloo_device.h)
//   collectives       both     hold their stream until all members have come; the members of a group
//                              meet in the order of their calls
//   launch            NCCL     one_in_order: operations of several communicators of a GPU may not run at
//                              once, and must be issued in one order (user guide, "Using multiple NCCL
//                              communicators concurrently"; runtime/nccl/nccl_launch.h)
//                     Gloo     any: contexts share nothing
//   exchanges         NCCL     peers: calls are "blocking until that group of calls completes" (user
//                              guide, "Point-to-point"). The same page says that the calls of a group
//                              progress independently, but users met groups in which one call without a
//                              partner held up the others (NVIDIA/nccl#2130), so plans may not rely on it
//                     Gloo     transfers: each is its own send or receive of an unbound buffer
//   end of a send     NCCL     buffer_bytes = 0: it may wait for its receive (user guide;
//                              NVIDIA/nccl#1025). In practice the FIFO of a connection takes some bytes:
//                              4 MiB of NCCL_BUFFSIZE in 8 slots, of which 1 MiB were seen to be of use
//                              to sends (NVIDIA/nccl#544)
//                     Gloo     0: its bytes leave when the receiver has announced its receive; until
//                              then it is kept in localPendingSend_ (gloo/transport/tcp/pair.cc; with
//                              Gloo 0.5 a send of 64 bytes ended when its receive was posted, 1.5 s
//                              later)
//   at a time         NCCL     all transfers. An exchange of many may be cut into launches that differ
//                              between ranks, and hang (pytorch#174288): transfers_per_launch
//                     Gloo     all transfers
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::sim {

// When a collective or an exchange at the head of its stream may begin.
enum class Launch : std::uint8_t {
  any,             // at once, beside all others of the rank
  begin_in_order,  // when all that the rank issued before have begun
  one_in_order,    // when all that the rank issued before have ended
  // When none of the rank is under way. If several could begin, any of them may be the first: this is how
  // communicators behave that have no order of launches. It is the only rule that leaves a choice.
  one_at_a_time,
};

// Whom an exchange waits for.
enum class Meeting : std::uint8_t {
  transfers,  // each transfer waits only for its other end
  // No transfer moves before all peers have come to the exchanges that hold the other ends. A peer that only
  // receives what there is room for is not waited for.
  peers,
  // All members of the group come to all its exchanges, as to collectives. This is the simulated fabric's
  // rule.
  members,
};

struct ProgressRules {
  std::string name;
  Launch launch = Launch::any;
  Meeting meeting = Meeting::transfers;
  // The bytes that a connection holds, which is one direction between two members of a group. A send ends
  // when all but so many bytes of what its connection has sent are taken by receives that have begun. Unset:
  // there is always room.
  std::optional<std::int64_t> buffer_bytes = 0;
  // An exchange of more transfers than this is several exchanges, one after the other, in the order in which
  // NCCL takes peers: those at a distance of 1 in the group, behind and ahead, then those at 2, and so on,
  // with as many distances together as this number allows. 0: all at once.
  std::int64_t transfers_per_launch = 0;
};

// The rules of NCCL and of Gloo, as in the table above.
ProgressRules nccl_rules(std::optional<std::int64_t> buffer_bytes = 0);
ProgressRules gloo_rules();
// The rules of the simulated fabric: each rank has one collective in flight, in issue order, as check()
// demands.
ProgressRules fabric_rules();
// The three above, and those of NCCL with buffers of 1 MiB and with buffers without a bound.
std::vector<ProgressRules> all_rules();

// How far a search goes. The numbers are chosen, to bound its time and memory. What cannot be searched
// completely is tried out in random orders.
struct ProgressLimits {
  std::int64_t operations = 1'000'000;  // steps of all ranks, each iteration counted; more are not searched
  std::int64_t states = 100'000;        // searched for all orders; if there are more, orders are drawn
  int walks = 200;                      // the orders that are drawn then
  std::uint64_t seed = 0;               // of these orders
  // Whether what cannot matter to others is taken at once (see explore_progress). If not, every order of
  // single steps is a state of its own, which is for tests.
  bool reduce = true;
};

enum class Ends : std::uint8_t { in_all_orders, in_some_orders, never, unknown };

// One step in one iteration, as a rank issues it.
struct ProgressStep {
  Rank rank = 0;
  StepId step = -1;
  std::int64_t iteration = 0;
  std::string operation;
  std::string stream;
  Group group;                 // of a collective
  std::int64_t sequence = -1;  // its number among the collectives on the group
  bool operator==(const ProgressStep&) const = default;
};

// A rank stands at `at` because `awaited` has not come, a step of another rank. That step lies behind the one
// at which the other rank stands itself.
struct ProgressWait {
  ProgressStep at;
  Rank awaited_rank = 0;
  std::optional<ProgressStep> awaited;  // nothing: that rank never issues it
  std::string behind;  // what `awaited` comes after: "on its stream", ...; empty if that rank stands at it
};

struct ProgressReport {
  ProgressRules rules;
  Ends ends = Ends::unknown;
  bool exhaustive = false;  // whether all orders were looked at; if not, `walks` of them, which were drawn
  std::int64_t states = 0;  // how many states were looked at
  std::int64_t walks = 0, walks_ended = 0;

  // The rest is about one order that does not end.
  bool is_cycle = false;  // if not, the chain of waits ends at what is never issued
  // The shortest cycle: each step waits for the next, and the last one for the first.
  std::vector<ProgressWait> waits;
  std::vector<ProgressStep> stuck;  // by rank: the first step at which each rank stands that does not end
  // The first step after whose beginning no order could end any more. Nothing if none could from the start on
  // (ends == never). If orders were drawn, it is the step after which none of the drawn ones ended.
  std::optional<ProgressStep> lost_at;

  // If members meet in different operations, or a transfer has another size at its two ends, this says where:
  // no rule says what happens then. Empty if there is nothing of the kind.
  std::string mismatch;
};

// Explores whether the plans end under the rules. `plans` are those of different ranks, in any order; a
// member of a group that has no plan never comes. Throws InvalidInput for two plans of one rank, for plans
// whose edges, streams, groups or transfers name what is not there, and for a group whose collectives are on
// two streams of a rank.
//
// How the search works. What can happen next stays possible until it happens, whatever happens before, with
// one exception: under one_at_a_time, if a rank begins one operation, it cannot begin another. So all else is
// taken at once, and states differ by these choices only. The choices of one rank are made one after the
// other, because ranks choose independently of each other. Where there is no choice, one order stands for
// all. If there are more states than limits.states, orders are drawn: by random choices, and by random
// priorities of the streams that change twice.
ProgressReport explore_progress(std::span<const Plan> plans, const ProgressRules& rules,
                                const ProgressLimits& limits = {});
std::vector<ProgressReport> explore_progress(std::span<const Plan> plans,
                                             std::span<const ProgressRules> rules,
                                             const ProgressLimits& limits = {});

std::string to_string(const ProgressStep& step);  // rank 0 step 3 all_reduce #1 on tp[0,1] (stream comm)
std::string to_string(const ProgressReport& report);
// All reports. If the rules differ, the text begins with those under which the plans end and those under
// which they hang.
std::string to_string(std::span<const ProgressReport> reports);

}  // namespace cp::sim
