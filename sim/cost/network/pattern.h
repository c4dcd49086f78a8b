// Collectives as the messages that their algorithms send, simulated in full detail or folded.
//
// ring: in each step a rank sends a part to the next rank. Step k + 1 of a rank starts when the message that
// step k brings has arrived, and its own message of step k has left. The ring follows the order of the group.
// Channels share the bytes; channel c enters each node at its member number c, so that the NICs of a node are
// shared too.
//
// pairwise: in step s = 1, ..., N - 1 the rank at position r sends to r + s and receives from r - s (modulo
// N). A message starts when both its ranks have opened the step. A rank opens step s when all
// of its steps up to s - in_flight are over.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/cost/cluster/cluster.h"
#include "sim/cost/network/topology.h"

namespace cp::sim {

enum class PatternKind : std::uint8_t {
  ring_all_gather,
  ring_reduce_scatter,
  ring_all_reduce,
  pairwise_all_to_all,
};

struct Pattern {
  PatternKind kind = PatternKind::ring_all_gather;
  // Of a rank's whole buffer: all-gather's output, reduce-scatter's input, what all-reduce reduces,
  // all-to-all's input (a part for itself included). > 0.
  double bytes = 0;
  int channels = 1;   // of rings
  int in_flight = 1;  // of pairwise: steps that a rank has open at once
};

enum class Fidelity : std::uint8_t {
  // Every message is a flow.
  simulated,
  // Where no link can ever be short, whatever messages meet on it, rates are constant and the waits alone
  // decide: the same result without flows. Otherwise simulated.
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

// The slowest rank's finish, in closed form: rates are those when all messages of a step are under way
// together. Rings: what flows say, to rounding, where no link can be short (what folds) and where the
// messages that make one short are always under way together; elsewhere ranks that run ahead leave links to
// the others. Pairwise: exact where no link can be short, all ranks are alike and in_flight is 1; it adds up
// the slowest message of each step, so uneven links (each rank meets them at another step) and several steps
// in flight take less than it says. In groups above 256 it looks at some of the steps.
double aggregate_ns(const Topology& topology, const TransferCurves& curves, std::span<const int> gpus,
                    const Pattern& pattern);

}  // namespace cp::sim
