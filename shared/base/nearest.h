// The known word that somebody most likely meant.
//
// A name that contains the word or a part of it is nearer than any that is merely spelled alike: "h200" means
// hgx-h200, "llama3" a llama-3 model. In this order, without regard to case and to what separates the parts
// of a name:
//
//   1. the same letters                     allgather -> all_gather
//   2. a name that contains the word        h200 -> hgx-h200, schedul -> schedule
//   3. a name that the word contains        generics -> generic
//   4. a name that contains parts of it     dgx-h200 -> hgx-h200; the more letters of them the better
//   5. by edit distance (Levenshtein)       verfy -> verify
//
// Among equals the smaller edit distance counts, then the first place. Pieces of less than three letters
// count as contained only where one begins with the other.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cp {

// Empty when none is near: when none contains anything of the word and more than a third of the letters would
// have to change.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

// The nearest, however far it is. There must be one.
std::string_view nearest_name(std::string_view word, const std::vector<std::string_view>& names);

}  // namespace cp
