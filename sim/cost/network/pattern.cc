#include "sim/cost/network/pattern.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "sim/cost/network/flow_transfers.h"
#include "sim/cost/network/pattern_internal.h"

namespace cp::sim {

namespace internal {

void check(const Topology& topology, std::span<const int> gpus, const Pattern& pattern) {
  if (gpus.empty()) throw InvalidInput("a collective needs at least one GPU");
  std::unordered_set<int> seen;
  for (const int gpu : gpus) {
    if (gpu < 0 || gpu >= topology.num_gpus()) {
      throw InvalidInput(str("there is no gpu ", gpu, "; the last one is ", topology.num_gpus() - 1));
    }
    if (!seen.insert(gpu).second) throw InvalidInput(str("gpu ", gpu, " is in the group twice"));
  }
  if (!(pattern.bytes > 0 && std::isfinite(pattern.bytes))) {
    throw InvalidInput(str("a collective of ", pattern.bytes, " bytes; give a number above 0"));
  }
  if (pattern.channels < 1 || pattern.in_flight < 1) {
    throw InvalidInput(
        str("channels ", pattern.channels, " and in_flight ", pattern.in_flight, " must be at least 1"));
  }
}

std::vector<int> ring_order(const Topology& topology, std::span<const int> gpus, int channel) {
  const int n = static_cast<int>(gpus.size());
  std::vector<int> order;
  for (int begin = 0; begin < n;) {
    int end = begin + 1;
    while (end < n && topology.node_of(gpus[idx(end)]) == topology.node_of(gpus[idx(begin)])) ++end;
    for (int i = 0; i < end - begin; ++i) order.push_back(begin + (i + channel) % (end - begin));
    begin = end;
  }
  return order;
}

}  // namespace internal

namespace {

// Each runs one pattern over FlowTransfers: begin() sends what can go at once, left() and arrived() take the
// events by the tag that send() gave, and finish what a rank's last event is.

class Rings {
 public:
  Rings(const Topology& topology, std::span<const int> gpus, const Pattern& pattern, FlowTransfers& transfers)
      : transfers_(transfers),
        n_(static_cast<int>(gpus.size())),
        steps_(internal::num_steps(pattern, n_)),
        bytes_(internal::message_bytes(pattern, n_)) {
    for (int channel = 0; channel < pattern.channels; ++channel) {
      const std::vector<int> order = internal::ring_order(topology, gpus, channel);
      for (int i = 0; i < n_; ++i) {
        const int position = order[idx(i)];
        members_.push_back(
            {.gpu = gpus[idx(position)], .position = position, .next = channel * n_ + (i + 1) % n_});
      }
    }
  }

  void begin() {
    for (std::size_t m = 0; m < members_.size(); ++m) try_send(static_cast<int>(m), 0);
  }
  void left(double now, std::uint64_t tag) {
    Member& member = members_[tag];
    member.busy = false;
    finish(member, now);
    try_send(static_cast<int>(tag), now);
  }
  void arrived(double now, std::uint64_t tag) {
    const int next = members_[tag].next;
    ++members_[idx(next)].received;
    finish(members_[idx(next)], now);
    try_send(next, now);
  }
  std::vector<double> finish_ns() const { return finish_; }

 private:
  struct Member {
    int gpu, position, next;
    int started = 0, received = 0;
    bool busy = false;
  };

  void try_send(int m, double now) {
    Member& member = members_[idx(m)];
    if (member.busy || member.started == steps_ || member.received < member.started) return;
    member.busy = true;
    ++member.started;
    transfers_.send(now, member.gpu, members_[idx(member.next)].gpu, bytes_, static_cast<std::uint64_t>(m));
  }
  void finish(const Member& member, double now) {
    finish_[idx(member.position)] = std::max(finish_[idx(member.position)], now);
  }

  FlowTransfers& transfers_;
  const int n_, steps_;
  const double bytes_;
  std::vector<Member> members_;  // channel after channel, each along its ring
  std::vector<double> finish_ = std::vector<double>(idx(n_), 0.0);
};

class Pairwise {
 public:
  Pairwise(std::span<const int> gpus, const Pattern& pattern, FlowTransfers& transfers)
      : transfers_(transfers),
        gpus_(gpus),
        n_(static_cast<int>(gpus.size())),
        window_(pattern.in_flight),
        bytes_(internal::message_bytes(pattern, n_)),
        ranks_(gpus.size()),
        halves_(gpus.size() * idx(window_), 0) {}

