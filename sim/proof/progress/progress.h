// Does a set of plans end, whatever the order, under the rules by which a library makes progress?
//
// The model has no data and no threads. It goes through what each rank issues, stream by stream, and knows
// only what holds an operation up: the one before it on its stream, its edges, the rules of launching, and
// the ranks that it meets. Unlike the simulated fabric, which wants all members of a group at every exchange,
// a transfer needs no more than its two ends: so plans that check() refuses, or that a fault has changed, may
// end with one library and hang with another. It shares no code with check().
//
// What is a rule, and where it comes from:
//
//   rule                     NCCL                                             Gloo
//   streams                  FIFOs of the GPU                                 a thread for each stream, a context for each group
//                                                                             (runtime/gloo/gloo_device.h)
//   collectives              hold their stream until all members have come; members of a group meet in the
//                            order of their calls
//   launch                   one_in_order: operations of several              any: contexts share nothing
//                            communicators of a GPU may not run at once
//                            and have to be issued in one order (user
//                            guide, "Using multiple NCCL communicators
//                            concurrently"; runtime/nccl/nccl_launch.h)
//   transfers of an exchange peers: "blocking until that group of calls       transfers: each is its own send
//                            or receive of an
//                            completes" (user guide, "Point-to-point"). The   unbound buffer
//                            same page says that calls of a group progress
//                            independently, but users met groups in which
//                            one call without a partner held up the others
//                            (NVIDIA/nccl#2130), so plans may not rely on it
//   a send ends              buffer_bytes = 0: it may wait for its receive    0: its bytes leave when the receiver has announced
//                            (user guide; NVIDIA/nccl#1025). In practice the  its receive, until then it is
//                            kept in
//                            FIFO of a connection takes some bytes: 4 MiB of  localPendingSend_
//                              (gloo/transport/tcp/pair.cc; with
//                            NCCL_BUFFSIZE in 8 slots, of which 1 MiB were    Gloo 0.5 a send of 64 bytes
//                            ended when its receive
//                            seen to be of use to sends (NVIDIA/nccl#544)     was posted, 1.5 s later)
//   transfers at a time      all; an exchange of many may be cut into         all
//                            launches that differ between ranks, and hang
//                            (pytorch#174288): transfers_per_launch
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
  // When none of the rank is under way, whichever of several comes first: of communicators without an order
  // of launches. This is the only rule that leaves a choice.
  one_at_a_time,
};

// Whom an exchange waits for.
enum class Meeting : std::uint8_t {
  transfers,  // each transfer waits for its other end alone
  // No transfer moves before all peers have come to the exchanges that hold the other ends; peers that only
  // receive what there is room for are not waited for.
  peers,
  // All members of the group come to all its exchanges, as to collectives: the simulated fabric's rule.
  members,
};

struct ProgressRules {
  std::string name;
  Launch launch = Launch::any;
  Meeting meeting = Meeting::transfers;
  // A send ends when all but so many bytes of what its connection has sent are taken by receives that have
  // begun; a connection is a direction between two members of one group. Nothing: there is always room.
  std::optional<std::int64_t> buffer_bytes = 0;
  // An exchange of more transfers is several, one after the other, in the order in which NCCL takes peers:
  // those at a distance of 1 in the group, behind and ahead, then those at 2, ... as many distances together
  // as have no more transfers. 0: all at once.
  std::int64_t transfers_per_launch = 0;
};

ProgressRules nccl_rules(std::optional<std::int64_t> buffer_bytes = 0);
ProgressRules gloo_rules();
ProgressRules fabric_rules();  // one collective in flight of each rank, in issue order, as check() demands
std::vector<ProgressRules> all_rules();  // the three, and NCCL with buffers of 1 MiB and without a bound

struct ProgressLimits {
  std::int64_t operations = 1'000'000;  // steps of all ranks, iterations counted each; more are refused
  std::int64_t states = 100'000;        // searched for all orders; beyond, orders are drawn
  int walks = 200;                      // orders drawn then
  std::uint64_t seed = 0;               // of these
  // Take at once what cannot matter to others (see explore_progress). Without it, every order of single steps
  // is a state of its own.
  bool reduce = true;
};

enum class Ends : std::uint8_t { in_all_orders, in_some_orders, never, unknown };

// A step in one iteration, as a rank issues it.
struct ProgressStep {
  Rank rank = 0;
  StepId step = -1;
  std::int64_t iteration = 0;
  std::string operation;
  std::string stream;
  Group group;                 // of a collective
  std::int64_t sequence = -1;  // on the group
  bool operator==(const ProgressStep&) const = default;
};

// A rank stands at `at` because `awaited` has not come, a step of another rank that lies behind what that
// rank stands at itself.
struct ProgressWait {
  ProgressStep at;
  Rank awaited_rank = 0;
  std::optional<ProgressStep> awaited;  // nothing: that rank never issues it
  std::string behind;  // what `awaited` comes after: "on its stream", ...; empty: it stands there
};

struct ProgressReport {
  ProgressRules rules;
  Ends ends = Ends::unknown;
  bool exhaustive = false;  // all orders were looked at; else `walks` of them, drawn
  std::int64_t states = 0;  // that were looked at
  std::int64_t walks = 0, walks_ended = 0;

  // Of one order that does not end:
  bool is_cycle = false;  // else the chain of waits ends at what is never issued
  std::vector<ProgressWait>
      waits;  // the shortest cycle, each of which waits for the next, the last for the first
  std::vector<ProgressStep> stuck;  // where each rank that does not end stands first, by rank
  // The step whose beginning was the first after which no order could have ended. Nothing where none could
  // from the start on (ends == never). Of drawn orders: after which none that was drawn did.
  std::optional<ProgressStep> lost_at;

  // Members that meet in different operations, transfers of other sizes at both ends: what happens then no
  // rule says. Empty: none.
  std::string mismatch;
};

// `plans`: of ranks that differ, in any order; members of groups without a plan never come. Throws
// InvalidInput for plans whose edges or groups name what is not there or whose group has collectives on two
// streams.
//
// The search. All that can happen next stays possible until it happens, whatever happens before, except under
// one_at_a_time, where a rank's beginning of one operation keeps another of its own from beginning. So all
// else is taken at once, and states differ by these choices alone, those of one rank after the other, since
// ranks choose independently of each other. Where there is no choice one order stands for all. Where there
// are more states than limits.states, orders are drawn, by random choices and by random priorities of the
// streams that change twice.
ProgressReport explore_progress(std::span<const Plan> plans, const ProgressRules& rules,
                                const ProgressLimits& limits = {});
std::vector<ProgressReport> explore_progress(std::span<const Plan> plans,
                                             std::span<const ProgressRules> rules,
                                             const ProgressLimits& limits = {});

std::string to_string(const ProgressStep& step);  // rank 0 step 3 all_reduce #1 on tp[0,1] (stream comm)
std::string to_string(const ProgressReport& report);
// All reports; before them, where the rules differ, under which the plans end and under which they hang.
std::string to_string(std::span<const ProgressReport> reports);

}  // namespace cp::sim
