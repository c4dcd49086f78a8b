// Collectives as the messages that their algorithms send, at full detail and folded.
//
// ring: a rank sends a part to the next rank in each step; step k + 1 waits for what step k brings and for its own
// message of step k to have left. The ring follows the order of the group; channels share the bytes, and channel c enters each
// node at its member number c, so that NICs are shared out too.
// pairwise: in step s = 1, ..., N - 1 the rank at position r sends to r + s and receives from r - s. A message begins when
// both sides have opened its step; a rank opens a step when all but the last in_flight - 1 before it are over.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/cluster/cluster.h"
#include "sim/network/topology.h"

namespace cp::sim {

enum class PatternKind : std::uint8_t {
  ring_all_gather,
  ring_reduce_scatter,
  ring_all_reduce,
  pairwise_all_to_all,
};

struct Pattern {
  PatternKind kind = PatternKind::ring_all_gather;
  // Of a rank's whole buffer: all-gather's output, reduce-scatter's input, what all-reduce reduces, all-to-all's
  // input (a part for itself included). > 0.
  double bytes = 0;
  int channels = 1;   // of rings
  int in_flight = 1;  // of pairwise: steps that a rank has open at once
};

enum class Fidelity : std::uint8_t {
  // Every message is a flow.
  simulated,
  // Where no link can ever be short, whatever messages meet on it, rates are constant and the waits alone decide:
  // the same result without flows. Otherwise simulated.
  folded,
};

struct PatternResult {
  std::vector<double>
      finish_ns;  // by position in the group, all begin at 0: its last message has left and arrived
  std::int64_t messages = 0;
  bool folded = false;
};

// The GPUs are different ones of the topology. Throws InvalidInput on patterns and groups that make no sense.
PatternResult run_pattern(const Topology& topology, const TransferCurves& curves, std::span<const int> gpus,
                          const Pattern& pattern, Fidelity fidelity = Fidelity::folded);

struct Message {
  int source = 0, target = 0;
  double bytes = 0;
};

// All begin at 0; by message: when it has arrived.
std::vector<double> run_messages(const Topology& topology, const TransferCurves& curves,
                                 std::span<const Message> messages);

// The slowest rank's finish, in closed form: rates are those when all messages of a step are under way together. That is
// what flows say, to rounding, where the links that all ranks meet are never short (what folds); where they are, ranks
// that run ahead use them while others do not, and flows are the truth.
double aggregate_ns(const Topology& topology, const TransferCurves& curves, std::span<const int> gpus,
                    const Pattern& pattern);

}  // namespace cp::sim