  void begin() {
    for (int step = 1; step <= std::min(window_, n_ - 1); ++step) {
      for (int r = 0; r < n_; ++r) open(r, 0);
    }
  }
  void left(double now, std::uint64_t tag) { half(source(tag), step(tag), now); }
  void arrived(double now, std::uint64_t tag) { half(after(source(tag), step(tag)), step(tag), now); }
  std::vector<double> finish_ns() const {
    std::vector<double> finish;
    for (const Rank& rank : ranks_) finish.push_back(rank.finish_ns);
    return finish;
  }

 private:
  struct Rank {
    int opened = 0, over = 0;  // steps: the last one open, and how many from the first on are over
    double finish_ns = 0;
  };

  static int source(std::uint64_t tag) { return static_cast<int>(tag & 0xffffffff); }
  static int step(std::uint64_t tag) { return static_cast<int>(tag >> 32); }
  int after(int r, int step) const { return r + step < n_ ? r + step : r + step - n_; }
  std::uint8_t& halves(int r, int step) { return halves_[idx(r) * idx(window_) + idx(step % window_)]; }

  // Opens the rank's next step, and begins its messages whose other side has opened it too.
  void open(int r, double now) {
    const int step = ++ranks_[idx(r)].opened;
    const int to = after(r, step), from = after(r, n_ - step);
    if (ranks_[idx(to)].opened >= step) send(r, to, step, now);
    if (ranks_[idx(from)].opened >= step) send(from, r, step, now);
  }
  void send(int from, int to, int step, double now) {
    const auto tag = static_cast<std::uint64_t>(step) << 32 | static_cast<std::uint64_t>(from);
    transfers_.send(now, gpus_[idx(from)], gpus_[idx(to)], bytes_, tag);
  }
  // A step is over when the rank's message has left and the one for it has arrived.
  void half(int r, int step, double now) {
    Rank& rank = ranks_[idx(r)];
    rank.finish_ns = now;
    ++halves(r, step);
    while (rank.over < rank.opened && halves(r, rank.over + 1) == 2) {
      halves(r, ++rank.over) = 0;
      if (rank.opened < n_ - 1) open(r, now);
    }
  }

  FlowTransfers& transfers_;
  const std::span<const int> gpus_;
  const int n_, window_;
  const double bytes_;
  std::vector<Rank> ranks_;
  std::vector<std::uint8_t> halves_;  // of the open steps
};

template <class Algorithm>
std::vector<double> simulate(Algorithm algorithm, FlowTransfers& transfers) {
  algorithm.begin();
  while (!transfers.idle()) {
    const FlowTransfers::Event event = transfers.next();
    if (event.arrived) {
      algorithm.arrived(event.at_ns, event.tag);
    } else {
      algorithm.left(event.at_ns, event.tag);
    }
  }
  return algorithm.finish_ns();
}

}  // namespace

PatternResult run_pattern(const Topology& topology, const TransferCurves& curves, std::span<const int> gpus,
                          const Pattern& pattern, Fidelity fidelity) {
  internal::check(topology, gpus, pattern);
  const int n = static_cast<int>(gpus.size());
  PatternResult result;
  result.messages = std::int64_t{n} * internal::num_steps(pattern, n);
  if (internal::is_ring(pattern)) result.messages *= pattern.channels;
  if (fidelity == Fidelity::folded) {
    if (auto finish = internal::folded(topology, curves, gpus, pattern)) {
      result.finish_ns = std::move(*finish);
      result.folded = true;
      return result;
    }
  }
  FlowTransfers transfers(topology, curves);
  result.finish_ns = internal::is_ring(pattern)
                         ? simulate(Rings(topology, gpus, pattern, transfers), transfers)
                         : simulate(Pairwise(gpus, pattern, transfers), transfers);
  return result;
}

std::vector<double> run_messages(const Topology& topology, const TransferCurves& curves,
                                 std::span<const Message> messages) {
  FlowTransfers transfers(topology, curves);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    transfers.send(0, messages[i].source, messages[i].target, messages[i].bytes, i);
  }
  std::vector<double> arrived(messages.size(), 0);
  while (!transfers.idle()) {
    const FlowTransfers::Event event = transfers.next();
    if (event.arrived) arrived[event.tag] = event.at_ns;
  }
  return arrived;
}

}  // namespace cp::sim
