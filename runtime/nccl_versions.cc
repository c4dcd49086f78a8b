#include "runtime/nccl_versions.h"

#include "shared/base/text.h"

namespace cp::runtime {

std::string nccl_version_text(int version) {
  return str(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::optional<std::string> refuse_nccl_option(std::string_view option, int since,
                                              const NcclVersions& versions) {
  const std::string needs = str(option, " needs NCCL ", nccl_version_text(since), " or later, ");
  if (versions.loaded < since) {
    return str(needs, "and the library found is ", nccl_version_text(versions.loaded),
               ", which would ignore it; leave it out, or put the folder of a newer libnccl.so.2 first in "
               "LD_LIBRARY_PATH");
  }
  if (versions.header < since) {
    return str(needs, "and this was built with the header of ", nccl_version_text(versions.header),
               ", although the library found is ", nccl_version_text(versions.loaded),
               "; leave it out, or build with a newer nccl.h (NCCL_ROOT)");
  }
  return {};
}

bool says_shared_gpu(std::string_view words) {
  return words.find("Duplicate GPU") != std::string_view::npos ||
         words.find("NCCL_MULTI_RANK_GPU_ENABLE") != std::string_view::npos;
}

}  // namespace cp::runtime
