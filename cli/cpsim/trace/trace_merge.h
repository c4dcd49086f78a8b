// Two exported traces in one view.
#pragma once

#include <string>

namespace cp::cli {

// A whole file, and what its processes are called by: "predicted" makes "rank 0" "predicted rank 0". `name`
// is for messages.
struct LabelledTrace {
  std::string label, bytes, name;
};

// Files of Chrome's format, and of Perfetto's, as this project writes them: processes of both in turn, by
// rank; numbers of processes, tracks and arrows of the second are moved away from those of the first. What is
// said of the whole (Chrome's otherData) is the second's. Throw InvalidInput for what is no such file.
std::string merge_chrome(const LabelledTrace& first, const LabelledTrace& second);
std::string merge_perfetto(const LabelledTrace& first, const LabelledTrace& second);

}  // namespace cp::cli
