// What depends on the version of NCCL. There are two: that of the header that this was built with, which says
// what can be asked for, and that of the library that is found, which says what is done. A library that is
// older than the header takes the options that it does not know, and ignores them without a word; so both are
// asked before an option is set. Versions are counted as ncclGetVersion() does: 22809 is 2.28.9.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace cp::runtime {

struct NcclVersions {
  int header = 0, loaded = 0;
};

// The oldest one: of 2.21.5, the oldest that scripts/versions builds with. What is called is older, since
// 2.19: ncclMemAlloc and ncclCommRegister. cmake/FindNCCL.cmake asks for the same.
inline constexpr int kOldestNccl = 22100;
// ncclConfig_t has CTAPolicy since (nccl.h of 2.27; 2.26 has none).
inline constexpr int kNcclCtaPolicySince = 22700;
// NCCL_LAUNCH_ORDER_IMPLICIT has an effect since (release notes of NCCL 2.26.2).
inline constexpr int kNcclLaunchOrderSince = 22602;
// Copy engines move AllGather and AlltoAll (NCCL_CTA_POLICY_ZERO with symmetric windows) since 2.28, with
// which ncclAlltoAll came (nccl.h); the host writes into a peer's window (ncclPutSignal) since 2.29 (nccl.h).
inline constexpr int kNcclCopyEnginesSince = 22800, kNcclPutSince = 22900;
// Two ranks on one GPU are refused in other words since 2.30.3 (init.cc): "Multiple Ranks are using the same
// GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration." instead of "Duplicate GPU
// detected : rank 1 and rank 0 both on CUDA device 1b000".
inline constexpr int kNcclMultiRankGpuSince = 23003;

std::string nccl_version_text(int version);  // "2.28.9"

// Says why the option has no effect: which version is too old, which one it needs, and what does instead.
// Nothing if both are new enough.
std::optional<std::string> refuse_nccl_option(std::string_view option, int since,
                                              const NcclVersions& versions);

// Whether NCCL's words say that two ranks have one GPU, in any version's wording.
bool says_shared_gpu(std::string_view words);

}  // namespace cp::runtime
