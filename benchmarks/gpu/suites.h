// The suites of gpu_benchmark; each registers its benchmarks.
#pragma once

namespace cp::benchmarks {

void register_attention();
void register_ring();
void register_exact();
void register_moves();
void register_rows();
void register_host_cost();

}  // namespace cp::benchmarks
