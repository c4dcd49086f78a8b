// What `cprun profile` measures: the points of a grid. Each point has a plan that does its work over and
// over.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::cli {

// The kernels of one rank's attention over a whole sequence in bf16.
struct AttentionPoint {
  enum class Mask : std::uint8_t { full, causal, window };
  bool backward = false;
  Mask mask = Mask::full;
  std::int64_t seq_len = 0, q_heads = 32, kv_heads = 8, head_dim = 128;
};

// A kernel that moves memory. It copies bf16, packs it (takes every other run of 1024 elements, as if 8 heads
// of 128 out of 16 at each position), casts it to f32, or merges two partial outputs of attention.
struct MemoryPoint {
  enum class Kernel : std::uint8_t { copy, pack, cast, merge };
  Kernel kernel = Kernel::copy;
  std::int64_t bytes = 0;  // about how many are read and written, together
};

struct ProductPoint {  // [m,k] x [k,n], bf16
  std::int64_t m = 0, n = 0, k = 0;
};

// A collective of all ranks in bf16. `bytes` is counted as nccl-tests does: it is the size of the larger
// buffer of a rank. In an "exchange" each rank sends to the next one.
struct CollectivePoint {
  std::string operation;
  std::int64_t bytes = 0;
};

// Transfers in both directions at once between GPU i of the first machine and GPU i of the second, for all i
// < pairs.
struct PairsPoint {
  int pairs = 1;
  std::int64_t bytes = 0;
};

// A kernel and a collective at the same time. Each of them is measured alone first.
struct BesidePoint {
  CollectivePoint collective;
  std::variant<AttentionPoint, ProductPoint> kernel;
  int channels = 0;  // channels that the communicator may have; 0: NCCL chooses
};

// The host's work to issue small steps one after the other, while the device is busy with earlier work. An
// exchange counts as two transfers: one to the next rank, and one from the rank before.
struct IssuePoint {
  enum class Step : std::uint8_t { kernel, collective, transfer };
  Step step = Step::kernel;
};
using ProfilePoint = std::variant<AttentionPoint, MemoryPoint, ProductPoint, CollectivePoint, PairsPoint,
                                  BesidePoint, IssuePoint>;

// The name of a point in one line, the same on all ranks: "attention forward causal 8192 x 32 heads (8 kv) x
// 128", "all_gather 1048576 B".
std::string name(const ProfilePoint& point);
std::string_view name(AttentionPoint::Mask mask);  // "full", "causal", "window"
std::string_view name(MemoryPoint::Kernel kernel);
std::string_view name(IssuePoint::Step step);  // "kernel", "collective", "transfer"

// The ranks of a profile. Each machine has the same number of them.
struct ProfileWorld {
  int ranks = 1, machines = 1;
  // Several ranks share a GPU. Then only rank 0 measures kernels, and what the ranks send says nothing about
  // a cluster.
  bool shared_gpu = false;
};

struct ProfileGrid {
  // In this order: kernels, collectives, pairs, and kernels beside collectives. The points that measure
  // issuing stand behind the kernels and behind the collectives.
  std::vector<ProfilePoint> points;
};

// How much to measure. It takes seconds on a CPU, minutes, or about an hour.
enum class ProfileSize : std::uint8_t { tiny, quick, whole };
// Returns the points to measure. No buffer is larger than 2 GiB. If ranks share a GPU, nothing runs beside
// anything else, and no collective is larger than 64 MiB.
ProfileGrid profile_grid(ProfileSize size, const ProfileWorld& world);

// profile_plan() returns one rank's plan of a point. The steps that are measured have these labels.
//
// The plan begins with a head: work on about `head_bytes`, repeated `head_repeats` times, that gives the host
// time to enqueue the rest. Without it a GPU that has nothing to do would wait for each step's launch, and
// the step would seem to take as long as that. Small operands of kernels take several places in turn, since
// otherwise they would be found in the cache.
inline constexpr std::string_view kKernelLabel = "kernel", kCollectiveLabel = "collective",
                                  kHeadLabel = "head";
struct ProfilePlanOptions {
  std::int64_t iterations = 10;
  // Chosen: to fill 64 MiB takes about 22 us at 3 TB/s of HBM (64 MiB / 3e12 B/s), and head_repeats makes it
  // longer where the host needs more.
  std::int64_t head_bytes = 64 << 20, head_repeats = 1;
  // Operands smaller than this rotate until their places together exceed it. Chosen: 256 MiB are twice the L2
  // of a B200.
  std::int64_t cache_bytes = 256 << 20;
  // Only for a BesidePoint: which part of it runs, and how many kernels and collectives each iteration has,
  // so that both take about as long.
  enum class Part : std::uint8_t { all, kernel, collective } part = Part::all;
  std::int64_t kernels = 1, collectives = 1;
};
Plan profile_plan(const ProfilePoint& point, Rank self, const ProfileWorld& world, const Target& target,
                  const ProfilePlanOptions& options);

// The multiplications and additions of the point's kernels. They are counted as the timeline counts them for
// every plan (sim/cost/timeline/kernel_work.h), so a measured rate means the same where it is used. Attention
// counts only the pairs that the mask allows.
double flops(const AttentionPoint& point);
double flops(const ProductPoint& point);
// The bytes that the plan's kernel reads and writes, each counted once.
std::int64_t moved_bytes(const MemoryPoint& point);

}  // namespace cp::cli
