// The known word that somebody most likely meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cp {

// The one with the smallest edit distance, the first among equals; empty when none is near: when more than a
// third of the letters would have to change.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace cp
