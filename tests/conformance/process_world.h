// ProcessWorld: a DeviceWorld whose ranks are processes.
//
// Made, it forks one process for each rank, all with the same test; this process goes on with it too, without
// a rank. It learns what the others share, so that it expects the same, and never uses a device: it can make
// the next world. Destroyed, it ends the others, and fails the test where one of them failed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <sys/types.h>
#include <vector>

#include "runtime/process_device.h"
#include "tests/conformance/device_suite.h"

namespace cp::conformance {

class ProcessWorld final : public DeviceWorld {
 public:
  using MakeDevice = std::function<std::unique_ptr<runtime::ProcessDevice>(Rank)>;

  ProcessWorld(int world_size, MakeDevice make);
  ~ProcessWorld() override;

  void run(const std::function<void(Rank, Device&)>& body) override;
  void share(std::vector<Contents>& by_rank) override;
  std::vector<RankTrace>& traces() override { return traces_; }
  void clear_traces() override;

 private:
  static constexpr Rank kNone = -1;
  struct Peer {
    pid_t pid = -1;
    int in = -1, out = -1;
  };

  void fork_rank(Rank rank);
  std::vector<std::string> gather(const std::string& own);

  const MakeDevice make_;  // may hold what all processes need until the last has ended
  Rank rank_ = kNone;
  std::vector<Peer> peers_;  // by rank; of a rank: the process without one
  std::vector<RankTrace> traces_;
  std::unique_ptr<runtime::ProcessDevice> device_;
};

}  // namespace cp::conformance
