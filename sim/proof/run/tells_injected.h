// Tells a caller which faults of a fabric took place, whether a run returns or throws.
#pragma once

#include <vector>

#include "sim/fabric/fabric.h"

namespace cp::sim {

class TellsInjected {
 public:
  // Both must outlive this. `injected` is written when this object ends; null means that nobody asks.
  TellsInjected(const Fabric& fabric, std::vector<bool>* injected) : fabric_(fabric), injected_(injected) {}
  ~TellsInjected() {
    if (injected_ != nullptr) *injected_ = fabric_.injected();
  }
  TellsInjected(const TellsInjected&) = delete;
  TellsInjected& operator=(const TellsInjected&) = delete;

 private:
  const Fabric& fabric_;
  std::vector<bool>* injected_;
};

}  // namespace cp::sim
