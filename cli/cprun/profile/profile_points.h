// What `cprun profile` measures: points of a grid, each with the plan that does the work over and over.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::cli {

// The kernels of one rank's attention over whole sequences, 16 bit.
struct AttentionPoint {
  enum class Mask : std::uint8_t { full, causal, window };
  bool backward = false;
  Mask mask = Mask::full;
  std::int64_t seq_len = 0, q_heads = 32, kv_heads = 8, head_dim = 128;
};
// A kernel that moves memory: bf16 copied, packed (8 heads of 128 of 16 at each position), cast to f32, or
// two partial outputs of attention merged.
struct MemoryPoint {
  enum class Kernel : std::uint8_t { copy, pack, cast, merge };
  Kernel kernel = Kernel::copy;
  std::int64_t bytes = 0;  // about: read and written together
};
struct ProductPoint {  // [m,k] x [k,n], bf16
  std::int64_t m = 0, n = 0, k = 0;
};
// Of all ranks, bf16; bytes as nccl-tests counts them: of the larger buffer of a rank. "exchange": each rank
// sends to the next one.
struct CollectivePoint {
  std::string operation;
  std::int64_t bytes = 0;
};
// Both directions at once between GPU i of the first machine and GPU i of the second, i < pairs.
struct PairsPoint {
  int pairs = 1;
  std::int64_t bytes = 0;
};
// A kernel and a collective at the same time, and each of them alone first.
struct BesidePoint {
  CollectivePoint collective;
  std::variant<AttentionPoint, ProductPoint> kernel;
  int channels = 0;  // that the communicator may have; 0: NCCL's choice
};
// The host's work to issue small steps one after the other, while the device is busy with what came before.
// An exchange has two transfers: what is sent to the next rank and what is received from the one before.
struct IssuePoint {
  enum class Step : std::uint8_t { kernel, collective, transfer };
  Step step = Step::kernel;
};
using ProfilePoint = std::variant<AttentionPoint, MemoryPoint, ProductPoint, CollectivePoint, PairsPoint,
                                  BesidePoint, IssuePoint>;

// "attention forward causal 8192 x 32 heads (8 kv) x 128", "all_gather 1048576 B", ...: one line, the same on
// all ranks.
std::string name(const ProfilePoint& point);
std::string_view name(AttentionPoint::Mask mask);  // "full", "causal", "window"
std::string_view name(MemoryPoint::Kernel kernel);
std::string_view name(IssuePoint::Step step);  // "kernel", "collective", "transfer"

// The ranks of a profile, as many on each machine.
struct ProfileWorld {
  int ranks = 1, machines = 1;
  // Ranks share one: kernels are measured on rank 0 alone, and what they send says nothing of a cluster.
  bool shared_gpu = false;
};

struct ProfileGrid {
  std::vector<ProfilePoint>
      points;  // kernels, then collectives, then pairs, then what runs beside; what is issued behind its kind
};
enum class ProfileSize : std::uint8_t { tiny, quick, whole };  // seconds on a CPU; minutes; about an hour
// Memory: no buffer above 2 GiB. Where ranks share a GPU nothing runs beside, and no collective is above 64
// MiB.
ProfileGrid profile_grid(ProfileSize size, const ProfileWorld& world);

// One rank's plan of a point. The measured steps have the labels below; the plan begins with work of about
// `head_bytes`, over and over, that gives the host time to enqueue the rest: a step that the host comes to
// when the GPU has nothing to do seems to take as long as its launch. Kernels that would find their operands
// in the cache have several places in turn.
inline constexpr std::string_view kKernelLabel = "kernel", kCollectiveLabel = "collective",
                                  kHeadLabel = "head";
struct ProfilePlanOptions {
  std::int64_t iterations = 10;
  std::int64_t head_bytes = 64 << 20, head_repeats = 1;
  // Operands of less than that rotate until they exceed it: twice the L2 of a B200.
  std::int64_t cache_bytes = 256 << 20;
  // Of a BesidePoint: what of it, and how often in each iteration, so that both take about as long.
  enum class Part : std::uint8_t { all, kernel, collective } part = Part::all;
  std::int64_t kernels = 1, collectives = 1;
};
Plan profile_plan(const ProfilePoint& point, Rank self, const ProfileWorld& world, const Target& target,
                  const ProfilePlanOptions& options);

// Multiplications and additions of the point's kernels, as the timeline counts them for every plan
// (sim/cost/timeline/kernel_work.h), so that a rate that was measured means what it means where it is used.
// Of attention: of the pairs that the mask allows.
double flops(const AttentionPoint& point);
double flops(const ProductPoint& point);
// Read and written by the plan's kernel, once.
std::int64_t moved_bytes(const MemoryPoint& point);

}  // namespace cp::cli
