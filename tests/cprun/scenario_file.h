// Scenarios in files, written by hand: cpsim's own is the test of --save-scenario.
#pragma once

#include <fstream>
#include <string>

#include "tests/cli/cpsim_process.h"

namespace cp::testing {

inline std::string scenario(const cli::TemporaryFolder& folder, const std::string& text,
                            const std::string& name = "scenario") {
  std::string path = folder.file(name + ".txtpb");
  std::ofstream(path) << text;
  return path;
}

inline std::string ring(const cli::TemporaryFolder& folder) {
  return scenario(folder, R"(run { mesh: "cp=4" strategy: "ring" balance: "head_tail" seq_len: 96 q_heads: 4)"
                          R"( kv_heads: 2 head_dim: 16 causal: true backward: true })");
}

}  // namespace cp::testing
