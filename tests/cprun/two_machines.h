// Two machines with a link between them, made of network namespaces: for root alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/cprun/run_program.h"

namespace cp::testing {

class TwoMachines {
 public:
  TwoMachines();
  ~TwoMachines();  // removes them
  TwoMachines(const TwoMachines&) = delete;
  TwoMachines& operator=(const TwoMachines&) = delete;

  // Why there are none here; empty when there are.
  const std::string& missing() const { return missing_; }

  // Machine 0 or 1; the first has kAddress, and they are called machine-0 and machine-1.
  static constexpr const char* kAddress = "10.213.0.1";
  std::unique_ptr<Program> start(int machine, const std::vector<std::string>& argv,
                                 const std::vector<std::string>& environment = {}) const;
  void cut_link() const;

 private:
  bool ip(const std::vector<std::string>& arguments);
  bool make();
  std::string name(int machine) const;

  std::string missing_;
  bool begun_ = false;  // to make them
};

}  // namespace cp::testing
