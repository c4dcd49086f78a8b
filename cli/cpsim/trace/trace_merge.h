// Merges two exported traces into one file, so that a viewer shows both.
#pragma once

#include <string>

namespace cp::cli {

// One file. `bytes` is its whole contents. `label` is put before the names of its processes: "predicted"
// makes "rank 0" "predicted rank 0". `name` is for messages.
struct LabelledTrace {
  std::string label, bytes, name;
};

// Merge two files of Chrome's or of Perfetto's format that this project wrote. The processes of both follow
// one another by rank. The numbers of the second file's processes, tracks and arrows are moved away from
// those of the first. What a file says about the whole trace (Chrome's otherData) is taken from the second.
// Both throw InvalidInput if a text is no such file.
std::string merge_chrome(const LabelledTrace& first, const LabelledTrace& second);
std::string merge_perfetto(const LabelledTrace& first, const LabelledTrace& second);

}  // namespace cp::cli
