// RankClock: adds up how one rank spends its time: computing, communicating while it computes, or waiting for
// communication.
#pragma once

namespace cp::sim {

struct RankTimeline;

class RankClock {
 public:
  // From `now_ns` on, `more` more kernels run, or `more` more collectives are under way or waited for. `more`
  // is negative when they end. Times must not go back.
  void kernel(double now_ns, int more) { advance(now_ns), kernels_ += more; }
  void comm(double now_ns, int more) { advance(now_ns), comms_ += more; }
  void settle(RankTimeline& result) const;

 private:
  void advance(double now_ns);

  int kernels_ = 0, comms_ = 0;
  double now_ns_ = 0, compute_ns_ = 0, exposed_ns_ = 0, hidden_ns_ = 0;
};

}  // namespace cp::sim
