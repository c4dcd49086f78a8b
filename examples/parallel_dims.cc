// Degrees that are checked before anything is built: one is inferred, and the mesh has names for what a
// trainer needs.
#include "shared/mesh/parallel_dims.h"

#include <iostream>

#include "shared/base/error.h"

int main() {
  cp::ParallelConfig config;
  config.dp_replicate = 2, config.cp = 2, config.tp = 2;  // dp_shard: what is left of the world
  const cp::ParallelDims dims(config, 16);
  dims.validate_against_model({32, 8, {}}, 4096, true);
  std::cout << dims.summary() << "\n";

  const cp::Mesh mesh = dims.build_mesh();
  for (const char* alias : {"fsdp", "dp", "loss"})
    std::cout << alias << " of rank 5: " << mesh.slice(alias, 5).to_string() << "\n";

  config.tp = 3;
  try {
    const cp::ParallelDims wrong(config, 16);
    return 1;
  } catch (const cp::InvalidInput& error) {
    std::cout << error.what() << "\n";
  }
  return dims.dp_shard() == 2 && mesh.slice("loss", 5).size() == 8 ? 0 : 1;
}
